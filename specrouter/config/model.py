"""A checked topology as immutable data. The defaults of all keys live here and nowhere else."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from .document import KeyPath


@dataclass(frozen=True, slots=True)
class PluginUse:
    """A plugin as a route names it. `options` may hold secrets and fit the plugin's `options_schema`."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)


AUTO = PluginUse("auto")
"""The router chooses a verifier or acceptance policy that the target supports."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How many requests are answered at once, how many more may wait for that, and for how many seconds."""

    concurrent: int | None = None
    queued: int = 64
    wait: float = 60


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key that clients may use. `name` stands for it in logs; `routes` are those it opens, None for all."""

    name: str
    secret: str = field(repr=False)
    routes: tuple[str, ...] | None = None
    limits: Limits = Limits()


@dataclass(frozen=True, slots=True)
class Listen:
    """Where the router listens and whom it answers. Sizes are in bytes, times in seconds.

    `client_timeout` is how long a client may keep the router waiting: for the rest of a request, or for room to
    send an answer. `shutdown_wait` is how long running answers may take when the router is stopped.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    api_keys: tuple[ApiKey, ...] = ()
    allow_anonymous: bool = False
    allowed_hosts: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()
    max_body: int = 64 * 1024 * 1024
    max_headers: int = 64 * 1024
    client_timeout: float = 60
    shutdown_wait: float = 10


@dataclass(frozen=True, slots=True)
class Restart:
    """Seconds to wait before a server is started again, the first time that it failed and at most."""

    pause: float = 1
    longest_pause: float = 60


@dataclass(frozen=True, slots=True)
class RunConfig:
    """How the router runs a server itself. Commands are programs with their arguments, times are in seconds.

    `topology` is the file that says so; what is relative in a command begins beside it. `start` is `on_demand` or
    `at_once`. `idle_stop`: the server is stopped when nobody has used it for so long, None for never. While any of the
    `workers` (`host:port`) is away, the command `without_workers` runs instead.
    """

    topology: Path
    command: tuple[str, ...] = field(repr=False)
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    start: str = "on_demand"
    ready_timeout: float = 600
    idle_stop: float | None = None
    restart: Restart = Restart()
    workers: tuple[str, ...] | None = None
    without_workers: tuple[str, ...] | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """A llama-server. `url` is its root without a slash at the end; times are in seconds.

    `run` is given where the router runs the server itself; then the `url` may be empty, and a free port is chosen.
    `model` is the name sent upstream, None to use what the server calls itself. A server that takes longer than
    `first_byte_timeout` to begin an answer, or pauses within one for longer than `idle_timeout`, is given up; None
    waits for ever.
    """

    name: str
    url: str
    api_key: str | None = field(default=None, repr=False)
    model: str | None = None
    connect_timeout: float = 3
    load_wait: float = 60
    first_byte_timeout: float | None = None
    idle_timeout: float | None = None
    run: RunConfig | None = None


@dataclass(frozen=True, slots=True)
class RouteConfig:
    """A model as clients see it. `targets` are names of servers; `balance` says which of them answers.

    `in_order`: the first healthy one. `least_busy`: they are replicas, a conversation stays where its cache is.
    """

    name: str
    targets: tuple[str, ...]
    balance: str = "in_order"
    aliases: tuple[str, ...] = ()
    limits: Limits = Limits()
    draft: PluginUse = PluginUse("none")
    verify: PluginUse = AUTO
    accept: PluginUse = AUTO
    tokenizer_checks: tuple[PluginUse, ...] = (PluginUse("vocabulary"), PluginUse("probe_text"))
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


def build_topology(path: Path, data: Mapping[str, Any], key_files: Mapping[KeyPath, str]) -> Topology:
    """The topology that checked data describes. `key_files`: where data names a file with a key → that key."""
    servers = {name: _server(path, name, given, key_files) for name, given in data["servers"].items()}
    routes = {name: _route(name, given) for name, given in data["routes"].items()}
    return Topology(
        path=path,
        listen=_listen(data.get("listen", {}), key_files),
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


PORT_VARIABLE = "${port}"
"""Stands in a command for the port of its server."""

DURATION_PATTERN = r"^[0-9]{1,6}(s|m|h|d)$"
_DURATIONS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def seconds_of(given: float | str) -> float:
    """The seconds of a number, or of a text like "30m" that matches DURATION_PATTERN."""
    return int(given[:-1]) * _DURATIONS[given[-1]] if isinstance(given, str) else given


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


def default_key_name(index: int) -> str:
    """What a key without a name is called, by its position in `listen.api_keys`."""
    return f"key {index + 1}"


def _listen(given: Mapping[str, Any], key_files: Mapping[KeyPath, str]) -> Listen:
    fields = dict(given)
    keys = fields.get("api_keys", [])
    fields["api_keys"] = tuple(_api_key(index, key, key_files) for index, key in enumerate(keys))
    for key in ("allowed_hosts", "cors_origins"):
        if key in fields:
            fields[key] = tuple(fields[key])
    for key in ("max_body", "max_headers"):
        if key in fields:
            fields[key] = size_in_bytes(fields[key])
    return Listen(**fields)


def _api_key(index: int, given: str | Mapping[str, Any], key_files: Mapping[KeyPath, str]) -> ApiKey:
    if isinstance(given, str):
        return ApiKey(default_key_name(index), given)
    return ApiKey(
        name=given["name"],
        secret=given["key"] if "key" in given else key_files["listen", "api_keys", index, "key_file"],
        routes=tuple(given["routes"]) if "routes" in given else None,
        limits=Limits(**given.get("limits", {})),
    )


def _server(path: Path, name: str, given: Mapping[str, Any], key_files: Mapping[KeyPath, str]) -> ServerConfig:
    fields = {**given, "url": base_url(given.get("url", ""))}
    if "run" in fields:
        fields["run"] = _run(path, fields["run"])
    if fields.pop("api_key_file", None) is not None:
        fields["api_key"] = key_files["servers", name, "api_key_file"]
    return ServerConfig(name=name, **fields)


def _run(path: Path, given: Mapping[str, Any]) -> RunConfig:
    fields = {**given, "command": tuple(given["command"])}
    if "workers" in fields:
        fields["workers"] = tuple(fields["workers"])
    for key in ("ready_timeout", "idle_stop"):
        if key in fields:
            fields[key] = seconds_of(fields[key])
    if "restart" in fields:
        fields["restart"] = Restart(**{key: seconds_of(value) for key, value in fields["restart"].items()})
    if "without_workers" in fields:
        fields["without_workers"] = tuple(fields["without_workers"]["command"])
    return RunConfig(topology=path.absolute(), **fields)


def _route(name: str, given: Mapping[str, Any]) -> RouteConfig:
    fields = dict(given)
    fields["targets"] = names(fields.pop("target"))
    if "aliases" in fields:
        fields["aliases"] = tuple(fields["aliases"])
    if "limits" in fields:
        fields["limits"] = Limits(**fields["limits"])
    for key in ("draft", "verify", "accept"):
        if key in fields:
            fields[key] = plugin_use(fields[key])
    if "tokenizer_checks" in fields:
        fields["tokenizer_checks"] = tuple(plugin_use(use) for use in fields["tokenizer_checks"])
    return RouteConfig(name=name, **fields)
