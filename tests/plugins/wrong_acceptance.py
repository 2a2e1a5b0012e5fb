"""Mistakes one can make with drafts, each of which changes what is said. The distribution test must catch them all.

A mistake of a policy is a policy; one around it (drafting, verifying, seeds) is a decoder, with a right policy.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from specrouter_plugins.sampled import Sampled, reject

from specrouter.errors import IncompleteDistribution
from specrouter.interfaces import AcceptancePolicy
from specrouter.testing import ToyDecoder
from specrouter.types import Acceptance, DraftToken, Verification

MATCH = Sampled({}, {})
REJECTION = Sampled({"method": "rejection"}, {})

Distribution = Mapping[int, float]

# -- what is right with some policies only ---------------------------------------------------------------


class UnsureDraftsWithheld(ToyDecoder):
    """A draft ends before a token that its drafter gives less than a third; wrong for rejection."""

    def draft(self, context: Sequence[int]) -> list[DraftToken]:
        draft = super().draft(context)
        unsure = (i for i, token in enumerate(draft) if token.probability is not None and token.probability < 0.33)
        return draft[: next(unsure, len(draft))]


class SometimesIncomplete(ToyDecoder):
    """After token 1 the server reports too little; wrong for `RefusesLate`."""

    def verify(self, context: Sequence[int], draft: Sequence[DraftToken], seed: int) -> Verification:
        right = super().verify(context, draft, seed)
        assert right.probabilities is not None
        last = [context[-1], *(token.id for token in draft)]
        rows = [cut(row) if token == 1 else row for token, row in zip(last, right.probabilities, strict=True)]
        return Verification(right.tokens, rows)


class NothingToGoBy(UnsureDraftsWithheld):
    """Unsure drafts are withheld, and no distributions are given."""

    def draft(self, context: Sequence[int]) -> list[DraftToken]:
        return [DraftToken(token.id, token.piece, token.probability) for token in super().draft(context)]


# -- around the policy -------------------------------------------------------------------------------------


class OneSeedForAllPositions(ToyDecoder):
    def position_seed(self, seed: int, position: int) -> int:
        return seed


class SeedPlusPosition(ToyDecoder):
    def position_seed(self, seed: int, position: int) -> int:
        return seed + position


class PositionsCountedFromTheDraft(ToyDecoder):
    """The next verification begins with the random number that this one began with."""

    def verify(self, context: Sequence[int], draft: Sequence[DraftToken], seed: int) -> Verification:
        self.begin = len(context)
        return super().verify(context, draft, seed)

    def position_seed(self, seed: int, position: int) -> int:
        return super().position_seed(seed, position - self.begin)


class PositionsOneTooLate(ToyDecoder):
    def verify(self, context: Sequence[int], draft: Sequence[DraftToken], seed: int) -> Verification:
        right = super().verify(context, draft, seed)
        assert right.probabilities is not None
        later = range(1, len(draft) + 1)
        tokens, probabilities = ([row[i] for i in (*later, -1)] for row in (right.tokens, right.probabilities))
        return Verification(tokens, probabilities)


class PositionsOneTooEarly(ToyDecoder):
    def verify(self, context: Sequence[int], draft: Sequence[DraftToken], seed: int) -> Verification:
        right = super().verify(context, draft, seed)
        assert right.probabilities is not None
        earlier = range(len(draft))
        tokens, probabilities = ([row[i] for i in (0, *earlier)] for row in (right.tokens, right.probabilities))
        return Verification(tokens, probabilities)


class CutDistribution(ToyDecoder):
    """Only the two most likely tokens are reported, as if there were no others."""

    def verify(self, context: Sequence[int], draft: Sequence[DraftToken], seed: int) -> Verification:
        right = super().verify(context, draft, seed)
        assert right.probabilities is not None
        return Verification(right.tokens, [renormalised(cut(row)) for row in right.probabilities])


class CutDistributionNotRenormalised(ToyDecoder):
    """The same with a policy that does not look whether something is missing (`Unchecked`)."""

    def verify(self, context: Sequence[int], draft: Sequence[DraftToken], seed: int) -> Verification:
        right = super().verify(context, draft, seed)
        assert right.probabilities is not None
        return Verification(right.tokens, [cut(row) for row in right.probabilities])


def cut(row: Distribution) -> Distribution:
    return {token: row[token] for token in sorted(row, key=row.__getitem__)[-2:]}


def renormalised(row: Distribution) -> Distribution:
    return {token: share / sum(row.values()) for token, share in row.items()}


# -- policies ----------------------------------------------------------------------------------------------


class Unchecked(AcceptancePolicy):
    """Rejection sampling with a place for each mistake."""

    name = "unchecked"

    def covers(self, sampling: Any) -> bool:
        return True

    def accept(self, draft: Any, verification: Verification, sampling: Any, rng: random.Random) -> Acceptance:
        assert verification.probabilities is not None
        for position, token in enumerate(draft):
            target, drafter = verification.probabilities[position], token.distribution
            if not self.accepts(target.get(token.id, 0.0), drafter[token.id], rng):
                return Acceptance(position, self.recovered(target, drafter, rng))
        return Acceptance(len(draft), self.bonus(verification, rng))

    def accepts(self, target: float, drafter: float, rng: random.Random) -> bool:
        return rng.random() * drafter < target

    def recovered(self, target: Distribution, drafter: Distribution, rng: random.Random) -> int:
        return draw(residual(target, drafter), rng)

    def bonus(self, verification: Verification, rng: random.Random) -> int:
        return verification.tokens[-1]


class ArgmaxOfTheResidual(Unchecked):
    def recovered(self, target: Distribution, drafter: Distribution, rng: random.Random) -> int:
        rest = residual(target, drafter)
        return max(rest, key=rest.__getitem__)


class NoResidual(Unchecked):
    def recovered(self, target: Distribution, drafter: Distribution, rng: random.Random) -> int:
        return draw(target, rng)


class AcceptsAlways(Unchecked):
    def accepts(self, target: float, drafter: float, rng: random.Random) -> bool:
        return True


class AcceptsWhatIsLikelier(Unchecked):
    def accepts(self, target: float, drafter: float, rng: random.Random) -> bool:
        return target >= drafter


class AcceptsByTheTargetAlone(Unchecked):
    def accepts(self, target: float, drafter: float, rng: random.Random) -> bool:
        return rng.random() < target


class BonusTokenOnePositionTooEarly(Unchecked):
    def bonus(self, verification: Verification, rng: random.Random) -> int:
        assert verification.probabilities is not None
        return draw(verification.probabilities[max(0, len(verification.tokens) - 2)], rng)


class RefusesLate(Unchecked):
    """Refuses a whole draft for an incomplete distribution at any position."""

    def accept(self, draft: Any, verification: Verification, sampling: Any, rng: random.Random) -> Acceptance:
        assert verification.probabilities is not None
        if any(sum(row.values()) < 0.99 for row in verification.probabilities):
            raise IncompleteDistribution("somewhere")
        return reject(draft, verification, rng)


def residual(target: Distribution, drafter: Distribution) -> Distribution:
    rest = {token: max(0.0, share - drafter.get(token, 0.0)) for token, share in target.items()}
    return rest if any(rest.values()) else target


def draw(row: Distribution, rng: random.Random) -> int:
    return rng.choices(list(row), list(row.values()))[0]


WRONG: list[tuple[type[ToyDecoder], AcceptancePolicy]] = [
    (OneSeedForAllPositions, MATCH),
    (SeedPlusPosition, MATCH),
    (PositionsCountedFromTheDraft, MATCH),
    (PositionsOneTooLate, MATCH),
    (PositionsOneTooEarly, MATCH),
    (PositionsOneTooLate, REJECTION),
    (PositionsOneTooEarly, REJECTION),
    (CutDistribution, REJECTION),
    (CutDistributionNotRenormalised, Unchecked({}, {})),
    (UnsureDraftsWithheld, REJECTION),
    (SometimesIncomplete, RefusesLate({}, {})),
    (ToyDecoder, ArgmaxOfTheResidual({}, {})),
    (ToyDecoder, NoResidual({}, {})),
    (ToyDecoder, AcceptsAlways({}, {})),
    (ToyDecoder, AcceptsWhatIsLikelier({}, {})),
    (ToyDecoder, AcceptsByTheTargetAlone({}, {})),
    (ToyDecoder, BonusTokenOnePositionTooEarly({}, {})),
]
