"""Looks at draft tokens one by one."""

from __future__ import annotations

import math

from specrouter.types import DraftToken

from .rules import Judge, Rule
from .stage import Stage

_TOLERANCE = 1e-3


class TokenJudge:
    """Says what is wrong with a token that was drafted for the target of a stage."""

    def __init__(self, judge: Judge, stage: Stage) -> None:
        self._judge = judge
        self._vocabulary = stage.fakes["target"].model.vocabulary
        self._limit = min(len(fake.model.vocabulary) for fake in stage.fakes.values())

    def look_at(self, token: object) -> None:
        """Raises RuleBroken."""
        judge = self._judge
        if not isinstance(token, DraftToken):
            judge.broken(Rule.DRAFTS, f"draft() yielded {token!r}, which is no DraftToken")
        is_id = isinstance(token.id, int) and 0 <= token.id < self._limit
        judge.expect(is_id, Rule.IDS, f"it drafted the id {token.id!r}, and `vocabulary_limit` is {self._limit}")
        piece = self._vocabulary.pieces[token.id]
        judge.expect(
            token.piece == piece, Rule.PIECES, f"it drafted token {token.id} with piece {token.piece!r} for {piece!r}"
        )
        share = token.probability
        is_share = share is None or (isinstance(share, int | float) and 0 <= share <= 1)
        judge.expect(is_share, Rule.PROBABILITY, f"it drafted a token with probability {share!r}")
        if token.distribution is not None:
            total = math.fsum(token.distribution.values())
            judge.expect(abs(total - 1) < _TOLERANCE, Rule.DISTRIBUTION, f"a distribution sums to {total:g}")
            is_in = token.distribution.get(token.id, 0) > 0
            judge.expect(is_in, Rule.DISTRIBUTION, f"token {token.id} has no share in its own distribution")
