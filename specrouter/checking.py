"""`specrouter check`: asks the servers of a topology, and tries out on them whether drafts can be verified."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio

from .config import LoadedTopology
from .errors import SpecrouterError
from .pairing import Pair
from .routing import Route, Router
from .types import ServerInfo, ServerState
from .upstream import LlamaServer


@dataclass(frozen=True, slots=True)
class ServerReport:
    """A server as it was found."""

    name: str
    url: str
    state: ServerState
    reason: str
    info: ServerInfo


@dataclass(frozen=True, slots=True)
class PairReport:
    """Whether a route's drafts can be verified on one target; `obstacle` is None when they can."""

    target: str
    obstacle: str | None
    verifier: str | None = None
    details: Mapping[str, Any] = field(default_factory=dict)
    mismatches: Sequence[str] = ()
    advice: str | None = None


@dataclass(frozen=True, slots=True)
class RouteReport:
    """A route as it would be served now; `pairs` is empty where nothing is to be drafted."""

    name: str
    served_by: str | None
    pairs: Sequence[PairReport]

    @property
    def is_fine(self) -> bool:
        """A target is up, and whatever should be drafted can be."""
        return self.served_by is not None and all(pair.obstacle is None for pair in self.pairs)


@dataclass(frozen=True, slots=True)
class Report:
    """What a live check found."""

    servers: Sequence[ServerReport]
    routes: Sequence[RouteReport]

    @property
    def is_fine(self) -> bool:
        """Nothing is left to do."""
        return all(route.is_fine for route in self.routes)


async def examine(loaded: LoadedTopology) -> Report:
    """Ask every server, try every pair. Takes a few seconds of each target's time."""
    router = Router(loaded)
    try:
        async with anyio.create_task_group() as tasks:
            for server in router.servers.values():
                tasks.start_soon(server.probe)
        # One after the other: two trials on one target would disturb each other.
        routes = [await _examine_route(route) for route in router.routes.values()]
        return Report([_server(server) for server in router.servers.values()], routes)
    finally:
        await router.aclose()


def _server(server: LlamaServer) -> ServerReport:
    return ServerReport(server.name, server.config.url, server.state, server.state_reason, server.info)


async def _examine_route(route: Route) -> RouteReport:
    up = [server.name for server in route.candidates() if server.state is ServerState.UP]
    pairs = [await _examine_pair(pair) for pair in route.pairs.values()]
    return RouteReport(route.config.name, up[0] if up else None, pairs)


async def _examine_pair(pair: Pair) -> PairReport:
    name = pair.target.name
    for server in (pair.target, pair.draft_server):
        if server is not None and server.state is not ServerState.UP:
            return PairReport(name, f"server {server.name} is {server.state.value} ({server.state_reason})")
    try:
        await pair.examine()
    except SpecrouterError as error:
        return PairReport(name, str(error))
    support = pair.support
    if support is not None and pair.verifier is not None:
        return PairReport(name, None, verifier=pair.verifier.info.name, details=_plain(support.details))
    advice = "; ".join(support.advice for support in pair.attempts.values() if support.advice) or None
    return PairReport(name, pair.obstacle, mismatches=[str(found) for found in pair.mismatches], advice=advice)


def _plain(details: Mapping[str, Any]) -> dict[str, Any]:
    """The findings that can be shown; a verifier may keep objects of its own among them."""
    return {key: value for key, value in details.items() if isinstance(value, str | int | float | bool)}
