"""Real llama-servers that the router runs: the same answers after a stop and after a crash, and none is ever left."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from llama_support import ask, request_for, until

from specrouter.demo.downloads import CPU_ONLY, LlamaServerCommand
from specrouter.managed.processes import port_is_free
from specrouter.running import find

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the router runs no servers on Windows")

COMMAND = [sys.executable, "-c", "from specrouter.cli import main; main()"]
BODY = request_for("/v1/completions", "The sea is", max_tokens=8)


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("XDG_STATE_HOME", "XDG_RUNTIME_DIR"):
        folder = tmp_path / name
        folder.mkdir(mode=0o700)
        monkeypatch.setenv(name, str(folder))


@pytest.fixture
def port() -> int:
    # One that no outgoing connection is given, so that it is still free a moment later.
    return next(port for port in random.sample(range(20_000, 30_000), 1000) if port_is_free(port))


@pytest.fixture
def topology(tmp_path: Path, llama_command: LlamaServerCommand, model_file: Path, port: int):
    """A router in front of one server that it runs."""

    def write(model: Path = model_file, **run: Any) -> Path:
        flags = ["-m", str(model), "-c", "512", "-t", "1", "--port", "${port}", *CPU_ONLY]
        big = {"url": f"http://127.0.0.1:{port}", "run": {"command": [*llama_command.prefix, *flags], **run}}
        file = tmp_path / "run.yaml"
        file.write_text(json.dumps({"version": 1, "servers": {"big": big}, "routes": {"fast": {"target": "big"}}}))
        return file

    return write


@contextmanager
def served(file: Path) -> Iterator[tuple[httpx.Client, subprocess.Popen[bytes]]]:
    """A router in a process of its own."""
    process = subprocess.Popen([*COMMAND, "serve", str(file), "--port", "0"])
    try:
        until(lambda: any(found.pid == process.pid for found in find(file)), seconds=60)
        (url,) = (found.url for found in find(file) if found.pid == process.pid)
        with httpx.Client(base_url=url, trust_env=False, timeout=120) as client:
            yield client, process
    finally:
        process.kill()
        process.wait()


def pid_of(port: int) -> int | None:
    """The llama-server that was started for a port."""
    for entry in Path("/proc").glob("[0-9]*"):
        arguments = command_line(int(entry.name))
        if str(port) in arguments and "--port" in arguments:
            return int(entry.name)
    return None


def command_line(pid: int) -> list[str]:
    """The arguments of a process; empty for one that has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")[:-1]
    except (FileNotFoundError, ProcessLookupError):
        return []


def text(client: httpx.Client) -> str:
    said: str = ask(client, "/v1/completions", BODY)["choices"][0]["text"]
    return said


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_same_answer_after_a_stop_a_crash_and_a_killed_router(topology, port: int) -> None:
    file = topology(idle_stop=2, restart={"pause": 0.1})
    with served(file) as (client, router):
        first = text(client)
        until(lambda: port_is_free(port), seconds=60)
        assert text(client) == first
        killed = pid_of(port)
        assert killed is not None
        os.kill(killed, signal.SIGKILL)
        # A request at that very moment may be one that it has died of.
        until(lambda: pid_of(port) not in (None, killed), seconds=60)
        assert text(client) == first
        router.kill()
        router.wait()
    with served(file) as (client, router):
        assert text(client) == first
        router.send_signal(signal.SIGTERM)
        assert router.wait(60) == 0
        assert port_is_free(port)


def test_a_model_that_is_not_there(topology, tmp_path: Path) -> None:
    missing = tmp_path / "gone.gguf"
    file = topology(missing)
    with served(file) as (client, _):
        response = client.post("/v1/completions", json=BODY)
        assert response.status_code == 502
        assert "it ended with exit code 1: its model file is missing" in response.json()["error"]["message"]
        assert str(missing) not in response.text
    logs = subprocess.run([*COMMAND, "logs", str(file), "big"], capture_output=True, text=True, check=True).stdout
    assert str(missing) in logs
