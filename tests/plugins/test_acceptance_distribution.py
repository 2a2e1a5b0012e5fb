"""Whether the acceptance policies keep the target's distribution, and whether this test would notice if not.

Answers of three tokens are counted, so that dependence between neighbours shows, and compared with their probabilities
(Pearson's chi-square). Drafts have from 0 to 3 tokens: answers have accepted, recovered and bonus tokens. All seeds
are fixed. What is right has to reach a p-value of 0.001, what is wrong has to stay under 1e-9.
"""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from specrouter_plugins.sampled import Sampled
from wrong_acceptance import (
    MATCH,
    REJECTION,
    WRONG,
    NothingToGoBy,
    SometimesIncomplete,
    Unchecked,
    UnsureDraftsWithheld,
)

from specrouter.interfaces import AcceptancePolicy
from specrouter.testing import PROMPT, ToyDecoder, ToyDistribution, chi_square

LENGTH = 3
ANSWERS = 9_000

TARGET = ToyDistribution.random(1)
STRANGER = ToyDistribution.random(2)
DRAFTERS = {"equal": TARGET, "near": TARGET.blend(STRANGER, 0.5), "stranger": STRANGER}


def counted(
    decoder: type[ToyDecoder],
    policy: AcceptancePolicy,
    drafter: ToyDistribution,
    *,
    target: ToyDistribution = TARGET,
    samples_drafts: bool = True,
    seed: int = 1,
) -> Counter[tuple[int, ...]]:
    made = decoder(policy, target, drafter, longest_draft=3, samples_drafts=samples_drafts, seed=seed)
    return made.count(PROMPT, LENGTH, ANSWERS)


def name(value: object) -> str:
    names = {MATCH: "match", REJECTION: "rejection"}
    if isinstance(value, Sampled):
        return names[value]
    return value.__name__ if isinstance(value, type) else type(value).__name__


@pytest.mark.parametrize("policy", [MATCH, REJECTION], ids=name)
def test_the_distribution_is_kept(policy: AcceptancePolicy) -> None:
    """With each drafter, drafting its most likely tokens or drawing them, and over all: 54,000 answers."""
    expected = TARGET.joint(PROMPT, LENGTH)
    every: Counter[tuple[int, ...]] = Counter()
    for seed, (samples_drafts, quality) in enumerate(itertools.product((False, True), DRAFTERS)):
        counts = counted(ToyDecoder, policy, DRAFTERS[quality], samples_drafts=samples_drafts, seed=seed)
        assert chi_square(counts, expected).p_value > 0.001, (samples_drafts, quality)
        every += counts
    assert chi_square(every, expected).p_value > 0.001


@pytest.mark.parametrize(
    ("decoder", "policy"),
    [(UnsureDraftsWithheld, MATCH), (NothingToGoBy, REJECTION), (SometimesIncomplete, REJECTION)],
    ids=name,
)
def test_what_keeps_it_too(decoder: type[ToyDecoder], policy: AcceptancePolicy) -> None:
    counts = counted(decoder, policy, DRAFTERS["near"])
    assert chi_square(counts, TARGET.joint(PROMPT, LENGTH)).p_value > 0.001


# No answer is impossible with these: only how often it is given tells.
ANYTHING = ToyDistribution.random(3, kept=4)
NEAR_ANYTHING = ANYTHING.blend(ToyDistribution.random(4, kept=4), 0.5)


@pytest.mark.parametrize(("decoder", "policy"), WRONG, ids=name)
def test_mistakes_are_caught(decoder: type[ToyDecoder], policy: AcceptancePolicy) -> None:
    counts = counted(decoder, policy, NEAR_ANYTHING, target=ANYTHING)
    assert chi_square(counts, ANYTHING.joint(PROMPT, LENGTH)).p_value < 1e-9


@pytest.mark.parametrize("policy", [MATCH, REJECTION, Unchecked({}, {})], ids=name)
def test_without_the_mistakes(policy: AcceptancePolicy) -> None:
    """On the same models, what the mistakes are made in is right."""
    counts = counted(ToyDecoder, policy, NEAR_ANYTHING, target=ANYTHING)
    assert chi_square(counts, ANYTHING.joint(PROMPT, LENGTH)).p_value > 0.001


def test_with_match_a_seed_is_a_text() -> None:
    """Whatever is drafted."""
    decoders = [
        ToyDecoder(MATCH, TARGET, drafter, longest_draft=longest, samples_drafts=samples, seed=9)
        for drafter in DRAFTERS.values()
        for longest in (0, 1, 6)
        for samples in (False, True)
    ]
    texts = [{decoder.answer(PROMPT, 24, seed) for decoder in decoders} for seed in range(50)]
    assert {len(text) for text in texts} == {1}
    assert len(set.union(*texts)) == 50


@pytest.mark.parametrize("samples_drafts", [False, True], ids=["most_likely_drafts", "sampled_drafts"])
@pytest.mark.parametrize("policy", [MATCH, REJECTION], ids=name)
def test_how_many_are_accepted(policy: AcceptancePolicy, samples_drafts: bool) -> None:
    """Rejection accepts sum(min(p, q)) of sampled drafts, as many as can be; match accepts sum(p * q)."""
    drafter = DRAFTERS["near"]
    decoder = ToyDecoder(policy, TARGET, drafter, longest_draft=3, samples_drafts=samples_drafts, seed=3)
    p, q = TARGET.distribution(PROMPT), drafter.distribution(PROMPT)
    if not samples_drafts:
        rate = p[max(q, key=q.__getitem__)]
    elif policy is REJECTION:
        rate = sum(min(share, q[token]) for token, share in p.items())
    else:
        rate = sum(share * q[token] for token, share in p.items())
    counts: Counter[bool] = Counter()
    for seed in range(ANSWERS):
        draft = decoder.draft(PROMPT)
        if draft:
            counts[decoder.accept(draft, decoder.verify(PROMPT, draft, seed)).accepted > 0] += 1
    assert chi_square(counts, {True: rate, False: 1 - rate}).p_value > 0.001
