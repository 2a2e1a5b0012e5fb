"""From a topology to the things that answer: servers, routes with their plugins, and who answers a request."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import anyio
import anyio.abc

from . import health
from .config import LoadedTopology
from .config.model import PluginUse, RouteConfig
from .errors import DraftRefused, PluginError, UnknownModel
from .formats import obstacle
from .interfaces import AcceptancePolicy, DraftStrategy, NativeVerifier, TokenizerCheck
from .pairing import Pair
from .plugins import Bound, PluginRegistry, guard
from .sampling import sampling_of
from .types import Decoding, ServerState
from .upstream import LlamaServer

log = logging.getLogger(__name__)

_PREFERENCE = {ServerState.UP: 0, ServerState.UNKNOWN: 0, ServerState.LOADING: 1, ServerState.DOWN: 2}


@dataclass(frozen=True, slots=True)
class Route:
    """One model name that clients may ask for, with everything that answers it."""

    config: RouteConfig
    targets: Sequence[LlamaServer]
    strategy: Bound[DraftStrategy]
    policies: Sequence[Bound[AcceptancePolicy]]
    pairs: Mapping[str, Pair]

    def candidates(self) -> list[LlamaServer]:
        """The targets in the order in which to try them: as declared, those that are not well last."""
        return sorted(self.targets, key=lambda server: _PREFERENCE[server.state])

    def decide(self, target: LlamaServer, path: str, body: Mapping[str, Any]) -> Decoding:
        """How a request is decoded on this target, from what is known now.

        Raises DraftRefused where the route says so.
        """
        if not self.drafts:
            return Decoding()
        pair = self.pairs[target.name]
        if pair.mismatches and self.config.on_tokenizer_mismatch == "refuse":
            raise DraftRefused(f"route {self.config.name!r} does not serve without drafting: {pair.obstacle}")
        reason = obstacle(path, body) or self._strategy_obstacle() or pair.obstacle or self._policy_obstacle(body)
        if reason is not None or pair.verifier is None:
            return Decoding(reason=reason)
        return Decoding(verifier=pair.verifier.info.name)

    @property
    def drafts(self) -> bool:
        """Whether the route declares drafting at all."""
        return bool(self.pairs)

    def _strategy_obstacle(self) -> str | None:
        try:
            with guard(self.strategy.info):
                return self.strategy.plugin.available()
        except PluginError as error:
            log.exception("%s", error)
            return str(error)

    def _policy_obstacle(self, body: Mapping[str, Any]) -> str | None:
        # The target's own sampler accepts, so what a policy must be is lossless for this sampling.
        sampling = sampling_of(body)
        try:
            for policy in self.policies:
                with guard(policy.info):
                    if policy.plugin.is_lossless and policy.plugin.covers(sampling):
                        return None
        except PluginError as error:
            log.exception("%s", error)
            return str(error)
        if not any(policy.info.is_lossless for policy in self.policies):
            return "the acceptance policy is not lossless, the target's own sampler is"
        return "the acceptance policy does not cover this sampling"


class Router:
    """Servers and routes of one topology, and the background tasks that keep their state true."""

    def __init__(self, loaded: LoadedTopology) -> None:
        self.topology = loaded.topology
        self.started = time.time()
        self.servers = {name: LlamaServer(config) for name, config in self.topology.servers.items()}
        self.routes = {name: self._route(config, loaded.registry) for name, config in self.topology.routes.items()}

    def resolve(self, model: str | None) -> Route:
        """The route for a request's `model`. Without one: the only route there is, or the one called `default`.

        Raises UnknownModel, which names the known ones.
        """
        known = ", ".join(sorted(self.routes))
        if model is None and len(self.routes) == 1:
            return next(iter(self.routes.values()))
        config = self.topology.resolve("default" if model is None else model)
        if config is None and model is None:
            raise UnknownModel(f"the request names no model and no route is called 'default'; models here: {known}")
        if config is None:
            raise UnknownModel(f"model {model!r} is not served here; models here: {known}")
        return self.routes[config.name]

    async def watch(self, tasks: anyio.abc.TaskGroup) -> None:
        """Start the background tasks in `tasks`; they run until its scope is cancelled."""
        for server in self.servers.values():
            tasks.start_soon(health.watch, server)
        inspecting = {name: anyio.Lock() for name in self.servers}
        for route in self.routes.values():
            for pair in route.pairs.values():
                tasks.start_soon(pair.watch, inspecting[pair.target.name])

    async def aclose(self) -> None:
        """Close all upstream connections."""
        for server in self.servers.values():
            await server.aclose()

    def _route(self, config: RouteConfig, registry: PluginRegistry) -> Route:
        strategy: Bound[DraftStrategy] = self._bind("draft", config.draft, registry)
        targets = [self.servers[name] for name in config.targets]
        verifiers: Sequence[Bound[NativeVerifier]] = self._bind_all("verify", config.verify, registry)
        checks: list[Bound[TokenizerCheck]] = [
            self._bind("tokenizer_check", use, registry) for use in config.tokenizer_checks
        ]
        # The strategy `none` is what a route without `draft` has: nothing to pair.
        pairs = {}
        if config.draft.name != "none":
            draft_server, fault = _draft_server(strategy)
            pairs = {target.name: Pair(target, draft_server, verifiers, checks, fault) for target in targets}
        return Route(config, targets, strategy, self._bind_all("accept", config.accept, registry), pairs)

    def _bind_all(self, kind: str, use: PluginUse, registry: PluginRegistry) -> list[Bound[Any]]:
        """`auto` stands for every installed plugin of the kind that needs no options, ours first."""
        if use.name != "auto":
            return [self._bind(kind, use, registry)]
        found = [info for info in registry if info.kind == kind and info.is_lossless]
        return [self._bind(kind, PluginUse(info.name, {}), registry) for info in found]

    def _bind(self, kind: str, use: PluginUse, registry: PluginRegistry) -> Bound[Any]:
        info = registry.find(kind, use.name)
        assert info is not None, "the topology was checked"
        try:
            with guard(info):
                return Bound(info, info.cls(use.options, self.servers))
        except PluginError as error:
            if isinstance(error.__cause__, ValueError):
                raise PluginError(f"{info} does not take its options: {error.__cause__}") from error
            raise


def _draft_server(strategy: Bound[DraftStrategy]) -> tuple[LlamaServer | None, str | None]:
    """The server a strategy drafts with, or what was wrong when it was asked."""
    try:
        with guard(strategy.info):
            return strategy.plugin.draft_server(), None
    except PluginError as error:
        log.exception("%s", error)
        return None, str(error)
