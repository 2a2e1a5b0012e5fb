"""Everything that can be wrong with a topology, all at once."""

from __future__ import annotations

import ipaddress
import re
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import referencing
from jsonschema import Draft202012Validator, FormatChecker, validators
from jsonschema.exceptions import ValidationError
from referencing.exceptions import Unresolvable

from specrouter.plugins import PluginInfo, PluginRegistry

from .model import base_url, plugin_use, size_in_bytes
from .schema import AUTO_KINDS, PLUGIN_KEYS, Schema, core_schema
from .source import Document, KeyPath, Problem, printable
from .words import TYPE_CHECKER, Words, did_you_mean, listed

_Validator = validators.extend(Draft202012Validator, type_checker=TYPE_CHECKER)  # type: ignore[no-untyped-call]


@dataclass(frozen=True, slots=True)
class _Use:
    """A plugin as a route names it, and where that stands."""

    route: str
    kind: str
    path: KeyPath
    given: str | Mapping[str, Any]

    @property
    def name_path(self) -> KeyPath:
        return self.path if isinstance(self.given, str) else (*self.path, "use")


class Checker:
    """Checks one document and collects its problems, at most one for each value.

    `check_core` looks at everything that needs no plugins, `check_plugins` at the rest.
    """

    def __init__(self, document: Document) -> None:
        self._document = document
        self._data = document.data if isinstance(document.data, dict) else {}
        self._problems: dict[KeyPath, Problem] = {}
        self._schema = core_schema()
        self._words = Words(document, _sections(self._schema))
        self._used_servers: set[str] = set()
        self._servers = _mapping(self._data.get("servers"))
        self._routes = _mapping(self._data.get("routes"))

    def problems(self) -> list[str]:
        """One line per problem, sorted by position."""
        found = {(p.location, p.message): p for p in [*self._document.problems, *self._problems.values()]}
        return [found[place].line(self._document.file) for place in sorted(found)]

    def warnings(self) -> list[str]:
        """One line for each server that no route uses. Complete after `check_plugins`."""
        unused = [("servers", name) for name in self._servers if name not in self._used_servers]
        return [
            Problem(self._document.locate(path, key=True), path, "no route uses this server").line(self._document.file)
            for path in unused
        ]

    def check_core(self) -> None:
        """Check shape and types, and what a schema cannot say about servers, routes and the address."""
        self._validate(self._document.data, self._schema, lambda error: self._words.say(error, ()))
        self._check_listen(_mapping(self._data.get("listen")))
        for name, server in self._servers.items():
            if isinstance(_mapping(server).get("url"), str):
                self._check_url(("servers", name, "url"), server["url"])
        self._check_names()
        for route, index, target in self._targets():
            self._check_server_name(("routes", route, "target", *index), target)
        for path, file in self._plugin_files():
            if not file.is_file():
                self._report(path, f"there is no file {self._words.written(path)} beside {self._document.file.name}")

    def plugin_files(self) -> list[Path]:
        """The plugin files that exist."""
        return [file for _, file in self._plugin_files() if file.is_file()]

    def check_plugins(self, registry: PluginRegistry) -> None:
        """Check that the plugins that routes name exist, and their options."""
        for use in self._uses():
            name = plugin_use(use.given).name
            if name == "auto" and use.kind in AUTO_KINDS:
                if not isinstance(use.given, str) and use.given.get("options"):
                    self._report((*use.path, "options"), "`auto` takes no options (name a plugin to give it some)")
                continue
            info = registry.find(use.kind, name)
            if info is None:
                self._report(use.name_path, self._unknown_plugin(use, name, registry))
            else:
                self._check_options(use, info)

    def _is_fine(self, path: KeyPath) -> bool:
        """Nothing is known to be wrong with the value at `path` itself."""
        return path not in self._problems and path not in self._document.unresolved

    def _report(self, path: KeyPath, message: str, *, key: bool = False) -> None:
        if self._is_fine(path):
            self._problems[path] = Problem(self._document.locate(path, key=key), path, message)

    def _validate(
        self,
        value: Any,
        schema: Mapping[str, Any],
        say: Callable[[ValidationError], list[tuple[KeyPath, str]]],
        formats: FormatChecker | None = None,
    ) -> None:
        # An empty registry: a schema may not reach out to the network.
        validator = _Validator(schema, registry=referencing.Registry(), format_checker=formats)
        for error in validator.iter_errors(value):
            for path, message in say(error):
                self._report(path, message, key=error.validator in _ABOUT_KEYS)

    def _check_listen(self, listen: Mapping[str, Any]) -> None:
        size = listen.get("max_body")
        size_path: KeyPath = ("listen", "max_body")
        if isinstance(size, str) and self._is_fine(size_path) and size_in_bytes(size) < 1024:
            self._report(size_path, f"is {self._words.written(size_path)}, must be at least 1024 bytes")
        host = listen.get("host", "127.0.0.1")
        path: KeyPath = ("listen", "host")
        if not isinstance(host, str) or not self._is_fine(path):
            return
        address = _ip_address(host)
        if address is None and not _is_host_name(host):
            has_port = re.fullmatch(r"[^:]+:[0-9]+|\[.*\]:[0-9]+", host)
            hint = "the port belongs in listen.port" if has_port else "like 127.0.0.1, 0.0.0.0 or ::1"
            self._report(path, f"{self._words.written(path)} is neither an address nor a host name ({hint})")
            return
        is_loopback = address.is_loopback if address is not None else host.lower() == "localhost"
        if not is_loopback and listen.get("api_keys", []) == [] and listen.get("allow_anonymous", False) is False:
            self._report(
                path,
                f"{self._words.written(path)} can be reached from other machines, and there are no keys "
                "(set listen.api_keys, or `allow_anonymous: true` if everyone may use the servers)",
            )

    def _check_url(self, path: KeyPath, url: str) -> None:
        if not self._is_fine(path):
            return
        problem = _url_problem(url, is_shown=path not in self._document.substituted)
        if problem is not None:
            self._report(path, problem)

    def _check_names(self) -> None:
        taken: dict[str, KeyPath] = {name: ("routes", name) for name in self._routes}
        for route, config in self._routes.items():
            aliases = _mapping(config).get("aliases")
            for index, alias in enumerate(aliases if isinstance(aliases, list) else []):
                path: KeyPath = ("routes", route, "aliases", index)
                if not isinstance(alias, str):
                    continue
                if alias in taken:
                    line = self._document.locate(taken[alias], key=True).line
                    self._report(
                        path,
                        f"{self._words.written(path)} is already the name of a route or alias (line {line})",
                    )
                taken.setdefault(alias, path)

    def _check_server_name(self, path: KeyPath, name: str) -> None:
        self._used_servers.add(name)
        if name not in self._servers:
            self._report(path, self._not_a_server(path, name))

    def _not_a_server(self, path: KeyPath, name: str) -> str:
        servers = f"servers: {listed(self._servers)}" if self._servers else "there are none"
        hint = f"{did_you_mean(name, self._servers)}{servers}"
        return f"{self._words.written(path)} is not a server of this topology ({hint})"

    def _targets(self) -> Iterator[tuple[str, tuple[int, ...], str]]:
        """Route, index in its list of targets, name of the target."""
        for route, config in self._routes.items():
            given = _mapping(config).get("target")
            if isinstance(given, str):
                yield route, (), given
            for index, target in enumerate(given if isinstance(given, list) else []):
                if isinstance(target, str):
                    yield route, (index,), target

    def _plugin_files(self) -> Iterator[tuple[KeyPath, Path]]:
        files = self._data.get("plugins")
        for index, file in enumerate(files if isinstance(files, list) else []):
            path: KeyPath = ("plugins", index)
            if isinstance(file, str) and self._is_fine(path):
                yield path, self._document.file.parent / file

    def _uses(self) -> Iterator[_Use]:
        """The places where routes name plugins, as far as they are well-formed."""
        for route, config in self._routes.items():
            for key, kind in PLUGIN_KEYS.items():
                given = _mapping(config).get(key)
                path: KeyPath = ("routes", route, key)
                if isinstance(given, list):
                    uses = [_Use(route, kind, (*path, index), item) for index, item in enumerate(given)]
                else:
                    uses = [_Use(route, kind, path, given)] if given is not None else []
                for use in uses:
                    # The schema looks into a route only if its name is possible.
                    parts = (path[:2], path, use.path, use.name_path, (*use.path, "options"))
                    if all(self._is_fine(part) for part in parts):
                        yield use

    def _unknown_plugin(self, use: _Use, name: str, registry: PluginRegistry) -> str:
        known = registry.names(use.kind) + ["auto"] * (use.kind in AUTO_KINDS)
        kind = use.kind.replace("_", " ")
        hint = f"{did_you_mean(name, known)}there are: {listed(known)}" if known else "there are none"
        related = [problem for problem in registry.problems if f"'{name}'" in problem] or registry.problems
        failed = "".join(f"; could not be loaded: {problem}" for problem in related)
        return f"{self._words.written(use.name_path)} is not among the {kind} plugins ({hint}{failed})"

    def _check_options(self, use: _Use, info: PluginInfo) -> None:
        base = (*use.path, "options")
        options = plugin_use(use.given).options
        targets = self._targets_by_server(use.route) if use.kind == "draft" else {}
        formats = FormatChecker(formats=())

        # The schema says which texts name servers, wherever in the options they are.
        @formats.checks("server")
        def is_usable(value: object) -> bool:
            if not isinstance(value, str):
                return True
            self._used_servers.add(value)
            return value in self._servers and value not in targets

        def say(error: ValidationError) -> list[tuple[KeyPath, str]]:
            if error.validator != "format" or error.validator_value != "server":
                return self._words.say(error, base)
            path, name = (*base, *error.absolute_path), str(error.instance)
            if name not in self._servers:
                return [(path, self._not_a_server(path, name))]
            return [(path, f"{self._words.written(path)} is the target {targets[name]} of this route, {_TURNS}")]

        try:
            self._validate(options, info.cls.options_schema, say, formats)
        except (Unresolvable, RecursionError):
            self._report(base, f"cannot be checked: options_schema of {info} has a reference that leads nowhere")

    def _targets_by_server(self, route: str) -> dict[str, str]:
        """Servers that are, or are at the address of, a target of the route → that target."""
        addresses = {self._address(target): printable(target) for name, _, target in self._targets() if name == route}
        return {
            server: addresses[self._address(server)] for server in self._servers if self._address(server) in addresses
        }

    def _address(self, server: str) -> tuple[object, ...]:
        given = _mapping(self._servers.get(server))
        url = given.get("url")
        # One address may serve several models; two names for the same of them are one server.
        return (base_url(url).lower(), given.get("model")) if isinstance(url, str) else (server,)


_ABOUT_KEYS = ("additionalProperties", "unevaluatedProperties", "required")
_TURNS = "so it would take turns with itself and be slower (name another server, or `draft: none`)"


_EXAMPLE = "like http://laptop:8080"


def _url_problem(url: str, *, is_shown: bool) -> str | None:
    """What is wrong with a server's address. `is_shown`: a message may contain it."""
    try:
        parts = urllib.parse.urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return f"is not an address of a server ({_EXAMPLE}, with a port up to 65535)"
    if not url.isascii() or not url.isprintable() or " " in url or "\\" in url:
        return f"has characters that no URL has ({_EXAMPLE})"
    if parts.scheme not in ("http", "https"):
        is_address = is_shown and re.fullmatch(r"[\w.-]+:[0-9]+", url)
        return f"must begin with http:// or https:// ({f'write http://{url}' if is_address else _EXAMPLE})"
    if "@" in parts.netloc:
        return "must not contain a user or password (give a key as `api_key`)"
    if port == 0 or not (_is_host_name(host) or _ip_address(host)):
        return f"names no possible host and port ({_EXAMPLE})"
    if "?" in url or "#" in url:
        return f"must not have a query or fragment, `?` or `#` ({_EXAMPLE})"
    if re.search(r"/v1(/|$)", parts.path):
        root = url[: url.rindex("/v1")] if is_shown else "the address without /v1"
        return f"must be the server's root: paths like /v1 are added to it (write {root})"
    return None


def _is_host_name(text: str) -> bool:
    return re.fullmatch(r"[A-Za-z0-9._-]+", text) is not None


def _ip_address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _sections(schema: Schema) -> dict[str, str]:
    """Each key of a topology → where it belongs, for keys that stand in the wrong place."""
    parts = schema["properties"]
    found = {
        "listen": parts["listen"],
        "a server": next(iter(parts["servers"]["patternProperties"].values())),
        "a route": next(iter(parts["routes"]["patternProperties"].values())),
    }
    sections = {key: where for where, part in found.items() for key in part["properties"]}
    return {**sections, **dict.fromkeys(parts, "the top level")}


def _mapping(value: object) -> dict[str, Any]:
    """The value where it is a mapping; whatever else stands there is reported by the schema."""
    return value if isinstance(value, dict) else {}
