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

from specrouter.app import serve_in_background
from specrouter.testing import FakeServer, NgramPool, ToyModel


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
