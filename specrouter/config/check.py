"""Everything that can be wrong with a topology, all at once."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import referencing
from jsonschema import Draft202012Validator, FormatChecker, validators
from jsonschema.exceptions import ValidationError
from referencing.exceptions import Unresolvable

from specrouter.plugins import PluginInfo, PluginRegistry

from .addresses import url_problem
from .check_listen import ListenChecker, api_keys
from .check_run import RunChecker
from .document import Document, Findings, KeyPath, Problem, path_text, printable
from .key_files import KeyFiles
from .model import base_url, plugin_use
from .nested import nested_uses, value_at
from .schema import ANSWERING_SERVER, AUTO_KINDS, PLUGIN_KEYS, answers_itself, core_schema, use_schema
from .sections import Schema
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
        self._findings = Findings(document)
        self._is_fine = self._findings.is_fine
        self._report = self._findings.report
        self._key_files = KeyFiles(document, self._findings)
        self._schema = core_schema()
        self._words = Words(document, _sections(self._schema))
        self._used_servers: set[str] = set()
        self._answered_otherwise: set[str] = set()
        self._listen = _mapping(self._data.get("listen"))
        self._servers = _mapping(self._data.get("servers"))
        self._routes = _mapping(self._data.get("routes"))

    def problems(self) -> list[str]:
        """One line per problem, sorted by position."""
        return self._findings.lines()

    def warnings(self) -> list[str]:
        """One line for whatever has no effect, sorted by position. For a document without problems."""
        odd: list[tuple[KeyPath, str]] = []
        odd += [(("servers", name), "no route uses this server") for name in self._unused_servers()]
        odd += [(("routes", name), "no key opens this route") for name in self._closed_routes()]
        odd += [(path, "has no effect without `concurrent`") for path in self._idle_limits()]
        odd += [(path, _BY_ITSELF) for path in self._idle_plugins()]
        found = sorted((self._document.locate(path, key=True), path_text(path), path, text) for path, text in odd)
        return [Problem(location, path, text).line(self._document.file) for location, _, path, text in found]

    @property
    def key_files(self) -> Mapping[KeyPath, str]:
        """Where the topology names a file with a key → that key. Complete after `check_core`."""
        return self._key_files.keys

    def check_core(self) -> None:
        """Check shape and types, and what a schema cannot say about servers, routes and the address."""
        self._validate(self._document.data, self._schema, lambda error: self._words.say(error, ()))
        listen = ListenChecker(self._document, self._findings, self._key_files, self._routes)
        listen.check(self._listen, self._schema["properties"]["listen"])
        runs = RunChecker(
            self._document, self._findings, _item(self._schema["properties"]["servers"])["properties"]["run"]
        )
        for name, server in self._servers.items():
            self._check_url(("servers", name, "url"), _mapping(server).get("url"))
            runs.check(name, _mapping(server))
            if self._is_fine(("servers", name)):
                self._key_files.read(("servers", name, "api_key_file"), _mapping(server).get("api_key_file"))
        self._check_names()
        for route, index, target in self._targets():
            self._check_server_name(("routes", route, "target", *index), target)
        for path, file in self._plugin_files():
            if not file.is_file():
                self._report(path, f"there is no file {self._document.written(path)} beside {self._document.file.name}")

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
            else:
                self._check_use(use, registry)

    def _check_use(self, use: _Use, registry: PluginRegistry) -> None:
        name = plugin_use(use.given).name
        info = registry.find(use.kind, name)
        if info is None:
            self._report(use.name_path, self._unknown_plugin(use, name, registry))
        elif self._check_options(use, info):
            if answers_itself(info.cls.options_schema):
                self._check_answering(use)
            for nested in self._nested_uses(use, info):
                self._check_use(nested, registry)

    def _check_answering(self, use: _Use) -> None:
        self._answered_otherwise.add(use.route)
        if use.path != ("routes", use.route, "draft"):
            written = self._document.written(use.name_path)
            self._report(use.name_path, f"{written} answers requests itself, so it must be the route's own `draft`")

    def _nested_uses(self, use: _Use, info: PluginInfo) -> Iterator[_Use]:
        """The places where a plugin's options name draft strategies, as far as they are well-formed."""
        options = plugin_use(use.given).options
        for path in nested_uses(info.cls.options_schema, options):
            nested = _Use(use.route, "draft", (*use.path, "options", *path), value_at(options, path))
            self._validate(nested.given, use_schema(), functools.partial(self._words.say, base=nested.path))
            if all(self._is_fine(part) for part in (nested.path, nested.name_path, (*nested.path, "options"))):
                yield nested

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

    def _check_url(self, path: KeyPath, url: object) -> None:
        if not isinstance(url, str) or not self._is_fine(path):
            return
        problem = url_problem(url, is_shown=path not in self._document.substituted)
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
                        f"{self._document.written(path)} is already the name of a route or alias (line {line})",
                    )
                taken.setdefault(alias, path)

    def _check_server_name(self, path: KeyPath, name: str) -> None:
        self._used_servers.add(name)
        if name not in self._servers:
            self._report(path, self._not_a_server(path, name))

    def _not_a_server(self, path: KeyPath, name: str) -> str:
        servers = f"servers: {listed(self._servers)}" if self._servers else "there are none"
        hint = f"{did_you_mean(name, self._servers)}{servers}"
        return f"{self._document.written(path)} is not a server of this topology ({hint})"

    def _unused_servers(self) -> Iterator[str]:
        return (name for name in self._servers if name not in self._used_servers)

    def _closed_routes(self) -> Iterator[str]:
        keys = [key for _, key in api_keys(self._listen)]
        if not keys or any(isinstance(key, str) or "routes" not in key for key in keys):
            return iter(())
        opened = {name for key in keys for name in key["routes"]}
        return (name for name in self._routes if name not in opened)

    def _idle_limits(self) -> Iterator[KeyPath]:
        routes: Iterable[tuple[KeyPath, Any]] = ((("routes", name), route) for name, route in self._routes.items())
        for path, given in itertools.chain(routes, api_keys(self._listen)):
            limits = _mapping(given).get("limits")
            if limits is not None and "concurrent" not in limits:
                yield (*path, "limits")

    def _idle_plugins(self) -> Iterator[KeyPath]:
        for route in self._answered_otherwise:
            for key in ("verify", "accept", "tokenizer_checks", "on_tokenizer_mismatch"):
                if key in _mapping(self._routes[route]):
                    yield ("routes", route, key)

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
        return f"{self._document.written(use.name_path)} is not among the {kind} plugins ({hint}{failed})"

    def _check_options(self, use: _Use, info: PluginInfo) -> bool:
        """Whether the plugin's schema could be used."""
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

        @formats.checks(ANSWERING_SERVER)
        def is_known(value: object) -> bool:
            if isinstance(value, str):
                self._used_servers.add(value)
            return not isinstance(value, str) or value in self._servers

        def say(error: ValidationError) -> list[tuple[KeyPath, str]]:
            if error.validator != "format" or error.validator_value not in ("server", ANSWERING_SERVER):
                return self._words.say(error, base)
            path, name = (*base, *error.absolute_path), str(error.instance)
            if name not in self._servers:
                return [(path, self._not_a_server(path, name))]
            return [(path, f"{self._document.written(path)} is the target {targets[name]} of this route, {_TURNS}")]

        try:
            self._validate(options, info.cls.options_schema, say, formats)
        except (Unresolvable, RecursionError):
            self._report(base, f"cannot be checked: options_schema of {info} has a reference that leads nowhere")
            return False
        return True

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
_BY_ITSELF = "has no effect: a server that drafts by itself also verifies by itself"
_TURNS = "so it would take turns with itself and be slower (name another server, or `draft: none`)"


def _sections(schema: Schema) -> dict[str, str]:
    """Each key of a topology → where it belongs, for keys that stand in the wrong place."""
    parts = schema["properties"]
    found = {
        "listen": parts["listen"],
        "a server": _item(parts["servers"]),
        "run": _item(parts["servers"])["properties"]["run"],
        "a route": _item(parts["routes"]),
        "limits": _item(parts["routes"])["properties"]["limits"],
    }
    sections = {key: where for where, part in found.items() for key in part["properties"]}
    return {**sections, **dict.fromkeys(parts, "the top level")}


def _item(schema: Schema) -> Schema:
    """The schema of the entries of a mapping with names."""
    found: Schema = next(iter(schema["patternProperties"].values()))
    return found


def _mapping(value: object) -> dict[str, Any]:
    """The value where it is a mapping; whatever else stands there is reported by the schema."""
    return value if isinstance(value, dict) else {}
