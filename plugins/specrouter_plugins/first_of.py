"""Draft strategy `first_of`: for each draft, the first of several strategies that has something to say."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, ClassVar

from specrouter.errors import SpecrouterError, UpstreamError
from specrouter.hookspecs import hookimpl
from specrouter.interfaces import Drafter, DraftStrategy, Generation, JsonSchema
from specrouter.types import DraftToken, Outcome
from specrouter.upstream import LlamaServer

log = logging.getLogger(__name__)


class FirstOfDrafter(Drafter):
    """Asks the drafters of one request in order. One that fails is left out from then on."""

    def __init__(self, drafters: Sequence[Drafter]) -> None:
        self._drafters = list(drafters)
        self._asked = list(drafters)
        self._drafted: deque[Drafter] = deque()  # of each token whose outcome is not known yet, who drafted it

    async def draft(self, context: Sequence[int], max_tokens: int) -> AsyncGenerator[DraftToken]:
        """Yield the tokens of the first drafter that has any. Raises what the last one left raises."""
        for drafter in tuple(self._asked):
            has_drafted = False
            try:
                async with aclosing(drafter.draft(context, max_tokens)) as tokens:
                    async for token in tokens:
                        has_drafted = True
                        self._drafted.append(drafter)
                        yield token
            except SpecrouterError as error:
                self._asked.remove(drafter)
                if not self._asked:
                    raise
                _report(error)
            if has_drafted:
                return

    def observe(self, outcome: Outcome) -> None:
        """Tell each drafter what became of its own tokens."""
        accepted = [self._drafted.popleft() for _ in range(min(outcome.accepted, len(self._drafted)))]
        missed = outcome.drafted > outcome.accepted and self._drafted
        wrong = self._drafted[0] if missed else None
        if outcome.drafted > outcome.accepted:
            # What was drafted behind a wrong token is dropped.
            self._drafted.clear()
        for drafter in self._drafters:
            right = accepted.count(drafter)
            if right or drafter is wrong:
                try:
                    drafter.observe(Outcome(right + (drafter is wrong), right))
                except SpecrouterError as error:
                    _report(error)

    async def aclose(self) -> None:
        """Close all of them."""
        for drafter in self._drafters:
            try:
                await drafter.aclose()
            except SpecrouterError as error:
                _report(error)


class FirstOf(DraftStrategy):
    """Several strategies in order: each draft is made by the first one that has something to say."""

    name = "first_of"
    options_schema: ClassVar[JsonSchema] = {
        "type": "object",
        "properties": {
            "strategies": {
                "type": "array",
                "items": {"format": "draft_strategy"},
                "minItems": 1,
                "description": "The strategies, the cheapest first.",
            },
        },
        "required": ["strategies"],
        "additionalProperties": False,
    }

    def __init__(self, options: Mapping[str, Any], servers: Mapping[str, LlamaServer]) -> None:
        super().__init__(options, servers)
        self._strategies: list[DraftStrategy] = []
        self._server: LlamaServer | None = None
        for strategy in options["strategies"]:
            try:
                server = strategy.draft_server()
            except SpecrouterError as error:
                _report(error)
                continue
            if server is not None and self._server not in (None, server):
                # The router compares the vocabulary of one server with the target's.
                names = f"{self._server.name} and {server.name}"
                raise ValueError(f"strategies: {names} draft, only one server can (the others must need none)")
            self._strategies.append(strategy)
            self._server = self._server or server

    def available(self) -> str | None:
        """One of them has to be."""
        reasons: list[str] = []
        for strategy in self._strategies:
            reason = _reason(strategy)
            if reason is None:
                return None
            reasons.append(reason)
        return "; ".join(reasons)

    def draft_server(self) -> LlamaServer | None:
        """That of the strategy that has one."""
        return self._server

    def start(self, generation: Generation) -> Drafter | None:
        """A drafter of those that are available; None where none of them drafts for this request."""
        drafters: list[Drafter] = []
        for strategy in self._strategies:
            if _reason(strategy) is not None:
                continue
            try:
                drafter = strategy.start(generation)
            except SpecrouterError as error:
                _report(error)
                continue
            if drafter is not None:
                drafters.append(drafter)
        return FirstOfDrafter(drafters) if drafters else None


def _reason(strategy: DraftStrategy) -> str | None:
    """Why a strategy cannot draft now, or None. A faulty one cannot."""
    try:
        return strategy.available()
    except SpecrouterError as error:
        _report(error)
        return str(error)


def _report(error: SpecrouterError) -> None:
    """A server that went away is said, a fault in a plugin is shown."""
    if isinstance(error, UpstreamError):
        log.info("a strategy drafts no longer for this request: %s", error)
    else:
        log.error("%s", error, exc_info=error)


@hookimpl
def specrouter_draft_strategies() -> list[type[DraftStrategy]]:
    return [FirstOf]
