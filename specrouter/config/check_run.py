"""What a schema cannot say about the `run` of a server."""

from __future__ import annotations

import re
import sys
import urllib.parse
from collections.abc import Iterator, Mapping
from typing import Any

from .addresses import ip_address
from .document import Document, Findings, KeyPath
from .model import PORT_VARIABLE, seconds_of
from .sections import Schema

_HERE = "like http://127.0.0.1:8081"


class RunChecker:
    """Checks how the router is to run servers itself, after their schema."""

    def __init__(self, document: Document, findings: Findings, schema: Schema) -> None:
        self._document = document
        self._findings = findings
        self._schema = schema
        self._ports: dict[int, KeyPath] = {}

    def check(self, name: str, server: Mapping[str, Any]) -> None:
        """Report all problems of the `run` of a server, if it has one."""
        run, path = server.get("run"), ("servers", name, "run")
        if not isinstance(run, dict) or not self._findings.is_fine(path):
            return
        if sys.platform == "win32":
            self._findings.report(path, "the router runs servers on Linux and macOS only (start it yourself)")
        self._check_times(path, run)
        self._check_address(name, server, run)
        self._check_workers(path, run)

    def _check_times(self, path: KeyPath, run: Mapping[str, Any]) -> None:
        properties = self._schema["properties"]
        restart = run.get("restart")
        found = [((*path, key), run.get(key), properties[key]) for key in ("ready_timeout", "idle_stop")]
        for key, schema in properties["restart"]["properties"].items():
            given = restart.get(key) if isinstance(restart, dict) else None
            found.append(((*path, "restart", key), given, schema))
        for place, given, schema in found:
            if not isinstance(given, str) or not self._findings.is_fine(place):
                continue
            seconds = seconds_of(given)
            if not 0 < seconds <= schema["maximum"]:
                must = f"more than 0 and at most {schema['maximum']} seconds"
                self._findings.report(place, f"is {self._document.written(place)}, must be {must}")

    def _check_address(self, name: str, server: Mapping[str, Any], run: Mapping[str, Any]) -> None:
        path: KeyPath = ("servers", name, "url")
        url = server.get("url")
        if url is None and "url" not in server:
            commands = [run.get("command"), *self._other_command(run)]
            with_port = [PORT_VARIABLE in str(command) or PORT_VARIABLE in str(run.get("env")) for command in commands]
            if not all(with_port):
                message = f"is missing (give the port that `command` says, {_HERE}, or let it say {PORT_VARIABLE})"
                self._findings.report(path, message)
            return
        if not isinstance(url, str) or not self._findings.is_fine(path):
            return
        parts = urllib.parse.urlsplit(url)
        address = ip_address(parts.hostname or "")
        if parts.hostname != "localhost" and (address is None or not address.is_loopback):
            written = self._document.written(path)
            self._findings.report(path, f"{written} is not on this machine, where a server with `run` is ({_HERE})")
            return
        self._check_port(path, parts.port or (443 if parts.scheme == "https" else 80))

    def _check_port(self, path: KeyPath, port: int) -> None:
        first = self._ports.setdefault(port, path)
        if first != path:
            line = self._document.locate(first).line
            self._findings.report(path, f"has port {port} of a server above (line {line}), and both have a `run`")

    @staticmethod
    def _other_command(run: Mapping[str, Any]) -> Iterator[object]:
        other = run.get("without_workers")
        if isinstance(other, dict):
            yield other.get("command")

    def _check_workers(self, path: KeyPath, run: Mapping[str, Any]) -> None:
        if "workers" in run and "without_workers" not in run:
            self._findings.report((*path, "without_workers"), "is missing (what to run while `workers` are away)")
        if "without_workers" in run and "workers" not in run:
            self._findings.report((*path, "workers"), "is missing (without which `without_workers` is to run)")
        workers = run.get("workers")
        for index, worker in enumerate(workers if isinstance(workers, list) else []):
            place = (*path, "workers", index)
            if not isinstance(worker, str) or not self._findings.is_fine(place):
                continue
            match = re.fullmatch(r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):([0-9]{1,5})", worker)
            if match is None or not 0 < int(match[2]) < 65536:
                written = self._document.written(place)
                self._findings.report(place, f"{written} is not the address of a worker (like laptop:50052)")
