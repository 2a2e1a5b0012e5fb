"""From a topology to the things that answer: its servers, and its routes with their plugins."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import anyio

from . import health
from .access import Access
from .balance import Balancer
from .binding import Origin, PluginServers, bind, plugin_uses
from .config import LoadedTopology
from .config.model import ApiKey, RouteConfig, ServerConfig
from .errors import PluginError, SpecrouterError, UnknownModel
from .interfaces import DraftStrategy, TokenizerCheck, Verifier
from .limits import Gate
from .managed.supervisor import Supervisor
from .pairing import Pair, SelfDrafting
from .plugins import Bound, PluginRegistry, guard
from .route import Route
from .tokenizers import Comparisons
from .upstream import LlamaServer

log = logging.getLogger(__name__)


class Router:
    """Servers and routes of one topology.

    `log_prompts` says whether the log has what users write.
    """

    def __init__(self, loaded: LoadedTopology, previous: Router | None = None, *, log_prompts: bool = False) -> None:
        """Make everything anew, or take over from the router of the `previous` topology whatever has not changed.

        `previous` is left as it is and may go on answering; see `take_over`. Raises PluginError.
        """
        self.topology = loaded.topology
        self.log_prompts: bool = log_prompts if previous is None else previous.log_prompts
        self.started: float = time.time() if previous is None else previous.started
        self.access: Access = Access(self.topology.listen.api_keys, None if previous is None else previous.access)
        self.servers = {name: _server(config, previous) for name, config in self.topology.servers.items()}
        self.supervisors = {
            name: _supervisor(server, previous)
            for name, server in self.servers.items()
            if server.config.run is not None
        }
        self.inspecting = {name: anyio.Lock() for name in self.servers}
        self._comparisons = Comparisons()
        if previous is not None:
            kept = [name for name in self.servers if previous.servers.get(name) is self.servers[name]]
            self.inspecting |= {name: previous.inspecting[name] for name in kept}
        self._origins: dict[str, Origin] = {}
        self.routes = {
            name: self._route(config, loaded.registry, previous) for name, config in self.topology.routes.items()
        }

    def open_to(self, key: ApiKey | None) -> Mapping[str, Route]:
        """The routes that a key opens, by name."""
        if key is None or key.routes is None:
            return self.routes
        return {name: route for name, route in self.routes.items() if name in key.routes}

    def resolve(self, model: str | None, key: ApiKey | None) -> Route:
        """The route for a request's `model`. Without one: the only route there is, or the one called `default`.

        Raises UnknownModel, which names the known ones. To a key, routes that it does not open do not exist.
        """
        routes = self.open_to(key)
        known = ", ".join(sorted(routes)) or "none"
        if model is None and len(routes) == 1:
            return next(iter(routes.values()))
        config = self.topology.resolve("default" if model is None else model)
        if config is not None and config.name in routes:
            return routes[config.name]
        if model is None:
            raise UnknownModel(f"the request names no model and no route is called 'default'; models here: {known}")
        raise UnknownModel(f"model {model!r} is not served here; models here: {known}")

    def take_over(self) -> None:
        """From now on, plugins and processes that were kept see the servers of this topology."""
        for origin in self._origins.values():
            origin.servers.move_to(self.servers)
        for name, supervisor in self.supervisors.items():
            supervisor.move_to(self.servers[name])

    def watches(self) -> list[tuple[object, Callable[[], Awaitable[None]]]]:
        """Every server (or who runs it), draft strategy and pair, and what has to run to keep its state true."""
        pairs = [pair for route in self.routes.values() for pair in route.pairs.values()]
        strategies = [strategy for route in self.routes.values() for strategy in route.strategy.all()]
        return [
            *(
                (server, partial(health.watch, server))
                for server in self.servers.values()
                if server.name not in self.supervisors
            ),
            *((supervisor, supervisor.watch) for supervisor in self.supervisors.values()),
            *((strategy.plugin, partial(_watch_strategy, strategy)) for strategy in strategies),
            *((pair, partial(pair.watch, self.inspecting[pair.target.name])) for pair in pairs),
        ]

    async def aclose(self) -> None:
        """Close all upstream connections."""
        for server in self.servers.values():
            await server.aclose()

    def made_anew(self, previous: Router) -> list[str]:
        """The routes that say what they said, but draft with new plugins: because those or a server have changed."""
        return [
            name
            for name, route in self.routes.items()
            if route.drafts
            and previous.topology.routes.get(name) == route.config
            and previous._origins[name] is not self._origins[name]
        ]

    def _route(self, config: RouteConfig, registry: PluginRegistry, previous: Router | None) -> Route:
        uses = plugin_uses(config, registry)
        targets = [self.servers[name] for name in config.targets]
        gate, balancer = Gate(config.limits, f"the model {config.name!r}"), Balancer(targets)
        if previous is not None and config.name in previous.routes:
            old, origin = previous.routes[config.name], previous._origins[config.name]
            if old.config.limits == config.limits:
                # Requests that came before still count.
                gate = old.gate
            if old.targets == targets:
                balancer = old.balancer
                if origin.uses == uses and origin.servers.fit(self.servers):
                    self._origins[config.name] = origin
                    return replace(old, config=config, gate=gate)
        seen = PluginServers(self.servers)
        self._origins[config.name] = Origin(uses, seen)
        plugins = {kind: [bind(use, seen) for use in uses[kind]] for kind in uses}
        pairs = _pairs(config, targets, plugins, self._comparisons)
        return Route(config, targets, plugins["draft"][0], plugins["accept"], pairs, gate, balancer)


def _server(config: ServerConfig, previous: Router | None) -> LlamaServer:
    kept = None if previous is None else previous.servers.get(config.name)
    return kept if kept is not None and kept.config == config else LlamaServer(config)


def _supervisor(server: LlamaServer, previous: Router | None) -> Supervisor:
    """Who runs a server. With the same command at the same address, the process of before goes on."""
    run = server.config.run
    assert run is not None
    known = [] if previous is None else list(previous.supervisors.values())
    for supervisor in known:
        if supervisor.name == server.name and supervisor.fits(run, server.config.url):
            server.runner = supervisor
            return supervisor
    predecessors = [
        supervisor
        for supervisor in known
        if supervisor.name == server.name or (server.config.url and supervisor.server.config.url == server.config.url)
    ]
    server.runner = supervisor = Supervisor(server, run, predecessors)
    return supervisor


async def _watch_strategy(strategy: Bound[DraftStrategy]) -> None:
    """What a strategy does in the background. Its faults are its own: it is asked on without."""
    try:
        with guard(strategy.info):
            await strategy.plugin.watch()
    except SpecrouterError as error:
        log.exception("the watch of %s has ended: %s", strategy.info, error)


def _pairs(
    config: RouteConfig,
    targets: Sequence[LlamaServer],
    plugins: Mapping[str, Sequence[Bound[Any]]],
    comparisons: Comparisons,
) -> Mapping[str, Pair]:
    # The strategy `none` is what a route without `draft` has: nothing to pair.
    if config.draft.name == "none":
        return {}
    verifiers: Sequence[Bound[Verifier]] = plugins["verify"]
    checks: Sequence[Bound[TokenizerCheck]] = plugins["tokenizer_check"]
    strategy: Bound[DraftStrategy] = plugins["draft"][0]
    answering, draft_server, fault = _servers_of(strategy)
    on_mismatch = config.on_tokenizer_mismatch
    if answering is not None:
        others = [target for target in targets if target is not answering]
        return {answering.name: SelfDrafting(answering, None, (), (), comparisons, strategy=strategy, others=others)}
    return {
        target.name: Pair(target, draft_server, verifiers, checks, comparisons, on_mismatch, fault)
        for target in targets
    }


def _servers_of(strategy: Bound[DraftStrategy]) -> tuple[LlamaServer | None, LlamaServer | None, str | None]:
    """The server that drafts by itself, the one a strategy drafts with, and what was wrong when it was asked."""
    try:
        with guard(strategy.info):
            return strategy.plugin.answering_server(), strategy.plugin.draft_server(), None
    except PluginError as error:
        log.exception("%s", error)
        return None, None, str(error)
