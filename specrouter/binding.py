"""From the plugins that a route names to their instances, and whether those can be kept when the topology changes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .config.document import KeyPath
from .config.model import PluginUse, RouteConfig, plugin_use
from .config.nested import nested_uses, replaced, value_at
from .errors import PluginError
from .guarded import GuardedStrategy
from .interfaces import StepVerifier
from .plugins import Bound, PluginInfo, PluginRegistry, guard
from .upstream import LlamaServer


@dataclass(frozen=True, slots=True)
class PluginOfRoute:
    """A plugin that a route uses, its options, and the draft strategies that they name, by where they stand."""

    info: PluginInfo
    options: Mapping[str, Any] = field(repr=False)
    strategies: Mapping[KeyPath, PluginOfRoute] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Origin:
    """What a route's plugins were made from. While that is the same, they and what they have learned are kept."""

    uses: Mapping[str, Sequence[PluginOfRoute]]
    servers: PluginServers


class PluginServers(Mapping[str, LlamaServer]):
    """The servers of the topology for one route's plugins. Notes which of them they asked for."""

    def __init__(self, servers: Mapping[str, LlamaServer]) -> None:
        self._servers = servers
        self._names: set[str] = set()
        self._all = False

    def __getitem__(self, name: str) -> LlamaServer:
        self._names.add(name)
        return self._servers[name]

    def __iter__(self) -> Iterator[str]:
        self._all = True
        return iter(self._servers)

    def __len__(self) -> int:
        self._all = True
        return len(self._servers)

    def fit(self, servers: Mapping[str, LlamaServer]) -> bool:
        """Whether what the plugins have seen is the same among these servers."""
        names = {*self._servers, *servers} if self._all else set(self._names)
        return all(self._servers.get(name) is servers.get(name) for name in names)

    def move_to(self, servers: Mapping[str, LlamaServer]) -> None:
        """From now on, these are the servers."""
        self._servers = servers


def plugin_uses(config: RouteConfig, registry: PluginRegistry) -> Mapping[str, Sequence[PluginOfRoute]]:
    """The plugins of a route by kind."""
    return {
        "draft": _named("draft", config.draft, registry),
        "verify": _named("verify", config.verify, registry),
        "accept": _named("accept", config.accept, registry),
        "tokenizer_check": [
            use for given in config.tokenizer_checks for use in _named("tokenizer_check", given, registry)
        ],
    }


def _named(kind: str, use: PluginUse, registry: PluginRegistry) -> list[PluginOfRoute]:
    """`auto` stands for every installed plugin of the kind that needs no options, ours first."""
    if use.name == "auto":
        # A target that verifies by itself does it in one pass: asking it step by step is what is left otherwise.
        found = [info for info in registry if info.kind == kind and info.is_lossless]
        return [PluginOfRoute(info, {}) for info in sorted(found, key=lambda info: issubclass(info.cls, StepVerifier))]
    info = registry.find(kind, use.name)
    assert info is not None, "the topology was checked"
    nested = {
        path: _named("draft", plugin_use(value_at(use.options, path)), registry)[0]
        for path in nested_uses(info.cls.options_schema, use.options)
    }
    return [PluginOfRoute(info, use.options, nested)]


def bind(use: PluginOfRoute, servers: Mapping[str, LlamaServer]) -> Bound[Any]:
    """Make the plugin. Raises PluginError."""
    parts = {path: bind(nested, servers) for path, nested in use.strategies.items()}
    strategies = {path: GuardedStrategy(part) for path, part in parts.items()}
    try:
        with guard(use.info):
            plugin = use.info.cls(replaced(use.options, strategies), servers)
            return Bound(use.info, plugin, tuple(parts.values()))
    except PluginError as error:
        if isinstance(error.__cause__, ValueError):
            raise PluginError(f"{use.info} does not take its options: {error.__cause__}") from error
        raise
