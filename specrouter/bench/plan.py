"""What is measured: routes, the plain ones beside them, and under which conditions. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from specrouter.config import (
    Listen,
    LoadedTopology,
    PluginUse,
    RouteConfig,
    Topology,
    answers_itself,
    server_options,
)
from specrouter.config.model import Limits
from specrouter.errors import SetupError

from .prompts import Prompt

_NONE = PluginUse("none")


@dataclass(frozen=True, slots=True)
class NativeOptions:
    """llama-server's own drafting, for reference: the draft model's file, and how to start a server with it.

    `target` is the target's file where the target does not say so itself.
    """

    draft: Path
    llama_server: Path | None = None
    target: Path | None = None
    flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """What the command line says. Round trips are in milliseconds, as people say them."""

    prompts: Sequence[Prompt]
    routes: Sequence[str] = ()
    tokens: int = 128
    concurrency: Sequence[int] = (1,)
    drafts: Sequence[str] = ()
    against: str | None = None
    rtt: Sequence[float] = (0.0,)
    rtt_target: float = 0.0
    audit: bool = False
    native: NativeOptions | None = None


@dataclass(frozen=True, slots=True)
class Condition:
    """Under which a whole set of prompts is asked. Round trips are added ones, in seconds."""

    concurrency: int
    rtt: float
    rtt_target: float


@dataclass(frozen=True, slots=True)
class Measured:
    """A route to measure, and the plain one beside it, as configurations of a router."""

    route: RouteConfig
    plain: RouteConfig


def conditions(options: BenchOptions) -> list[Condition]:
    """All combinations."""
    return [
        Condition(concurrency, rtt / 1000, options.rtt_target / 1000)
        for concurrency, rtt in itertools.product(options.concurrency, options.rtt)
    ]


def measured_routes(loaded: LoadedTopology, options: BenchOptions) -> list[Measured]:
    """The routes to measure: those named, else all that draft. Raises SetupError."""
    topology = loaded.topology
    drafting = [route for route in topology.routes.values() if route.draft.name != "none"]
    # Other routes are often the plain ones beside them.
    routes = [_named(topology, name) for name in options.routes] or drafting
    against = _named(topology, options.against) if options.against is not None else None
    if not routes:
        raise SetupError(f"no route of {topology.path} declares drafts; name one, and say --draft STRATEGY")
    idle = [route.name for route in routes if route.draft.name == "none"]
    if idle and not options.drafts:
        raise SetupError(f"route {idle[0]!r} declares no drafts; say --draft STRATEGY")
    return [
        Measured(route, _plain(route if against is None else against, route.name))
        for config in routes
        for route in _variants(loaded, config, options.drafts)
    ]


def _named(topology: Topology, name: str) -> RouteConfig:
    found = topology.resolve(name)
    if found is None:
        raise SetupError(f"{topology.path} has no route {name!r}; there are {', '.join(topology.routes)}")
    return found


def _variants(loaded: LoadedTopology, config: RouteConfig, drafts: Sequence[str]) -> list[RouteConfig]:
    config = _bare(config)
    if not drafts:
        return [config]
    uses = [_strategy(loaded, config, name) for name in drafts]
    return [replace(config, name=f"{config.name}+{use.name}", draft=use) for use in uses]


def _strategy(loaded: LoadedTopology, config: RouteConfig, name: str) -> PluginUse:
    """A draft strategy with the options that the route, or else another one, gives it."""
    for route in (config, *loaded.topology.routes.values()):
        if route.draft.name == name:
            return route.draft
    info = loaded.registry.find("draft", name)
    if info is None:
        raise SetupError(f"--draft {name}: no such strategy; there are {', '.join(loaded.registry.names('draft'))}")
    required: Sequence[str] = info.cls.options_schema.get("required", ())
    if required:
        raise SetupError(f"--draft {name}: no route of the topology says its option {required[0]!r}")
    return PluginUse(name)


def _plain(config: RouteConfig, beside: str) -> RouteConfig:
    return replace(_bare(config), name=f"{beside} without drafts", draft=_NONE)


def _bare(config: RouteConfig) -> RouteConfig:
    """A route whose requests do not wait in line, and go to one of several targets as long as it is well."""
    return replace(config, limits=Limits(), aliases=(), balance="in_order")


def answering_servers(loaded: LoadedTopology, measured: Sequence[Measured]) -> set[str]:
    """The servers that may answer a request: the targets, and those that draft by themselves."""
    routes = [route for one in measured for route in (one.route, one.plain)]
    found = {name for route in routes for name in route.targets}
    for route in routes:
        info = loaded.registry.find("draft", route.draft.name)
        if info is not None and answers_itself(info.cls.options_schema):
            found.update(server_options(info.cls.options_schema, route.draft.options))
    return found


def bench_topology(loaded: LoadedTopology, measured: Sequence[Measured], urls: Mapping[str, str]) -> LoadedTopology:
    """The topology of the router that is measured; `urls` replace those of servers.

    It listens for nobody else, so it has no keys.
    """
    servers = {
        name: replace(config, url=urls.get(name, config.url)) for name, config in loaded.topology.servers.items()
    }
    routes: dict[str, Any] = {route.name: route for pair in measured for route in (pair.route, pair.plain)}
    topology = replace(loaded.topology, listen=Listen(), servers=servers, routes=routes)
    return LoadedTopology(topology, loaded.registry, ())
