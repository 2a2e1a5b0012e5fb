"""What a schema cannot say about `listen`: the address, sizes given as texts, and the keys."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from .addresses import ip_address, is_host_name
from .document import Document, Findings, KeyPath
from .key_files import KeyFiles
from .model import size_in_bytes
from .sections import Schema
from .words import did_you_mean, listed

_KEYS: KeyPath = ("listen", "api_keys")


class ListenChecker:
    """Checks the section `listen` after its schema; `routes` are those of the topology, as they are written."""

    def __init__(self, document: Document, findings: Findings, key_files: KeyFiles, routes: Mapping[str, Any]) -> None:
        self._document = document
        self._findings = findings
        self._key_files = key_files
        self._routes = routes

    def check(self, listen: Mapping[str, Any], schema: Schema) -> None:
        """Report all problems of `listen`; `schema` is that of the section."""
        for name in ("max_body", "max_headers"):
            self._check_size(("listen", name), listen.get(name), schema["properties"][name])
        self._check_host(listen)
        keys = list(api_keys(listen))
        for path, key in keys:
            if isinstance(key, dict) and self._findings.is_fine(path):
                self._key_files.read((*path, "key_file"), key.get("key_file"))
                self._check_routes((*path, "routes"), key.get("routes"))
        self._check_names(keys)
        self._check_secrets(keys)

    def _check_size(self, path: KeyPath, given: object, schema: Schema) -> None:
        if not isinstance(given, str) or not self._findings.is_fine(path):
            return
        size = size_in_bytes(given)
        if size < schema["minimum"]:
            must = f"at least {schema['minimum']} bytes"
        elif size > schema.get("maximum", size):
            must = f"at most {schema['maximum']} bytes"
        else:
            return
        self._findings.report(path, f"is {self._document.written(path)}, must be {must}")

    def _check_host(self, listen: Mapping[str, Any]) -> None:
        host = listen.get("host", "127.0.0.1")
        path: KeyPath = ("listen", "host")
        if not isinstance(host, str) or not self._findings.is_fine(path):
            return
        address = ip_address(host)
        if address is None and not is_host_name(host):
            has_port = re.fullmatch(r"[^:]+:[0-9]+|\[.*\]:[0-9]+", host)
            hint = "the port belongs in listen.port" if has_port else "like 127.0.0.1, 0.0.0.0 or ::1"
            written = self._document.written(path)
            self._findings.report(path, f"{written} is neither an address nor a host name ({hint})")
            return
        is_loopback = address.is_loopback if address is not None else host.lower() == "localhost"
        if not is_loopback and listen.get("api_keys", []) == [] and listen.get("allow_anonymous", False) is False:
            self._findings.report(
                path,
                f"{self._document.written(path)} can be reached from other machines, and there are no keys "
                "(set listen.api_keys, or `allow_anonymous: true` if everyone may use the servers)",
            )

    def _check_routes(self, path: KeyPath, routes: object) -> None:
        for index, name in enumerate(routes if isinstance(routes, list) else []):
            if isinstance(name, str) and name not in self._routes:
                self._findings.report((*path, index), self._not_a_route((*path, index), name))

    def _not_a_route(self, path: KeyPath, name: str) -> str:
        written = self._document.written(path)
        for route, config in self._routes.items():
            aliases = config.get("aliases") if isinstance(config, dict) else None
            if isinstance(aliases, list) and name in aliases:
                return f"{written} is an alias, must be the name of a route (write {listed([route])})"
        routes = f"routes: {listed(self._routes)}" if self._routes else "there are none"
        return f"{written} is not a route of this topology ({did_you_mean(name, self._routes)}{routes})"

    def _check_names(self, keys: list[tuple[KeyPath, Any]]) -> None:
        taken: dict[str, KeyPath] = {}
        for above, key in keys:
            name = key.get("name") if isinstance(key, dict) else None
            path = (*above, "name")
            if not isinstance(name, str) or not self._findings.is_fine(path):
                continue
            first = taken.setdefault(name, path)
            if first != path:
                line = self._document.locate(first).line
                written = self._document.written(path)
                self._findings.report(path, f"{written} is already the name of a key (line {line})")

    def _check_secrets(self, keys: list[tuple[KeyPath, Any]]) -> None:
        taken: dict[str, KeyPath] = {}
        for above, key in keys:
            path, secret = self._secret(above, key)
            if not isinstance(secret, str) or not self._findings.is_fine(path):
                continue
            first = taken.setdefault(secret, path)
            if first != path:
                line = self._document.locate(first).line
                self._findings.report(path, f"is the same key as one above (line {line}), keys must differ")

    def _secret(self, path: KeyPath, key: object) -> tuple[KeyPath, object]:
        """Where a key has its secret, and the secret."""
        if not isinstance(key, dict):
            return path, key
        if "key" in key:
            return (*path, "key"), key["key"]
        return (*path, "key_file"), self._key_files.keys.get((*path, "key_file"))


def api_keys(listen: Mapping[str, Any]) -> Iterator[tuple[KeyPath, Any]]:
    """The entries of `listen.api_keys`, whatever they are, and where they stand."""
    keys = listen.get("api_keys")
    for index, key in enumerate(keys if isinstance(keys, list) else []):
        yield (*_KEYS, index), key
