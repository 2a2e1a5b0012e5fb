"""A topology file as plain data, where everything in it stands, and what is wrong with it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

KeyPath = tuple[str | int, ...]
"""Where a value is in the data: keys of mappings and indices of lists, from the top."""


class Location(NamedTuple):
    """A position in the file; both count from 1."""

    line: int
    column: int


@dataclass(frozen=True, slots=True)
class Problem:
    """Something wrong in a topology. `message` is the source text's, never a substituted value's."""

    location: Location
    path: KeyPath
    message: str

    def line(self, file: Path) -> str:
        """`file:line:column: path: message`, on one line."""
        where = f"{printable(path_text(self.path))}: " if self.path else ""
        return f"{file}:{self.location.line}:{self.location.column}: {where}{self.message}"


@dataclass(slots=True)
class Document:
    """A topology file as plain data (dict, list, str, int, float, bool, None) and where everything stands.

    `values` and `keys` are positions, `texts` the scalars as they were written, `unresolved` those whose
    variables could not be replaced.
    """

    file: Path
    data: Any = None
    values: dict[KeyPath, Location] = field(default_factory=dict)
    keys: dict[KeyPath, Location] = field(default_factory=dict)
    texts: dict[KeyPath, str] = field(default_factory=dict)
    substituted: set[KeyPath] = field(default_factory=set)
    unresolved: set[KeyPath] = field(default_factory=set)
    problems: list[Problem] = field(default_factory=list)

    def written(self, path: KeyPath) -> str:
        """The text at `path` as it is written, variables not replaced, in backquotes."""
        return f"`{printable(self.texts[path], 60)}`"

    def locate(self, path: KeyPath, *, key: bool = False) -> Location:
        """Where the value (or its key) stands; for something missing, the nearest key around it."""
        tables = (self.keys, self.values) if key else (self.values, self.keys)
        while path:
            for table in tables:
                if path in table:
                    return table[path]
            path, tables = path[:-1], (self.keys, self.values)
        return Location(1, 1)


def path_text(path: KeyPath) -> str:
    """`routes.small.aliases[0]`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")


def printable(text: str, limit: int = 200) -> str:
    """The text on one line, without control characters or halves of surrogate pairs, and not too long."""
    clean = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
    return clean if len(clean) <= limit else clean[: limit - 1] + "…"


class Findings:
    """The problems of a document, at most one for each value."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._found: dict[KeyPath, Problem] = {}

    def is_fine(self, path: KeyPath) -> bool:
        """Nothing is known to be wrong with the value at `path` itself."""
        return path not in self._found and path not in self._document.unresolved

    def report(self, path: KeyPath, message: str, *, key: bool = False) -> None:
        """Add a problem of the value at `path` (or of its key), unless one is known."""
        if self.is_fine(path):
            self._found[path] = Problem(self._document.locate(path, key=key), path, message)

    def lines(self) -> list[str]:
        """One line per problem, those of reading the document too, sorted by position."""
        found = {(p.location, p.message): p for p in [*self._document.problems, *self._found.values()]}
        return [found[place].line(self._document.file) for place in sorted(found)]
