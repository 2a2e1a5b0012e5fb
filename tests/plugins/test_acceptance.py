"""The acceptance policies `greedy` and `sampled`."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from specrouter_plugins.greedy import Greedy
from specrouter_plugins.sampled import Sampled

from specrouter.interfaces import AcceptancePolicy
from specrouter.types import Acceptance, Sampling, Verification

GREEDY = Sampling(temperature=0)
POLICIES: list[AcceptancePolicy] = [Greedy({}, {}), Sampled({}, {})]

TOKENS = st.lists(st.integers(0, 3), max_size=8)


@given(TOKENS, st.data())
def test_what_is_emitted_is_what_the_target_said(draft: list[int], data: st.DataObject) -> None:
    """Accepted tokens and the next one are a beginning of the target's own tokens."""
    said = data.draw(st.lists(st.integers(0, 3), min_size=len(draft) + 1, max_size=len(draft) + 1))
    for policy in POLICIES:
        acceptance = policy.accept(draft, Verification(said), GREEDY, random.Random(1))
        emitted = [*draft[: acceptance.accepted], acceptance.next_token]
        assert emitted == said[: len(emitted)]
        # As many as can be: the next one differs from the draft.
        assert acceptance.accepted == len(draft) or draft[acceptance.accepted] != acceptance.next_token


@pytest.mark.parametrize("policy", POLICIES)
def test_examples(policy: AcceptancePolicy) -> None:
    rng = random.Random(1)
    assert policy.accept([1, 2, 3], Verification([1, 2, 3, 4]), GREEDY, rng) == Acceptance(3, 4)
    assert policy.accept([1, 2, 3], Verification([1, 9, 3, 4]), GREEDY, rng) == Acceptance(1, 9)
    assert policy.accept([], Verification([7]), GREEDY, rng) == Acceptance(0, 7)


def test_what_they_cover() -> None:
    greedy, sampled = POLICIES
    assert greedy.covers(GREEDY)
    assert not greedy.covers(Sampling())
    assert not greedy.covers(Sampling(temperature=0.7))
    assert sampled.covers(Sampling(temperature=0.7, constrained=True))
    assert all(policy.is_lossless for policy in POLICIES)


def test_sample_and_match_keeps_the_distribution() -> None:
    """The first token that is emitted is distributed as the target's, whatever is drafted."""
    rng = random.Random(5)
    weights = [0.6, 0.3, 0.1]
    counts = [0, 0, 0]
    number = 20_000
    for _ in range(number):
        draft = [rng.randrange(3)]
        said = rng.choices(range(3), weights, k=2)
        acceptance = POLICIES[1].accept(draft, Verification(said), Sampling(temperature=1), rng)
        counts[draft[0] if acceptance.accepted else acceptance.next_token] += 1
    chi_square = sum((count - number * w) ** 2 / (number * w) for count, w in zip(counts, weights, strict=True))
    assert chi_square < 13.8  # p = 0.001, two degrees of freedom
