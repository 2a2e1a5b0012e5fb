"""What a router leaves in the user's runtime directory, and how commands read it."""

from __future__ import annotations

import json
import logging
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import filelock
import pytest

from specrouter import running
from specrouter.errors import SetupError
from specrouter.running import Announcement, ReloadOutcome, Status

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="without SIGHUP there is no reload")


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the files are."""
    monkeypatch.setattr("platformdirs.user_runtime_path", lambda *_, **__: tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def topology(tmp_path: Path) -> Path:
    file = tmp_path / "topology.yaml"
    file.touch()
    return file


@pytest.fixture
def hangups(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Fills with the signals that this process, which plays the router here, receives."""
    received: list[int] = []
    before = signal.signal(signal.SIGHUP, lambda number, _: received.append(number))
    yield received
    signal.signal(signal.SIGHUP, before)


def test_life(directory: Path, topology: Path) -> None:
    with Announcement(topology, "http://127.0.0.1:8000") as announcement:
        (found,) = running.find(topology)
        assert (found.pid, found.url, found.status) == (os.getpid(), "http://127.0.0.1:8000", Status())
        assert found.started <= time.time()
        status = Status(revision=2, begun=1, ended=1, outcome=ReloadOutcome(problems=("no",)))
        announcement.update(status)
        assert running.find(topology)[0].status == status
    assert running.find(topology) == []
    assert [file.name for file in directory.iterdir()] == ["commands.lock"]


def test_files_are_private(directory: Path, topology: Path) -> None:
    with Announcement(topology, "http://127.0.0.1:8000"):
        running.find(topology)
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
        assert {stat.S_IMODE(file.stat().st_mode) for file in directory.iterdir()} == {0o600}


def test_only_routers_of_that_file(directory: Path, topology: Path, tmp_path: Path) -> None:
    other, link = tmp_path / "other.yaml", tmp_path / "link.yaml"
    other.touch()
    link.symlink_to(topology)
    with Announcement(link, "http://127.0.0.1:1"), Announcement(other, "http://127.0.0.1:2"):
        assert [router.url for router in running.find(topology)] == ["http://127.0.0.1:1"]
        # Where the link leads now is what counts: the router would read that file.
        link.unlink()
        link.symlink_to(other)
        assert running.find(topology) == []
        assert len(running.find(other)) == 2


def test_link_relative_to_where_the_router_was_started(
    directory: Path, topology: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(topology.parent)
    with Announcement(Path(topology.name), "http://127.0.0.1:1"):
        monkeypatch.chdir("/")
        assert len(running.find(topology)) == 1


LEFT_BEHIND = """
import os, pathlib, sys
import platformdirs
platformdirs.user_runtime_path = lambda *_, **__: pathlib.Path(sys.argv[1])
from specrouter.running import Announcement
Announcement(pathlib.Path(sys.argv[2]), "http://127.0.0.1:1").__enter__()
os._exit(1)
"""


def test_dead_router(directory: Path, topology: Path, hangups: list[int]) -> None:
    subprocess.run([sys.executable, "-c", LEFT_BEHIND, str(directory), str(topology)], check=False)
    (file,) = directory.glob("*.json")
    # Its number has been given to another process: to us.
    file.write_text(json.dumps({**json.loads(file.read_text()), "pid": os.getpid()}))
    with pytest.raises(SetupError, match="no router serves"):
        running.reload(topology)
    assert hangups == []
    assert [file.name for file in directory.iterdir()] == ["commands.lock"]


def test_router_that_ends_before_the_signal(
    directory: Path, topology: Path, hangups: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    announcement = Announcement(topology, "http://127.0.0.1:1")
    announcement.__enter__()
    found = running.find(topology)
    announcement.__exit__(None, None, None)
    monkeypatch.setattr(running, "find", lambda _: found)
    with pytest.raises(SetupError, match="no router serves"):
        running.reload(topology)
    assert hangups == []


def test_router_in_another_container(directory: Path, topology: Path, hangups: list[int]) -> None:
    with Announcement(topology, "http://127.0.0.1:1"):
        (file,) = directory.glob("*.json")
        file.write_text(json.dumps({**json.loads(file.read_text()), "pid_namespace": 1}))
        with pytest.raises(SetupError, match="no router serves"):
            running.reload(topology)
    assert hangups == []


def test_file_of_another_version(directory: Path, topology: Path) -> None:
    with Announcement(topology, "http://127.0.0.1:1"):
        (file,) = directory.glob("*.json")
        for text in ("", "{}", "[]", json.dumps({**json.loads(file.read_text() or "{}"), "status": {"new": 1}})):
            file.write_text(text or "{")
            assert running.find(topology) == []


@pytest.mark.parametrize("mode", [0o000, 0o777])
def test_directory_that_cannot_be_used(
    directory: Path, topology: Path, mode: int, caplog: pytest.LogCaptureFixture
) -> None:
    if mode:
        directory.mkdir()
        directory.chmod(mode)
    else:
        directory.touch()
    with Announcement(topology, "http://127.0.0.1:1") as announcement:
        announcement.update(Status(revision=2))
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert str(directory) in record.message
    with pytest.raises(SetupError, match="cannot find out which routers run"):
        running.find(topology)


def test_file_that_cannot_be_written(directory: Path, topology: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Announcement(topology, "http://127.0.0.1:1") as announcement:
        (file,) = directory.glob("*.json")
        file.with_suffix(".new").mkdir()
        announcement.update(Status(revision=2))
        assert "specrouter reload" in caplog.text
        assert running.find(topology)[0].status.revision == 1


# -- reload ------------------------------------------------------------------------------------------------


def test_outcome_of_a_reload_under_way_is_not_ours(directory: Path, topology: Path, hangups: list[int]) -> None:
    with Announcement(topology, "http://127.0.0.1:1") as announcement:
        # It may have read the file before the change that we want to be taken.
        announcement.update(Status(begun=1))
        results: list[object] = []
        command = threading.Thread(target=lambda: results.extend(running.reload(topology)))
        command.start()
        while not hangups:
            time.sleep(0.01)
        announcement.update(Status(begun=1, ended=1, outcome=ReloadOutcome(problems=("of the old file",))))
        announcement.update(Status(begun=2, ended=1, outcome=ReloadOutcome(problems=("of the old file",))))
        announcement.update(Status(revision=2, begun=2, ended=2, outcome=ReloadOutcome(changed="ours")))
        command.join(60)
    assert [outcome for _, outcome in results] == [ReloadOutcome(changed="ours")]


def test_system_without_descriptors_of_processes(
    directory: Path, topology: Path, hangups: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "pidfd_open", raising=False)
    with Announcement(topology, "http://127.0.0.1:1"):
        running.reload(topology, seconds=0)
    assert hangups == [signal.SIGHUP]


def test_router_that_says_nothing(directory: Path, topology: Path, hangups: list[int]) -> None:
    with Announcement(topology, "http://127.0.0.1:1"):
        ((router, outcome),) = running.reload(topology, seconds=0)
    assert hangups == [signal.SIGHUP]
    assert router.url == "http://127.0.0.1:1"
    assert outcome.problems == ("it has not said in time what came of it, its log may",)


def test_router_that_ends_over_it(directory: Path, topology: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Announcement(topology, "http://127.0.0.1:1") as announcement:
        monkeypatch.setattr(running, "_send", lambda *_: announcement.__exit__(None, None, None) or True)
        ((_, outcome),) = running.reload(topology)
    assert outcome.problems == ("it has ended",)


def test_another_command_that_hangs(directory: Path, topology: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "_COMMAND_SECONDS", 0.01)
    directory.mkdir(mode=0o700)
    with filelock.FileLock(directory / "commands.lock"), pytest.raises(SetupError, match=r"commands\.lock"):
        running.find(topology)


def test_without_hangup(directory: Path, topology: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(signal, "SIGHUP")
    with pytest.raises(SetupError, match="restart the router"):
        running.reload(topology)
