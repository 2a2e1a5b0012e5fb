"""`specrouter commands`: the command lines with which the servers of a route are started, from its topology."""

from __future__ import annotations

import shlex
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import anyio

from .binding import PluginOfRoute, plugin_uses
from .config import LoadedTopology, RouteConfig, ServerConfig, answers_itself, server_options
from .config.addresses import ip_address
from .errors import SetupError
from .ngram_pool import FLAGS
from .types import ServerInfo
from .upstream import LlamaServer

_TARGET_FILE, _DRAFT_FILE = "TARGET.gguf", "DRAFT.gguf"

_WORKER = (
    "The draft model is computed here; its file is on the other machine. Both need the same build of llama.cpp.",
    "The RPC protocol has no authentication and no encryption, and is not hardened: whoever reaches this port may do",
    "anything to this machine. Let it be reached in a network that you trust, or through a tunnel, and nowhere else.",
)
_DEVICE = (
    "--device: where the target itself is computed. `none` is the CPU; `llama-server --list-devices` shows GPUs.",
    "Without it, layers of the target would go to the RPC workers, too.",
)
_BACKTRACE = (
    "GGML_NO_BACKTRACE: when a worker goes away, llama-server aborts. With this it does so at once, and the router",
    "lets another server go on with the answer.",
)
_SAMPLING = (
    "Should a worker crash or run out of memory when drafting begins, add --no-spec-draft-backend-sampling: draft",
    "tokens are then chosen on this machine.",
)
_DISTANCE = (
    "Where a round trip to a worker takes a millisecond or more, try --flash-attn off --cache-ram 0: a draft token",
    "then takes a few round trips instead of one for each layer. Take both or none.",
)
_HEADS = (
    "For a model with heads for multi-token prediction (MTP) in its file; if they are in a file of their own, add",
    f"--model-draft {_DRAFT_FILE}. With other drafts, this stands in place of `--spec-type draft-mtp`:",
    f"  --spec-type draft-eagle3 --model-draft {_DRAFT_FILE}   heads of the EAGLE-3 kind",
    f"  --spec-type draft-simple --model-draft {_DRAFT_FILE}   a draft model",
    "Should it run out of memory when drafting begins, add --no-spec-draft-backend-sampling.",
)
_POOL = ("The --spec flags let it verify drafts. Leave the slots at their default, side requests need one of them.",)
_SLOTS = ("A draft of K tokens is verified in K + 1 slots at once.",)


@dataclass(frozen=True, slots=True)
class _Command:
    """A command for one machine. `groups` are arguments that stay together on a line."""

    host: str
    title: str
    notes: Sequence[str]
    program: str
    groups: Sequence[Sequence[str]] = field(default_factory=list)

    def lines(self) -> Iterator[str]:
        where = "this machine" if _is_local(self.host) else self.host
        yield f"# on {where}: {self.title}"
        yield from (f"# {note}" for note in self.notes)
        yield " \\\n  ".join([self.program, *(shlex.join(group) for group in self.groups)])


async def ask_servers(loaded: LoadedTopology, route: str) -> Mapping[str, ServerInfo]:
    """What those servers of a route say about themselves that are up, by name. Raises SetupError."""
    found: dict[str, ServerInfo] = {}
    configs = [loaded.topology.servers[name] for name in _servers(loaded, _route(loaded, route))]

    async def ask(config: ServerConfig) -> None:
        server = LlamaServer(config)
        try:
            await server.probe()
            found[config.name] = server.info
        finally:
            await server.aclose()

    async with anyio.create_task_group() as tasks:
        for config in configs:
            # Without an address, the router runs it on a port that nobody knows yet.
            if config.url:
                tasks.start_soon(ask, config)
    return found


def command_lines(loaded: LoadedTopology, route: str, known: Mapping[str, ServerInfo]) -> str:
    """The commands for all servers of a route as text for a shell, with comments.

    `known` is what servers say about themselves, by name: their model's file then stands in place of a placeholder.
    Raises SetupError for a route that there is not.
    """
    config = _route(loaded, route)
    commands = _Commands(loaded, config, known)
    heading = [f"# {line}" for line in commands.heading()]
    return "\n\n".join("\n".join(lines) for lines in [heading, *(command.lines() for command in commands.all())])


def _route(loaded: LoadedTopology, name: str) -> RouteConfig:
    config = loaded.topology.resolve(name)
    if config is None:
        routes = ", ".join(loaded.topology.routes)
        raise SetupError(f"{loaded.topology.path} has no route {name!r} (there are: {routes})")
    return config


def _servers(loaded: LoadedTopology, route: RouteConfig) -> list[str]:
    strategies = _all(plugin_uses(route, loaded.registry)["draft"][0])
    named = [name for use in strategies for name in server_options(use.info.cls.options_schema, use.options)]
    return list(dict.fromkeys([*named, *route.targets]))


def _all(use: PluginOfRoute) -> Iterator[PluginOfRoute]:
    yield use
    for nested in use.strategies.values():
        yield from _all(nested)


class _Commands:
    """The commands for one route."""

    def __init__(self, loaded: LoadedTopology, route: RouteConfig, known: Mapping[str, ServerInfo]) -> None:
        self._servers = loaded.topology.servers
        self._route = route
        self._known = known
        strategy = plugin_uses(route, loaded.registry)["draft"][0]
        self._own = answers_itself(strategy.info.cls.options_schema)
        self._drafters = [name for name in _servers(loaded, route) if name not in route.targets]
        if self._own:
            self._drafters = server_options(strategy.info.cls.options_schema, strategy.options)
        self._workers: Sequence[str] = strategy.options.get("workers", ()) if self._own else ()

    def heading(self) -> Iterator[str]:
        """What it is about."""
        targets = ", then ".join(self._route.targets)
        if not self._own:
            drafts = f"drafts by {self._route.draft.name}" if self._route.draft.name != "none" else "no drafts"
            yield f"Route {self._route.name}: {targets} answers, {drafts}."
        else:
            where = f" on {', '.join(self._workers)}" if self._workers else ""
            yield f"Route {self._route.name}: {', '.join(self._drafters)} answers and drafts by itself{where}."
            others = [name for name in self._route.targets if name not in self._drafters]
            if others:
                yield f"While that is not possible, {', then '.join(others)} answers alone."
        yield "File names in capitals are yours to fill in."

    def all(self) -> Iterator[_Command]:
        """A command for every process."""
        yield from (self._worker(address) for address in self._workers)
        for name in self._drafters:
            yield self._self_drafting(name) if self._own else self._server(name, "the draft model", _DRAFT_FILE)
        for name in self._route.targets:
            if not (self._own and name in self._drafters):
                yield self._target(name)

    @staticmethod
    def _worker(address: str) -> _Command:
        host, _, port = address.rpartition(":")
        arguments = ("--host", _bound(host), "--port", port)
        return _Command(host, f"the RPC worker {address}", _WORKER, "ggml-rpc-server", [arguments])

    def _self_drafting(self, name: str) -> _Command:
        if not self._workers:
            return self._server(name, "drafts by itself", _TARGET_FILE, _HEADS, [("--spec-type", "draft-mtp")])
        devices = ",".join(f"RPC{index}" for index in range(len(self._workers)))
        groups = [
            ("--device", "none"),
            ("--spec-type", "draft-simple", "--model-draft", _DRAFT_FILE),
            ("--rpc", ",".join(self._workers), "--spec-draft-device", devices),
        ]
        notes = [*_DEVICE, *_BACKTRACE, *_SAMPLING, *_DISTANCE]
        command = self._server(name, "drafts by itself on the RPC workers", _TARGET_FILE, notes, groups)
        return replace(command, program=f"GGML_NO_BACKTRACE=1 {command.program}")

    def _target(self, name: str) -> _Command:
        if self._own or self._route.draft.name == "none":
            return self._server(name, "answers alone", _TARGET_FILE)
        match self._route.verify.name:
            case "auto" | "inject":
                return self._server(name, "answers, and verifies drafts", _TARGET_FILE, _POOL, [shlex.split(FLAGS)])
            case "fanout":
                flags = [("--parallel", "4")]
                return self._server(name, "answers, and is asked for each token", _TARGET_FILE, _SLOTS, flags)
            case other:
                notes = [f"What else the verifier {other} needs is in its own documentation."]
                return self._server(name, "answers", _TARGET_FILE, notes)

    def _server(
        self,
        name: str,
        role: str,
        file: str,
        notes: Sequence[str] = (),
        groups: Sequence[Sequence[str]] = (),
    ) -> _Command:
        config = self._servers[name]
        parts = urllib.parse.urlsplit(config.url)
        host = parts.hostname or "localhost"
        listen = [("--host", _bound(host)), ("--port", str(parts.port or {"https": 443}.get(parts.scheme, 80)))]
        notes = list(notes)
        if config.run is not None:
            notes.append(f"The router runs it as `servers.{name}.run.command` says: these flags belong there.")
            listen = [("--port", "${port}")] if not config.url else listen
        if parts.scheme == "https":
            notes.append("For https it needs --ssl-key-file and --ssl-cert-file, or a proxy before it.")
        if config.api_key is not None:
            notes.append(f"KEY-FILE holds the key that is `api_key` of {name} in the topology.")
            listen.append(("--api-key-file", "KEY-FILE"))
        model = ("--model", self._model(name, file))
        title = f"{name}, {role}" + (f" ({config.url})" if config.url else "")
        arguments = [part for pair in listen for part in pair]
        return _Command(host, title, notes, "llama-server", [model, arguments, *groups])

    def _model(self, name: str, placeholder: str) -> str:
        """The file of a running server, or that of another one on its machine that has the same model."""
        same = [name]
        if self._own:
            same += [other for other in (*self._drafters, *self._route.targets) if self._is_beside(other, name)]
        paths = (self._known[other].model_path for other in same if other in self._known)
        return next((path for path in paths if path), placeholder)

    def _is_beside(self, other: str, name: str) -> bool:
        hosts = [urllib.parse.urlsplit(self._servers[one].url).hostname for one in (other, name)]
        return hosts[0] == hosts[1]


def _bound(host: str) -> str:
    """The address to listen on so that a server is reached under a host name."""
    return "127.0.0.1" if _is_local(host) else "0.0.0.0"  # noqa: S104  (for a command that is only shown)


def _is_local(host: str) -> bool:
    address = ip_address(host.strip("[]"))
    return host == "localhost" or (address is not None and address.is_loopback)
