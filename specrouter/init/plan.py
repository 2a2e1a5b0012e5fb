"""The topology that is to be written, as data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .findings import Found, LeftOut


@dataclass(frozen=True, slots=True)
class Draft:
    """Where a route's drafts come from: the strategy `use`, and the server that drafts where there is one."""

    use: str
    server: str | None = None


@dataclass(frozen=True, slots=True)
class PlannedRoute:
    """A route. `why` explains it, a line each.

    With an `obstacle` its drafts cannot be verified as things are: they are written down as a comment, with the
    `remedy` where there is one. With `as_text`, they cross as text.
    """

    name: str
    targets: Sequence[str]
    draft: Draft | None = None
    aliases: Sequence[str] = ()
    are_alike: bool = False
    as_text: bool = False
    obstacle: str | None = None
    remedy: str | None = None
    why: Sequence[str] = ()

    @property
    def drafts(self) -> bool:
        """Drafts are made for it as it will be written."""
        return self.draft is not None and self.obstacle is None


@dataclass(frozen=True, slots=True)
class Plan:
    """A topology for the servers that were `found`, by their names in it. `advice` says what would make it faster."""

    found: Mapping[str, Found]
    routes: Sequence[PlannedRoute]
    left_out: Sequence[LeftOut] = ()
    port: int = 8080
    advice: Sequence[str] = ()
