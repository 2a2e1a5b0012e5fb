"""`specrouter check`: asks the servers of a topology, and tries out on them whether drafts can be verified."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import anyio
import anyio.to_thread

from . import running
from .config import LoadedTopology
from .errors import SpecrouterError
from .interfaces import Support
from .pairing import Pair, SelfDrafting
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
    """Whether a route's drafts can be verified on one target; `obstacle` is None when they can.

    `drafts_itself`: the target is a server that drafts by itself, if there is no obstacle. `on_mismatch` is what the
    route does about `mismatches` of the tokenizers, if there are any. `is_stopped`: there is no telling, since the
    router starts the server when it is needed.
    """

    target: str
    obstacle: str | None
    verifier: str | None = None
    details: Mapping[str, Any] = field(default_factory=dict)
    mismatches: Sequence[str] = ()
    on_mismatch: str | None = None
    advice: str | None = None
    is_stopped: bool = False
    drafts_itself: bool = False


@dataclass(frozen=True, slots=True)
class RouteReport:
    """A route as it would be served now; `pairs` is empty where nothing is to be drafted."""

    name: str
    served_by: str | None
    pairs: Sequence[PairReport]

    @property
    def is_fine(self) -> bool:
        """A target is up or started when it is needed, and whatever should be drafted can be."""
        return self.served_by is not None and all(pair.obstacle is None or pair.is_stopped for pair in self.pairs)


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
            for server in await anyio.to_thread.run_sync(_reachable, router):
                tasks.start_soon(server.probe)
        # One after the other: two trials on one target would disturb each other.
        routes = [await _examine_route(route) for route in router.routes.values()]
        return Report([_server(server) for server in router.servers.values()], routes)
    finally:
        await router.aclose()


def _reachable(router: Router) -> list[LlamaServer]:
    """The servers to ask. What is known of those that a router runs or would run, and that are not up, is recorded."""
    reachable = [server for name, server in router.servers.items() if name not in router.supervisors]
    if not router.supervisors:
        return reachable
    routers = running.find(router.topology.path)
    for name, supervisor in router.supervisors.items():
        server = router.servers[name]
        known = routers[0].status.servers.get(name) if routers else None
        if known is None:
            server.set_state(*supervisor.prospect())
            continue
        server.set_state(ServerState(known.state), known.reason)
        if known.url:
            server.move_to(known.url)
        if server.state is ServerState.UP:
            reachable.append(server)
    return reachable


def _server(server: LlamaServer) -> ServerReport:
    return ServerReport(server.name, server.url, server.state, server.state_reason, server.info)


async def _examine_route(route: Route) -> RouteReport:
    pairs = [
        await (_examine_self_drafting(pair) if isinstance(pair, SelfDrafting) else _examine_pair(pair))
        for pair in route.pairs.values()
    ]
    server = route.server_of_now()
    return RouteReport(route.config.name, None if server is None else server.name, pairs)


async def _examine_pair(pair: Pair) -> PairReport:
    name = pair.target.name
    for server in (pair.target, pair.draft_server):
        if server is not None and server.state is not ServerState.UP:
            obstacle = f"server {server.name} is {server.state.value} ({server.state_reason})"
            return PairReport(name, obstacle, is_stopped=server.state is ServerState.STOPPED)
    try:
        await pair.examine()
    except SpecrouterError as error:
        return PairReport(name, str(error))
    mismatches = [str(found) for found in pair.mismatches]
    report = PairReport(
        name, pair.obstacle, mismatches=mismatches, on_mismatch=pair.on_mismatch if mismatches else None
    )
    support = pair.support
    if support is not None and pair.verifier is not None:
        return replace(report, verifier=pair.verifier.info.name, details=_plain(support.details))
    advice = "; ".join(support.advice for support in pair.attempts.values() if support.advice) or None
    return replace(report, advice=advice)


async def _examine_self_drafting(pair: SelfDrafting) -> PairReport:
    is_stopped = pair.target.state is ServerState.STOPPED
    try:
        await pair.examine()
    except SpecrouterError as error:
        return PairReport(pair.target.name, str(error), drafts_itself=True)
    support = pair.support or Support()
    return PairReport(
        pair.target.name,
        pair.obstacle,
        verifier=pair.decoded_by,
        details=_plain(support.details),
        advice=support.advice,
        is_stopped=is_stopped,
        drafts_itself=True,
    )


def _plain(details: Mapping[str, Any]) -> dict[str, Any]:
    """The findings that can be shown; a verifier may keep objects of its own among them."""
    return {key: value for key, value in details.items() if isinstance(value, str | int | float | bool)}
