"""Keeps a draft ahead of an answer while the target is busy with the part before."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import replace

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
            if self._is_exhausted or len(self.pending) >= self._wanted:
                self._more = anyio.Event()
                await self._more.wait()
                continue
            self._behind.clear()
            with anyio.CancelScope() as scope:
                self._scope = scope
                before, known = self.drafted, len(self._confirmed)
                await self._draft([*self._confirmed, *(token.id for token in self.pending)], scope)
                # The drafter has ended its text; the target may not, and may have gone on meanwhile.
                is_current = not scope.cancel_called and len(self._confirmed) == known
                self._is_exhausted = self.drafted == before and is_current
                self._changed.set()

    async def _draft(self, context: Sequence[int], scope: anyio.CancelScope) -> None:
        async with aclosing(self._drafter.draft(context, 2 * self._wanted)) as tokens:
            async for token in tokens:
                # A token that had arrived just before the miss was known is handed over all the same.
                if scope.cancel_called or token.id < 0 or (self._limit is not None and token.id >= self._limit):
                    return
                self.drafted += 1
                if self._behind:
                    is_right = token.id == self._behind.pop(0)
                    self._drafter.observe(Outcome(1, int(is_right)))
                    if not is_right:
                        return
                    continue
                self.pending.append(self._within_limit(token))
                self._changed.set()
                if len(self.pending) >= 2 * self._wanted:
                    return

    def _within_limit(self, token: DraftToken) -> DraftToken:
        """The token, without a distribution that goes beyond the limit.

        Of such a one only tokens below the limit are left: they are not distributed as it says. Taken as chosen
        without chance, they may be chosen in any way.
        """
        limit = self._limit
        if limit is None or not any(share for known, share in (token.distribution or {}).items() if known >= limit):
            return token
        return replace(token, distribution=None)

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
        follows = self.pending[asked : asked + 1] if accepted == asked else []
        is_foreseen = bool(follows) and follows[0].id == next_token
        if is_foreseen:
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
        if asked or follows:
            self._drafter.observe(Outcome(asked + len(follows), accepted + is_foreseen))
