"""Keeps a draft ahead of an answer while the target is busy with the part before."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing

import anyio

from .interfaces import Drafter
from .types import DraftToken, Outcome

_LAG = 3
"""Tokens by which a draft may be behind before it is cheaper to begin again."""


class DraftAhead:
    """The draft tokens behind the confirmed ones, as many as are wanted, drafted in the background by `run`.

    `limit` is the vocabulary's: ids from there on are unknown to the target, a draft ends before them.
    """

    def __init__(self, drafter: Drafter, prompt: Sequence[int], *, wanted: int, limit: int | None) -> None:
        self.pending: list[DraftToken] = []
        self.drafted = 0
        self._drafter = drafter
        self._confirmed = list(prompt)
        self._behind: list[int] = []  # said by the target, to be said by the draft yet
        self._wanted = wanted
        self._limit = limit
        self._is_exhausted = False
        self._has_ended = False
        self._scope = anyio.CancelScope()
        self._changed = anyio.Event()
        self._more = anyio.Event()

    async def run(self) -> None:
        """Draft until cancelled. Raises whatever the drafter raises."""
        while True:
            self._more = anyio.Event()
            if self._is_exhausted or len(self.pending) >= self._wanted:
                await self._more.wait()
                continue
            self._behind.clear()
            with anyio.CancelScope() as scope:
                self._scope = scope
                before = self.drafted
                await self._draft([*self._confirmed, *(token.id for token in self.pending)], scope)
                # The drafter has ended its text; the target may not.
                self._is_exhausted = self.drafted == before and not scope.cancel_called
                self._changed.set()

    async def _draft(self, context: Sequence[int], scope: anyio.CancelScope) -> None:
        async with aclosing(self._drafter.draft(context, 2 * self._wanted)) as tokens:
            async for token in tokens:
                # A token that had arrived just before the miss was known is handed over all the same.
                if scope.cancel_called or token.id < 0 or (self._limit is not None and token.id >= self._limit):
                    return
                self.drafted += 1
                if self._behind:
                    if token.id != self._behind.pop(0):
                        return
                    continue
                self.pending.append(token)
                self._changed.set()
                if len(self.pending) >= 2 * self._wanted:
                    return

    async def wait_for(self, count: int, seconds: float) -> None:
        """Until `count` tokens are pending or no more come, but no longer than that."""
        with anyio.move_on_after(seconds):
            while len(self.pending) < count and not (self._is_exhausted or self._has_ended):
                self._changed = anyio.Event()
                await self._changed.wait()

    def end(self) -> None:
        """Nothing more is drafted, whatever comes."""
        self.pending.clear()
        self._has_ended = True
        self._changed.set()

    def confirm(self, asked: int, accepted: int, next_token: int) -> None:
        """Of the first `asked` pending tokens the target accepted some, and said `next_token` after them."""
        said = [token.id for token in self.pending[:accepted]]
        self._confirmed += [*said, next_token]
        if asked:
            self._drafter.observe(Outcome(asked, accepted))
        follows = self.pending[asked : asked + 1]
        if accepted == asked and follows and follows[0].id == next_token:
            # The draft had foreseen it: what lies behind still holds.
            del self.pending[: asked + 1]
        elif accepted == asked and not follows and len(self._behind) < _LAG:
            # The draft is being made and may still say it: to begin again with every step would never end.
            self.pending.clear()
            self._behind.append(next_token)
        else:
            self.pending.clear()
            self._scope.cancel()
        self._is_exhausted = False
        self._more.set()
