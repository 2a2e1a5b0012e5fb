"""The acceptance policies `greedy` and `sampled`, one decision at a time."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from specrouter_plugins.greedy import Greedy
from specrouter_plugins.sampled import Sampled

from specrouter.errors import IncompleteDistribution
from specrouter.interfaces import AcceptancePolicy
from specrouter.types import Acceptance, DraftToken, Sampling, Verification

GREEDY = Sampling(temperature=0)
WARM = Sampling(temperature=0.7)
REJECTION = Sampled({"method": "rejection"}, {})
MATCHING: list[AcceptancePolicy] = [Greedy({}, {}), Sampled({}, {}), Sampled({"method": "match"}, {})]

TOKENS = st.lists(st.integers(0, 3), max_size=8)

Row = dict[int, float]


def drafted(*ids: int) -> list[DraftToken]:
    """Tokens chosen without chance."""
    return [DraftToken(token, b"") for token in ids]


def reject(
    draft: Sequence[DraftToken], tokens: Sequence[int], *rows: Row, rng: random.Random | None = None
) -> Acceptance:
    return REJECTION.accept(draft, Verification(tokens, rows), WARM, rng or random.Random(1))


# -- greedy, match -----------------------------------------------------------------------------------------


@given(TOKENS, st.data())
def test_what_is_emitted_is_what_the_target_said(ids: list[int], data: st.DataObject) -> None:
    """Accepted tokens and the next one are a beginning of the target's own tokens."""
    said = data.draw(st.lists(st.integers(0, 3), min_size=len(ids) + 1, max_size=len(ids) + 1))
    for policy in MATCHING:
        acceptance = policy.accept(drafted(*ids), Verification(said), GREEDY, random.Random(1))
        emitted = [*ids[: acceptance.accepted], acceptance.next_token]
        assert emitted == said[: len(emitted)]
        # As many as can be: the next one differs from the draft.
        assert acceptance.accepted == len(ids) or ids[acceptance.accepted] != acceptance.next_token


@pytest.mark.parametrize("policy", MATCHING)
def test_examples(policy: AcceptancePolicy) -> None:
    rng = random.Random(1)
    draft = drafted(1, 2, 3)
    assert policy.accept(draft, Verification([1, 2, 3, 4]), GREEDY, rng) == Acceptance(3, 4)
    assert policy.accept(draft, Verification([1, 9, 3, 4]), GREEDY, rng) == Acceptance(1, 9)
    assert policy.accept([], Verification([7]), GREEDY, rng) == Acceptance(0, 7)


@pytest.mark.parametrize("policy", [*MATCHING, REJECTION])
@pytest.mark.parametrize("positions", [1, 3])
def test_one_position_more_than_tokens(policy: AcceptancePolicy, positions: int) -> None:
    """A verifier that is off by one does not pass unnoticed."""
    verification = Verification([5] * positions, [{5: 1.0}] * positions)
    with pytest.raises(ValueError, match="zip"):
        policy.accept(drafted(5), verification, GREEDY, random.Random(1))


# -- what they cover and need ------------------------------------------------------------------------------


def test_what_they_cover() -> None:
    greedy, match, _ = MATCHING
    assert [greedy.covers(sampling) for sampling in (GREEDY, Sampling(), WARM)] == [True, False, False]
    constrained = Sampling(temperature=0.7, constrained=True)
    assert [match.covers(sampling) for sampling in (GREEDY, Sampling(), constrained)] == [True, True, True]
    assert [REJECTION.covers(sampling) for sampling in (GREEDY, Sampling(), constrained)] == [True, True, False]
    assert all(policy.is_lossless for policy in (*MATCHING, REJECTION))


def test_who_needs_distributions() -> None:
    assert [policy.needs_distributions for policy in (*MATCHING, REJECTION)] == [False, False, False, True]


# -- rejection ---------------------------------------------------------------------------------------------


class Lot(random.Random):
    """Always draws the same number."""

    def __init__(self, number: float) -> None:
        super().__init__()
        self.number = number

    def random(self) -> float:
        return self.number


SURE, NEVER = Lot(0.0), Lot(math.nextafter(1, 0))


def sampled(token: int, row: Row) -> DraftToken:
    return DraftToken(token, b"", row[token], row)


@pytest.mark.parametrize("rng", [SURE, NEVER], ids=["0", "1"])
def test_what_the_target_likes_better_is_accepted(rng: random.Random) -> None:
    draft = [sampled(1, {1: 0.5, 2: 0.5}), sampled(2, {1: 0.7, 2: 0.3})]
    acceptance = reject(draft, [8, 8, 4], {1: 0.5, 2: 0.5}, {1: 0.6, 2: 0.4}, {4: 0.2, 5: 0.8}, rng=rng)
    assert acceptance == Acceptance(2, 4), "the bonus token is the target's own"


@pytest.mark.parametrize("row", [{1: 1.0}, None], ids=["sampled", "chosen"])
@pytest.mark.parametrize("rng", [SURE, NEVER], ids=["0", "1"])
def test_what_the_target_never_says_is_rejected(row: Row | None, rng: random.Random) -> None:
    assert reject([DraftToken(1, b"", 1.0, row)], [8, 8], {2: 1.0}, {3: 1.0}, rng=rng) == Acceptance(0, 2)


def test_the_ratio_decides() -> None:
    """min(1, p / q) = 0.4 / 0.8; the recovered token is 2, the only one with more than its drafter gave it."""
    token, target, bonus = sampled(1, {1: 0.8, 2: 0.1, 3: 0.1}), {1: 0.4, 2: 0.5, 3: 0.1}, {6: 1.0}
    assert reject([token], [9, 6], target, bonus, rng=Lot(0.499)) == Acceptance(1, 6)
    assert reject([token], [9, 6], target, bonus, rng=Lot(0.501)) == Acceptance(0, 2)


def test_a_chosen_token_is_accepted_by_its_share() -> None:
    """q = 1; the recovered token is never the one that was rejected."""
    target = {1: 0.4, 2: 0.6}
    assert reject(drafted(1), [9, 6], target, {6: 1.0}, rng=Lot(0.399)) == Acceptance(1, 6)
    assert reject(drafted(1), [9, 6], target, {6: 1.0}, rng=Lot(0.401)) == Acceptance(0, 2)


def test_equal_but_for_rounding() -> None:
    """Rejected by a hair, and nothing is left: the target's distribution is the residual's limit."""
    token = sampled(1, {1: 0.5, 2: 0.5})
    assert reject([token], [9, 9], {1: 0.49999, 2: 0.49999}, {6: 1.0}, rng=NEVER) == Acceptance(0, 2)


HALVES = {1: 0.5, 2: 0.5}


@pytest.mark.parametrize(
    ("drafter", "target", "message"),
    [
        (HALVES, {1: 0.5, 2: 0.4998}, "the target's probabilities sum to 0.9998, not to 1"),
        (HALVES, {1: 0.5, 2: 0.51}, "the target's probabilities sum to 1.01, not to 1"),
        (HALVES, {}, "the target's probabilities sum to 0, not to 1"),
        (HALVES, {1: math.nan, 2: 0.5}, "the target's probabilities sum to nan, not to 1"),
        (None, {1: 0.5}, "the target's probabilities sum to 0.5, not to 1"),
        ({1: 0.5, 2: 0.4}, HALVES, "the drafter's probabilities sum to 0.9, not to 1"),
        ({}, HALVES, "the drafter's probabilities sum to 0, not to 1"),
        ({2: 1.0}, HALVES, "the drafter's probabilities have none for token 1, which it drew"),
        ({1: 0.0, 2: 1.0}, HALVES, "the drafter's probabilities have none for token 1, which it drew"),
    ],
)
def test_incomplete_distributions(drafter: Row | None, target: Row, message: str) -> None:
    """Refused where they are the first, without drawing a number; later the target's own sample decides."""
    token = DraftToken(1, b"", 0.5, drafter)
    rng = random.Random(1)
    before = rng.getstate()
    with pytest.raises(IncompleteDistribution, match=f"^{message}$"):
        reject([token], [1, 6], target, {6: 1.0}, rng=rng)
    assert rng.getstate() == before
    behind = ([*drafted(5), token], {5: 1.0}, target, {6: 1.0})
    assert reject(behind[0], [9, 1, 6], *behind[1:]) == Acceptance(2, 6)
    assert reject(behind[0], [9, 2, 6], *behind[1:]) == Acceptance(1, 2)


def test_negative_probabilities() -> None:
    with pytest.raises(IncompleteDistribution, match=r"^-0\.5 is among the target's probabilities"):
        reject(drafted(1), [1, 6], {1: 1.5, 2: -0.5}, {6: 1.0})


def test_no_distributions() -> None:
    with pytest.raises(IncompleteDistribution, match="the verifier brought no probabilities"):
        REJECTION.accept(drafted(1), Verification([1, 2]), WARM, random.Random(1))


def test_single_precision_is_complete() -> None:
    share = 0.33333334
    assert reject([sampled(1, {1: share, 2: share, 3: share})], [9, 6], {1: 0.99995}, {6: 1.0}) == Acceptance(1, 6)
