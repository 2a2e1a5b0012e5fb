"""Drafting parts whose faults are reported under their own name, whoever calls them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing

from .errors import PluginError
from .interfaces import Drafter, DraftStrategy, Generation, Support
from .plugins import Bound, PluginInfo, guard
from .types import DraftToken, Outcome
from .upstream import LlamaServer
from .workers import Workers


class GuardedDrafter(Drafter):
    """A drafter, every call of which passes the guard of the plugin it comes from."""

    def __init__(self, drafter: Drafter, info: PluginInfo) -> None:
        self._drafter = drafter
        self._info = info

    async def draft(self, context: Sequence[int], max_tokens: int) -> AsyncGenerator[DraftToken]:
        """Its drafts."""
        with guard(self._info):
            async with aclosing(self._drafter.draft(context, max_tokens)) as tokens:
                async for token in tokens:
                    _check(token, self._info)
                    yield token

    def observe(self, outcome: Outcome) -> None:
        """It learns what became of them."""
        with guard(self._info):
            self._drafter.observe(outcome)

    async def aclose(self) -> None:
        """It lets go."""
        with guard(self._info):
            await self._drafter.aclose()


def _check(token: object, info: PluginInfo) -> None:
    """Raises PluginError for what nothing could be done with. What was drafted is not in the message."""
    if not isinstance(token, DraftToken) or not isinstance(token.id, int):
        raise PluginError(f"{info} drafted something of the type {type(token).__name__} that is no DraftToken")
    probability = token.probability
    if probability is not None and not (isinstance(probability, int | float) and 0 <= probability <= 1):
        raise PluginError(f"{info} drafted a token with the probability {probability!r}, which is not from 0 to 1")
    if token.distribution is not None and not isinstance(token.distribution, Mapping):
        raise PluginError(f"{info} drafted a token with a {type(token.distribution).__name__} as its distribution")


class GuardedStrategy(DraftStrategy):
    """A draft strategy, every call of which passes its guard: what a plugin that composes strategies is given."""

    def __init__(self, bound: Bound[DraftStrategy]) -> None:
        super().__init__({}, {})
        self._bound = bound

    def available(self) -> str | None:
        """What it says itself."""
        with guard(self._bound.info):
            return self._bound.plugin.available()

    def draft_server(self) -> LlamaServer | None:
        """What it says itself."""
        with guard(self._bound.info):
            return self._bound.plugin.draft_server()

    def answering_server(self) -> LlamaServer | None:
        """What it says itself."""
        with guard(self._bound.info):
            return self._bound.plugin.answering_server()

    def workers(self) -> Workers | None:
        """What it says itself."""
        with guard(self._bound.info):
            return self._bound.plugin.workers()

    async def inspect(self) -> Support:
        """What it finds itself."""
        with guard(self._bound.info):
            return await self._bound.plugin.inspect()

    async def watch(self) -> None:
        """Nothing: the router has it watch, wherever it stands."""

    def start(self, generation: Generation) -> Drafter | None:
        """Its drafter, guarded as well."""
        with guard(self._bound.info):
            drafter = self._bound.plugin.start(generation)
        return None if drafter is None else GuardedDrafter(drafter, self._bound.info)
