"""A checked topology as immutable data. The defaults of all keys live here and nowhere else."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any


@dataclass(frozen=True, slots=True)
class PluginUse:
    """A plugin as a route names it. `options` may hold secrets and fit the plugin's `options_schema`."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)


AUTO = PluginUse("auto")
"""The router chooses a verifier or acceptance policy that the target supports."""


@dataclass(frozen=True, slots=True)
class Listen:
    """Where the router listens and whom it answers. `max_body` is in bytes."""

    host: str = "127.0.0.1"
    port: int = 8080
    api_keys: tuple[str, ...] = field(default=(), repr=False)
    cors_origins: tuple[str, ...] = ()
    max_body: int = 64 * 1024 * 1024
    allow_anonymous: bool = False


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """A llama-server. `url` is its root without a slash at the end; times are in seconds.

    `model` is the name sent upstream, None to use what the server calls itself.
    """

    name: str
    url: str
    api_key: str | None = field(default=None, repr=False)
    model: str | None = None
    connect_timeout: float = 3
    load_wait: float = 60


@dataclass(frozen=True, slots=True)
class RouteConfig:
    """A model as clients see it. `targets` are names of servers, the first healthy one answers."""

    name: str
    targets: tuple[str, ...]
    aliases: tuple[str, ...] = ()
    draft: PluginUse = PluginUse("none")
    verify: PluginUse = AUTO
    accept: PluginUse = AUTO
    tokenizer_checks: tuple[PluginUse, ...] = (PluginUse("vocabulary"),)
    on_tokenizer_mismatch: str = "plain"


@dataclass(frozen=True, slots=True)
class Topology:
    """Everything one YAML file says. Servers and routes keep the order of the file."""

    path: Path
    listen: Listen
    servers: Mapping[str, ServerConfig]
    routes: Mapping[str, RouteConfig]
    plugins: tuple[Path, ...] = ()

    def resolve(self, model: str) -> RouteConfig | None:
        """The route with that name, else the one with that alias, else None."""
        found = self.routes.get(model)
        if found is None:
            return next((route for route in self.routes.values() if model in route.aliases), None)
        return found


def build_topology(path: Path, data: Mapping[str, Any]) -> Topology:
    """The topology that checked data describes."""
    servers = {name: _server(name, given) for name, given in data["servers"].items()}
    routes = {name: _route(name, given) for name, given in data["routes"].items()}
    return Topology(
        path=path,
        listen=_listen(data.get("listen", {})),
        servers=MappingProxyType(servers),
        routes=MappingProxyType(routes),
        plugins=tuple(path.parent / file for file in data.get("plugins", [])),
    )


SIZE_PATTERN = r"^[0-9]{1,15}(KiB|MiB|GiB)?$"
_SIZES = {"": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3}


def size_in_bytes(given: int | str) -> int:
    """The bytes of a number, or of a text like "64MiB" that matches SIZE_PATTERN."""
    if isinstance(given, int):
        return given
    match = re.match(r"([0-9]+)(.*)", given)
    assert match is not None
    return int(match[1]) * _SIZES[match[2].strip()]


def base_url(url: str) -> str:
    """A server's root as it is joined with paths: without a slash at the end."""
    return url.rstrip("/")


def plugin_use(given: str | Mapping[str, Any]) -> PluginUse:
    """`{use: NAME, options: {…}}`, or the bare name."""
    if isinstance(given, str):
        return PluginUse(given)
    return PluginUse(given["use"], given.get("options", {}))


def names(given: str | Sequence[str]) -> tuple[str, ...]:
    """One name or a list of them."""
    return (given,) if isinstance(given, str) else tuple(given)


def _listen(given: Mapping[str, Any]) -> Listen:
    fields = dict(given)
    for key in ("api_keys", "cors_origins"):
        if key in fields:
            fields[key] = tuple(fields[key])
    if "max_body" in fields:
        fields["max_body"] = size_in_bytes(fields["max_body"])
    return Listen(**fields)


def _server(name: str, given: Mapping[str, Any]) -> ServerConfig:
    return ServerConfig(name=name, **{**given, "url": base_url(given["url"])})


def _route(name: str, given: Mapping[str, Any]) -> RouteConfig:
    fields = dict(given)
    fields["targets"] = names(fields.pop("target"))
    if "aliases" in fields:
        fields["aliases"] = tuple(fields["aliases"])
    for key in ("draft", "verify", "accept"):
        if key in fields:
            fields[key] = plugin_use(fields[key])
    if "tokenizer_checks" in fields:
        fields["tokenizer_checks"] = tuple(plugin_use(use) for use in fields["tokenizer_checks"])
    return RouteConfig(name=name, **fields)
