"""Processes that the router runs: they end with all that they started, and what is left over is found."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import filelock
import pytest

from specrouter.errors import SetupError
from specrouter.held_files import private_folder
from specrouter.managed import leftovers, processes
from specrouter.managed.folders import records_folder
from specrouter.managed.leftovers import MARK, Leftover, Record, end_leftovers, started
from specrouter.managed.processes import Process, free_port, how_it_ended, port_is_free

pytestmark = pytest.mark.skipif(os.name == "nt", reason="looks at process groups")
needs_proc = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

# Of this run alone: processes are looked for on the whole machine.
OURS = secrets.token_hex(16)

SLEEPS = "import time; time.sleep(600)"
STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); time.sleep(600)"
)
WITH_CHILD = "import subprocess, time; print(subprocess.Popen(['sleep', '600']).pid, flush=True); time.sleep(600)"
LONG = 30.0


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def start(tmp_path: Path) -> Iterator:
    processes = []

    def run(script: str) -> Process:
        with (tmp_path / "output").open("wb") as output:
            process = Process([sys.executable, "-c", script], name="the server x", output=output)
        processes.append(process)
        return process

    yield run
    for process in processes:
        process.kill()


def wait(condition) -> None:
    give_up = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < give_up
        time.sleep(0.01)


def lives(pid: int) -> bool:
    """Whether there is such a process; a zombie is none."""
    found = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return found.stdout.strip()[:1] not in ("", "Z")


# -- a process ---------------------------------------------------------------------------------------------


def test_ends_by_itself(start) -> None:
    process = start("import sys; sys.exit(7)")
    wait(lambda: process.poll() is not None)
    assert process.poll() == 7
    process.kill()
    assert process.poll() == 7


def test_killed(start) -> None:
    process = start(SLEEPS)
    assert process.poll() is None
    process.kill()
    assert process.poll() == -signal.SIGKILL
    assert how_it_ended(-signal.SIGKILL) == "by SIGKILL"


def test_what_it_started_ends_with_it(start, tmp_path: Path) -> None:
    process = start(WITH_CHILD)
    wait(lambda: (tmp_path / "output").read_text().strip())
    child = int((tmp_path / "output").read_text())
    os.kill(process.pid, signal.SIGKILL)
    wait(lambda: process.poll() is not None)
    assert lives(child)
    process.stop(LONG)
    wait(lambda: not lives(child))


@pytest.mark.anyio
async def test_by_force_where_it_does_not_end(start, tmp_path: Path) -> None:
    process = start(STUBBORN)
    wait(lambda: (tmp_path / "output").read_text())
    await process.astop(0.2)
    assert process.poll() == -signal.SIGKILL


@pytest.mark.anyio
async def test_left_behind_where_nothing_ends_it(
    start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    process = start(SLEEPS)
    with monkeypatch.context() as patched:
        patched.setattr(processes, "LAST_SECONDS", 0.1)
        patched.setattr(Process, "poll", lambda _: None)
        await process.astop(0.1)
    assert f"(process {process.pid}) does not end, not even by force" in caplog.text


def test_program_that_is_not_there(tmp_path: Path) -> None:
    with (tmp_path / "output").open("wb") as output, pytest.raises(SetupError, match="cannot start"):
        Process(["\0"], name="x", output=output)


def test_ports() -> None:
    port = free_port()
    assert port_is_free(port)
    assert not port_is_free(1, "192.0.2.1")


# -- leftovers ---------------------------------------------------------------------------------------------


@pytest.fixture
def orphan(tmp_path: Path) -> Iterator[subprocess.Popen]:
    """A process with the mark `m`, as a killed router might have left it."""
    process = subprocess.Popen(
        [sys.executable, "-c", STUBBORN], env={**os.environ, MARK: OURS}, stdout=subprocess.PIPE, start_new_session=True
    )
    process.stdout.readline()
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def record(pid: int, **changed) -> Path:
    """What a router that was killed has written about a process."""
    about = {"mark": OURS, "pid": pid, "started": started(pid), "place": leftovers._place(), "name": "x"}
    file = private_folder(records_folder()) / "m.json"
    file.write_text(json.dumps({**about, **changed}))
    return file


@needs_proc
def test_leftover_is_ended(orphan) -> None:
    file = record(orphan.pid)
    assert end_leftovers(0.2) == ["x"]
    assert orphan.wait(LONG) == -signal.SIGKILL
    assert not file.exists()
    assert end_leftovers(0.2) == []


@needs_proc
def test_leftover_of_a_leftover_is_ended(orphan) -> None:
    """Whoever was started first has gone, and somebody else has its number."""
    record(os.getpid())
    assert end_leftovers(0.2) == ["x"]
    assert orphan.wait(LONG) == -signal.SIGKILL


@pytest.mark.parametrize("has_proc", [pytest.param(True, marks=needs_proc), False])
def test_nobody_else_gets_a_signal(monkeypatch: pytest.MonkeyPatch, has_proc: bool) -> None:
    """The number belongs to another process by now."""
    if not has_proc:
        monkeypatch.setattr(sys, "platform", "darwin")
    stranger = subprocess.Popen(["sleep", "600"], start_new_session=True)
    try:
        file = record(stranger.pid, started="Thu Jan  1 00:00:00 1970")
        assert end_leftovers(0.1) == []
        assert not file.exists()
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_a_leftover_that_nothing_ends_is_looked_for_again(
    orphan, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(leftovers, "LAST_SECONDS", 0.1)
    monkeypatch.setattr(Leftover, "_signal", lambda *_: True)
    file = record(orphan.pid)
    assert end_leftovers(0.1) == []
    assert file.exists()
    assert "does not end, not even by force" in caplog.text


def test_leftover_where_there_is_no_proc(orphan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    # Reaped, as it would be by the system where its parent is dead.
    monkeypatch.setattr(leftovers, "_POLL_SECONDS", 0.01)
    leftover = Leftover(OURS, orphan.pid, started(orphan.pid))
    assert leftover._signal(signal.SIGKILL)
    orphan.wait(LONG)
    assert not leftover.end(0.1)


def test_a_router_that_lives_keeps_its_own(start) -> None:
    process = start(SLEEPS)
    assert end_leftovers(0.1) == []
    assert process.poll() is None
    assert len(list(records_folder().glob("*.json"))) == 1
    process.stop(LONG)
    assert [file.name for file in records_folder().iterdir()] == ["looking.lock"]


def test_its_own_are_no_leftovers(start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where its own lock does not stop it."""
    process = start(SLEEPS)
    monkeypatch.setattr(leftovers, "lock_of", lambda file: filelock.FileLock(tmp_path / f"{file.stem}.free"))
    assert end_leftovers(0.1) == []
    assert process.poll() is None


def test_another_container_is_left_alone(orphan) -> None:
    file = record(orphan.pid, place="elsewhere 1")
    assert end_leftovers(0.1) == []
    assert file.exists()
    assert orphan.poll() is None


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"mark": 1}'])
def test_a_record_that_says_nothing(caplog: pytest.LogCaptureFixture, text: str) -> None:
    file = private_folder(records_folder()) / "m.json"
    file.write_text(text)
    assert end_leftovers(0.1) == []
    assert "says nothing that can be used" in caplog.text
    assert not file.exists()


def test_folders_that_others_can_write_to_are_not_used(caplog: pytest.LogCaptureFixture) -> None:
    private_folder(records_folder()).chmod(0o777)
    Record().write(os.getpid(), "x")
    assert "nobody will end what it leaves running" in caplog.text
    assert end_leftovers(0.1) == []
    assert "must be a directory that only you can write to" in caplog.text
