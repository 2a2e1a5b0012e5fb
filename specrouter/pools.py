"""`POST /specrouter/forget`: a route's servers forget what they have said, so that answers can be compared."""

from __future__ import annotations

import weakref
from collections.abc import Iterator

from .endpoints import (
    AsciiResponse,
    Call,
    Handler,
    admitted,
    answer,
    disconnected,
    named_model,
    parse_body,
    read_body,
    require_open_key,
)
from .errors import InvalidRequest
from .forgetting import forget
from .ngram_pool import PoolSettings, find_pool
from .route import Route
from .routing import Router
from .tasks import run_until
from .types import ServerState
from .upstream import LlamaServer


def make_forget() -> Handler:
    """The handler. What it found out about servers is kept as long as they are."""
    pools = _Pools()

    async def handle(call: Call) -> None:
        require_open_key(call)
        model = named_model(parse_body(await read_body(call.request, call.router.topology.listen.max_body)))
        if model is None:
            raise InvalidRequest("`model` must be the name of a route whose servers are to forget", param="model")
        route = call.router.resolve(model, call.key)

        async def empty() -> None:
            async with admitted(call, route):
                found = [await pools.empty(call.router, server) for server in _answering(route)]
            await answer(call, AsciiResponse({"servers": found}))

        finished = await run_until(lambda: disconnected(call.request), empty)
        call.result.client_left = not finished

    return handle


def _answering(route: Route) -> list[LlamaServer]:
    """The servers that may answer for a route, as far as they are up."""
    servers = dict.fromkeys([*route.candidates(), *route.targets])
    return [server for server in servers if server.state is ServerState.UP]


class _Pools:
    def __init__(self) -> None:
        self._found: weakref.WeakKeyDictionary[LlamaServer, tuple[int, PoolSettings | None]] = (
            weakref.WeakKeyDictionary()
        )

    async def empty(self, router: Router, server: LlamaServer) -> dict[str, str]:
        """Empty the pool of a server. Raises UpstreamError."""
        # What two of them, or this and a trial, show a pool at once, neither would know again.
        async with router.inspecting[server.name]:
            pool = await self._settings(router, server)
            if pool is None:
                return {"name": server.name, "memory": "none"}
            return {"name": server.name, "memory": "emptied" if await forget(server, pool) else "kept"}

    async def _settings(self, router: Router, server: LlamaServer) -> PoolSettings | None:
        for known in _known_settings(router, server):
            return known
        epoch, pool = self._found.get(server, (-1, None))
        if epoch != server.epoch:
            epoch, pool = server.epoch, await find_pool(server)
            self._found[server] = epoch, pool
        return pool


def _known_settings(router: Router, server: LlamaServer) -> Iterator[PoolSettings]:
    """What trying out pairs has found."""
    for route in router.routes.values():
        pair = route.pairs.get(server.name)
        for support in pair.attempts.values() if pair is not None else ():
            pool = support.details.get("pool")
            if isinstance(pool, PoolSettings):
                yield pool
