"""Draft strategy `none`: the target answers alone."""

from __future__ import annotations

from specrouter.hookspecs import hookimpl
from specrouter.interfaces import Drafter, DraftStrategy, Generation


class NoDraft(DraftStrategy):
    """No drafting: the target answers alone."""

    name = "none"

    def start(self, generation: Generation) -> Drafter | None:  # noqa: ARG002
        """Nothing to draft, ever."""
        return None


@hookimpl
def specrouter_draft_strategies() -> list[type[DraftStrategy]]:
    return [NoDraft]
