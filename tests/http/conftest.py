"""The router on a real socket before fake servers on real sockets."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from http_support import ANSWER, Pair, StartFake, StartRouter, until_known
from managed_support import PROGRAM, WriteTopology
from router_process import write_topology

from specrouter.app import serve_in_background
from specrouter.testing import FakeServer, NgramPool, ToyModel


@pytest.fixture(autouse=True)
def runtime(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A runtime directory of the user's, where `specrouter serve` leaves word of itself."""
    folder = tmp_path_factory.mktemp("runtime")
    folder.chmod(0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    return folder


@pytest.fixture
async def stack(anyio_backend: str) -> AsyncIterator[AsyncExitStack]:
    """What was started last ends first."""
    async with AsyncExitStack() as stack:
        yield stack


@pytest.fixture
def fake(stack: AsyncExitStack) -> StartFake:
    """See StartFake."""

    async def start(says: str | ToyModel = ANSWER, **options: Any) -> FakeServer:
        model = says if isinstance(says, ToyModel) else ToyModel(says)
        return await stack.enter_async_context(FakeServer(model, **options))

    return start


@pytest.fixture
def router(stack: AsyncExitStack, tmp_path: Path) -> StartRouter:
    """See StartRouter."""

    async def start(
        servers: Mapping[str, FakeServer | Mapping[str, Any]],
        routes: Mapping[str, Any] | None = None,
        *,
        wait: bool = True,
        plugins: Sequence[str] = (),
        **listen: Any,
    ) -> httpx.AsyncClient:
        topology = {
            "version": 1,
            "listen": listen,
            "servers": {n: {"url": s.url} if isinstance(s, FakeServer) else dict(s) for n, s in servers.items()},
            "plugins": list(plugins),
            "routes": routes or {"fast": {"target": list(servers), "aliases": ["quick/one"]}},
        }
        file = tmp_path / "topology.yaml"
        file.write_text(json.dumps(topology), encoding="utf-8")
        url = await stack.enter_async_context(serve_in_background(file))
        keys = listen.get("api_keys")
        headers = {"authorization": f"Bearer {keys[0]}"} if keys else {}
        client = await stack.enter_async_context(httpx.AsyncClient(base_url=url, headers=headers, timeout=20))
        if wait:
            await until_known(client)
        return client

    return start


@pytest.fixture
async def pair(fake: StartFake) -> Pair:
    """See Pair. A step of the target takes 5 ms."""
    target = await fake(pool=NgramPool())
    target.step_seconds = 0.005
    return Pair(target, await fake())


@pytest.fixture
def state_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of logs of servers, and of what is needed to find leftovers."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


@pytest.fixture
def topology(tmp_path: Path, state_folder: Path) -> WriteTopology:
    """See WriteTopology."""

    def write(*flags: object, server: dict[str, Any] | None = None, **run: Any) -> Path:
        big = {"run": {"command": [*PROGRAM, *flags], **run}, **(server or {})}
        return write_topology(tmp_path / "run.yaml", {"big": big}, {"fast": {"target": "big"}})

    return write
