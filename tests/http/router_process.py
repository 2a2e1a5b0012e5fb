"""`specrouter serve` and `specrouter reload` as processes of their own."""

from __future__ import annotations

import json
import secrets
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx

from specrouter.running import find
from specrouter.testing import FakeServer

COMMAND = [sys.executable, "-c", "from specrouter.cli import main; main()"]

Servers = Mapping[str, FakeServer | Mapping[str, Any]]


def write_topology(
    file: Path, servers: Servers, routes: Mapping[str, Any], *, plugins: Sequence[str] = (), **listen: Any
) -> Path:
    """Write a topology of fakes or configured servers."""
    topology = {
        "version": 1,
        "listen": listen,
        "servers": {n: {"url": s.url} if isinstance(s, FakeServer) else dict(s) for n, s in servers.items()},
        "plugins": list(plugins),
        "routes": dict(routes),
    }
    file.write_text(json.dumps(topology), encoding="utf-8")
    return file


class RouterProcess:
    """A router that runs in a process. `client` asks it, `log()` is what it has written."""

    def __init__(self, topology: Path, options: Sequence[str]) -> None:
        self.client: httpx.AsyncClient
        self._errors = topology.with_suffix(f".{secrets.token_hex(4)}.log")
        command = [*COMMAND, "serve", str(topology), "--port", "0", "--log-format", "human", *options]
        with self._errors.open("wb") as errors:
            self.process = subprocess.Popen(command, stderr=errors, stdout=errors)

    def log(self) -> str:
        return self._errors.read_text(encoding="utf-8")

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    async def ended(self) -> int:
        """Wait for its end; returns the exit code, negative for a signal."""
        with anyio.fail_after(60):
            while (code := self.process.poll()) is None:
                await anyio.sleep(0.01)
        return code


@asynccontextmanager
async def served(topology: Path, *options: str) -> AsyncIterator[RouterProcess]:
    """Serve a topology, on a port of its own, until the context ends."""
    router = RouterProcess(topology, options)
    try:
        async with httpx.AsyncClient(base_url=await _url(topology, router), timeout=60) as router.client:
            yield router
    finally:
        router.process.kill()
        router.process.wait(60)


async def _url(topology: Path, router: RouterProcess) -> str:
    """Its address, as soon as it has announced itself."""
    with anyio.fail_after(60):
        while True:
            assert router.process.poll() is None, router.log()
            for found in find(topology):
                if found.pid == router.process.pid:
                    return found.url
            await anyio.sleep(0.05)


async def specrouter(*arguments: str) -> tuple[int, str, str]:
    """Run a command to its end; returns exit code, output and errors."""
    ended = await anyio.run_process([*COMMAND, *arguments], check=False)
    return ended.returncode, ended.stdout.decode(), ended.stderr.decode()
