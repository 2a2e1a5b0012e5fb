"""`specrouter check`: asks the servers of a topology, and tries out on them whether drafts can be verified."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import anyio
import anyio.to_thread

from . import running
from .config import LoadedTopology
from .drafting import start_drafter
from .errors import SpecrouterError, UpstreamError
from .interfaces import StepVerifier, Support
from .measuring import TargetSpeed, measure_best_speed, measure_round_trip, measure_target
from .measuring_drafts import Answer, DraftSpeed, answers_of, measure_drafts
from .pairing import Pair, SelfDrafting
from .plugins import PluginRegistry, guard
from .predicting import STEPWISE, Measured, measured
from .route import Route
from .routing import Router
from .types import ServerInfo, ServerState
from .upstream import LlamaServer

log = logging.getLogger(__name__)

_SLOWER = 0.95
"""Speed, with drafts that are all accepted, under which a server that drafts by itself is slower, not just noisy."""

_FASTER = (
    "start it with --flash-attn off --cache-ram 0 where it drafts on an RPC worker (that saves round trips), "
    "or leave its requests to the target (draft: none)"
)


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

    `drafts_itself`: the target is a server that drafts by itself, if there is no obstacle; `loss` is there where it is
    slower at its best than a target without drafts, and says by how much. `on_mismatch` is what the route does about
    `mismatches` of the tokenizers, if there are any. `is_stopped`: there is no telling, since the router starts the
    server when it is needed. `measured` is there where that was asked for and possible, `unmeasured` says why it was
    not.
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
    loss: str | None = None
    measured: Measured | None = None
    unmeasured: str | None = None


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


async def examine(
    loaded: LoadedTopology, doing: Callable[[str], None] = lambda _: None, *, measure: bool = False
) -> Report:
    """Ask every server, try every pair. Takes a few seconds of each target's time.

    With `measure`, also measure what drafts would bring, which takes some 300 tokens more. `doing` is told what is
    being tried out or measured.
    """
    router = Router(loaded)
    meter = _Meter(loaded.registry, lambda what: doing(f"measuring {what}")) if measure else None
    try:
        async with anyio.create_task_group() as tasks:
            for server in await anyio.to_thread.run_sync(_reachable, router):
                tasks.start_soon(server.probe)
        # One after the other: two trials on one target would disturb each other.
        routes = [await _examine_route(route, meter, doing) for route in router.routes.values()]
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


async def _examine_route(route: Route, meter: _Meter | None, doing: Callable[[str], None]) -> RouteReport:
    pairs = []
    for pair in route.pairs.values():
        doing(f"trying out the route {route.config.name} on {pair.target.name}")
        report = await (_examine_self_drafting(pair) if isinstance(pair, SelfDrafting) else _examine_pair(pair))
        pairs.append(report if meter is None else await meter.measure(route, pair, report))
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
    report = PairReport(
        pair.target.name,
        pair.obstacle,
        verifier=pair.decoded_by,
        details=_plain(support.details),
        advice=support.advice,
        is_stopped=is_stopped,
        drafts_itself=True,
    )
    alone = next((other for other in pair.others if other.state is ServerState.UP), None)
    return report if alone is None or pair.obstacle is not None else await _compared(report, pair.target, alone)


async def _compared(report: PairReport, drafting: LlamaServer, alone: LlamaServer) -> PairReport:
    """The report with how fast a server that drafts by itself is at its best, as far as that can be found out."""
    try:
        best = await measure_best_speed(drafting, alone)
    except UpstreamError as error:
        log.debug("how fast %s is beside %s could not be measured: %s", drafting.name, alone.name, error)
        return report
    if best is None:
        return report
    report = replace(report, details={**report.details, "best_speed": round(best, 2)})
    if best >= _SLOWER:
        return report
    loss = f"even with drafts that are all accepted, only x{best:.2f} of the speed of {alone.name}"
    return replace(report, loss=loss, advice=_FASTER)


class _Meter:
    """Measures pairs. What it finds out about a target is good for all its pairs."""

    def __init__(self, registry: PluginRegistry, doing: Callable[[str], None]) -> None:
        self._registry = registry
        self._doing = doing
        self._speeds: dict[str, TargetSpeed] = {}
        self._answers: dict[str, list[Answer]] = {}
        self._stepwise: dict[str, Support] = {}

    async def measure(self, route: Route, pair: Pair, report: PairReport) -> PairReport:
        """The report with what was measured on its pair, or why nothing was."""
        unmeasured = _unmeasured(pair)
        if unmeasured is not None:
            return replace(report, unmeasured=unmeasured)
        target, draft_server = pair.target, pair.draft_server
        try:
            speed = await self._speed(target)
            attempts = {**pair.attempts, **await self._fanout(pair)}
            drafts = await self._drafts(route, pair)
            distance = 0.0 if draft_server is None else await measure_round_trip(draft_server)
        except SpecrouterError as error:
            return replace(report, unmeasured=str(error))
        found = measured(
            speed,
            drafts,
            draft_round_trip=distance,
            attempts=attempts,
            target_info=target.info,
            draft_info=None if draft_server is None else draft_server.info,
        )
        return replace(report, measured=found)

    async def _speed(self, target: LlamaServer) -> TargetSpeed:
        if target.name not in self._speeds:
            self._speeds[target.name] = await measure_target(target, self._doing)
        return self._speeds[target.name]

    async def _drafts(self, route: Route, pair: Pair) -> DraftSpeed:
        target = pair.target
        if target.name not in self._answers:
            self._answers[target.name] = await answers_of(target, self._doing)
        return await measure_drafts(
            target,
            self._answers[target.name],
            partial(start_drafter, route, pair),
            route=route.config.name,
            vocabulary_limit=pair.vocabulary_limit,
            doing=self._doing,
        )

    async def _fanout(self, pair: Pair) -> Mapping[str, Support]:
        """What fanout finds out about the target, where the route has not tried it and it is installed."""
        info, name = self._registry.find("verify", STEPWISE), pair.target.name
        if STEPWISE in pair.attempts or info is None or not issubclass(info.cls, StepVerifier):
            return {}
        if name not in self._stepwise:
            self._doing(f"what stepwise verification costs {name}")
            with guard(info):
                self._stepwise[name] = await info.cls({}, {}).inspect(pair.target)
        return {STEPWISE: self._stepwise[name]}


def _unmeasured(pair: Pair) -> str | None:
    """Why a pair cannot be measured, None where it can."""
    if isinstance(pair, SelfDrafting):
        return "it drafts by itself: `specrouter bench` measures what that brings"
    for server in (pair.target, pair.draft_server):
        if server is not None and server.state is not ServerState.UP:
            return f"server {server.name} is {server.state.value}"
    if pair.mismatches and pair.crosses_as_text is None:
        return "the tokenizers differ"
    return pair.fault


def _plain(details: Mapping[str, Any]) -> dict[str, Any]:
    """The findings that can be shown; a verifier may keep objects of its own among them."""
    return {key: value for key, value in details.items() if isinstance(value, str | int | float | bool)}
