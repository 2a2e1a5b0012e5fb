"""What the tests of servers that the router runs say again and again."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

import httpx
from http_support import until

from specrouter.app import make_app, serve_in_background
from specrouter.config import load_topology
from specrouter.managed.processes import port_is_free
from specrouter.routing import Router
from specrouter.running import find
from specrouter.service import Service
from specrouter.types import ServerState

PROGRAM = [sys.executable, str(Path(__file__).with_name("managed_fake.py")), "--port", "${port}"]
LONG = 30.0
"""Seconds to wait at most for what happens at once on a machine that has nothing else to do."""


class Running:
    """A router in this process."""

    def __init__(self, service: Service, client: httpx.AsyncClient) -> None:
        self.service = service
        self.client = client

    @property
    def server(self) -> Any:
        return self.service.router.servers["big"]

    async def until(self, state: ServerState, reason: str = "") -> None:
        """Wait until the server is in a state, for a reason that has these words."""
        await until(lambda: self.server.state is state and reason in self.server.state_reason, seconds=LONG)


@asynccontextmanager
async def running(file: Path) -> AsyncIterator[Running]:
    """Serve a topology in this process while the context lasts."""
    service = Service(Router(load_topology(file)), make_app)
    async with serve_in_background(service) as url, httpx.AsyncClient(base_url=url, timeout=60) as client:
        yield Running(service, client)


async def ask(client: httpx.AsyncClient, prompt: str = "hi", status: int = 200) -> str:
    """What the server says, which is the number of its process; or the message of an error."""
    response = await client.post("/v1/completions", json={"model": "fast", "prompt": prompt})
    assert response.status_code == status, response.text
    answer = response.json()
    return answer["choices"][0]["text"] if status == 200 else answer["error"]["message"]


def fixed_port() -> int:
    """A free port that no outgoing connection is given, so that it is still free a moment later."""
    return next(port for port in random.sample(range(20_000, 30_000), 1000) if port_is_free(port))


def lives(pid: str | int) -> bool:
    """Whether there is a process of that number; a zombie is none."""
    try:
        if sys.platform == "linux":
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        os.kill(int(pid), 0)
    except (ProcessLookupError, FileNotFoundError):
        return False
    return True


def told(file: Path) -> Any:
    """What the router of a topology says of its server."""
    (router,) = find(file)
    return router.status.servers["big"]


class WriteTopology(Protocol):
    """Writes a topology whose route `fast` is answered by the server `big`, which the router runs.

    `flags` are those of the fake server, `server` are keys of `big`, the others are keys of its `run`.
    """

    def __call__(self, *flags: object, server: dict[str, Any] | None = None, **run: Any) -> Path: ...
