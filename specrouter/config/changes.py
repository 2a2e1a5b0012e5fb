"""What is different between two topologies, in a few words: names and keys, no values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

from .document import printable
from .model import Listen, Topology


def listen_changes(old: Listen, new: Listen) -> list[str]:
    """The keys of `listen` whose values differ."""
    return [field.name for field in fields(Listen) if getattr(old, field.name) != getattr(new, field.name)]


def topology_changes(old: Topology, new: Topology) -> list[str]:
    """What was added, removed or changed below `servers`, `routes` and `plugins`."""
    return [
        *_differences("server", old.servers, new.servers),
        *_differences("route", old.routes, new.routes),
        *(["plugins changed"] if old.plugins != new.plugins else []),
    ]


def _differences(what: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    for name in (*new, *(name for name in old if name not in new)):
        if name not in old:
            yield f"{what} {printable(name)} added"
        elif name not in new:
            yield f"{what} {printable(name)} removed"
        elif old[name] != new[name]:
            yield f"{what} {printable(name)} changed"
