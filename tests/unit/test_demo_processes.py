"""Servers start or say why not, and end whatever happens. The servers here are small scripts."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from specrouter.demo import processes
from specrouter.demo.processes import ManagedServer, free_port, port_is_free
from specrouter.errors import SetupError

pytestmark = pytest.mark.skipif(os.name == "nt", reason="looks at process groups")

ARGUMENTS = "import os, signal, sys, time; port = int(sys.argv[sys.argv.index('--port') + 1])\n"
HEALTHY = ARGUMENTS + (
    "from http.server import BaseHTTPRequestHandler, HTTPServer\n"
    "class Handler(BaseHTTPRequestHandler):\n"
    "    def do_GET(self):\n"
    "        self.send_response(200); self.end_headers()\n"
    "HTTPServer(('127.0.0.1', port), Handler).serve_forever()\n"
)
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + HEALTHY
DIES = ARGUMENTS + "sys.exit('error: this model is no good')"
HANGS = ARGUMENTS + "time.sleep(60)"
WITH_CHILD = "import subprocess, sys; subprocess.Popen(['sleep', '60'], stdin=0)\n" + HEALTHY


def server(script: str, tmp_path: Path, **options) -> ManagedServer:
    return ManagedServer([sys.executable, "-c", script], name="the server x", log=tmp_path / "log", **options)


def group_is_gone(pid: int) -> bool:
    """Whether a process group has no living member (a zombie is not living)."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):
            state, _, group = stat.read_text().rpartition(")")[2].split()[:3]
            if int(group) == pid and state != "Z":
                return False
    return True


needs_proc = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@needs_proc
def test_runs_as_long_as_the_block(tmp_path):
    with server(HEALTHY, tmp_path) as running:
        pid, port = running.pid, running.port
        assert running.url == f"http://127.0.0.1:{port}"
        assert not port_is_free(port)
        assert os.getpgid(pid) == pid
    assert group_is_gone(pid)
    assert port_is_free(port)


@needs_proc
@pytest.mark.parametrize("script", [STUBBORN, WITH_CHILD])
def test_nothing_survives_the_block(tmp_path, script):
    with pytest.raises(ZeroDivisionError), server(script, tmp_path, grace=0.2) as running:  # noqa: PT012
        pid = running.pid
        raise ZeroDivisionError
    assert group_is_gone(pid)


@needs_proc
@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="no core pinning")
def test_pinned_to_cores(tmp_path):
    core = min(os.sched_getaffinity(0))
    with server(HEALTHY, tmp_path, cores=[core]) as running:
        assert os.sched_getaffinity(running.pid) == {core}


def test_server_that_dies_shows_its_last_words(tmp_path):
    with pytest.raises(SetupError) as raised:
        server(DIES, tmp_path).start()
    assert "the server x ended with exit code 1 at its start" in str(raised.value)
    assert "error: this model is no good" in str(raised.value)


def test_program_that_is_not_there(tmp_path):
    with pytest.raises(SetupError, match="No such file or directory"):
        ManagedServer([str(tmp_path / "nothing")], name="the server x", log=tmp_path / "log").start()


@needs_proc
def test_hanging_server_is_killed_at_the_deadline(tmp_path):
    hanging = server(HANGS, tmp_path, deadline=0.5)
    pids = []
    spawn = hanging._spawn
    hanging._spawn = lambda: (spawn(), pids.append(hanging.pid))
    started = time.monotonic()
    with pytest.raises(SetupError, match=r"the server x is not ready after 0.5 s"):
        hanging.start()
    assert time.monotonic() - started < 5
    assert group_is_gone(pids[0])


def test_port_that_is_taken(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(SetupError, match=f"^cannot start the server x: port {port} of 127.0.0.1 is in use$"):
            server(HEALTHY, tmp_path, port=port).start()


def test_port_lost_in_a_race_is_replaced(tmp_path, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        ports = iter([taken, free_port()])
        monkeypatch.setattr(processes, "free_port", lambda: next(ports))
        with server(HEALTHY, tmp_path) as running:
            assert running.port != taken


@needs_proc
def test_restart_keeps_the_port_after_a_crash(tmp_path):
    with server(HEALTHY, tmp_path) as running:
        port, pid = running.port, running.pid
        running.kill()
        assert group_is_gone(pid)
        running.restart()
        assert running.port == port
        assert running.pid != pid


@needs_proc
@pytest.mark.parametrize("script", [HEALTHY, HANGS])
def test_cancelled_at_any_time_leaves_nothing(tmp_path, script):
    cancelled = server(script, tmp_path, deadline=30)
    pids = []

    async def run():
        async with cancelled:
            await asyncio.sleep(60)

    async def main():
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(run())
            await asyncio.sleep(0.5)
            pids.append(cancelled.pid)
            task.cancel()

    asyncio.run(main())
    assert group_is_gone(pids[0])
