"""Conformance tests for acceptance policies."""

from __future__ import annotations

import copy
import itertools
import math
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from specrouter.errors import IncompleteDistribution
from specrouter.interfaces import AcceptancePolicy, Plugin
from specrouter.testing.chi_square import chi_square
from specrouter.testing.toy_sampling import PROMPT, ToyDecoder, ToyDistribution
from specrouter.types import Acceptance, DraftToken, Sampling, Verification

from .plugin import PluginConformance
from .rules import Rule

_GREEDY = Sampling(temperature=0)
_SANE = [
    _GREEDY,
    Sampling(temperature=1.0),
    Sampling(temperature=0.3),
    Sampling(temperature=0.8, top_k=40, top_p=0.95, min_p=0.05),
    Sampling(temperature=1.5, min_p=0.1),
    Sampling(temperature=0.7, seed=7),
    Sampling(temperature=None),
    Sampling(temperature=0, constrained=True),
    Sampling(temperature=0.7, constrained=True),
]

_ODD = [
    Sampling(temperature, top_k, top_p, min_p, seed, constrained)
    for temperature, top_k, top_p, min_p, seed, constrained in itertools.product(
        (None, -1.0, 0.0, 1e-9, 0.7, 1e9, math.inf, math.nan),
        (None, -1, 0, 1, 10**9),
        (None, 0.0, 1.0, 7.0),
        (None, 2.0),
        (None, -1, 0),
        (False, True),
    )
]

_ANSWERS = 6_000
_LENGTH = 3
_LEAST_P_VALUE = 1e-5
"""One policy in 100,000 that is right is called wrong; seeds are fixed, so it is the same one every time."""


@dataclass(frozen=True, slots=True)
class _Case:
    """What a policy is asked to decide."""

    draft: Sequence[DraftToken]
    verification: Verification
    seed: int


class AcceptancePolicyConformance(PluginConformance):
    """Tests for an acceptance policy.

    class TestMine(AcceptancePolicyConformance):
        policy = MyPolicy
    """

    kind = "accept"
    policy: ClassVar[type[AcceptancePolicy]]

    @property
    def plugin(self) -> type[Plugin]:
        """The policy."""
        return self.policy

    @cached_property
    def _made(self) -> AcceptancePolicy:
        with self._stage() as stage:
            return stage.route.policies[0].plugin

    @cached_property
    def _covered(self) -> list[Sampling]:
        return [sampling for sampling in _SANE if self._made.covers(sampling)]

    def test_what_it_covers(self) -> None:
        """An answer for every sampling, also for those that no sane request asks for."""
        for sampling in (*_SANE, *_ODD):
            try:
                covers = self._made.covers(sampling)
            except Exception as error:
                self._judge.broken(Rule.COVERS, f"covers({sampling}) raised {error!r}")
            self._judge.expect(isinstance(covers, bool), Rule.COVERS, f"covers({sampling}) returned {covers!r}")
            again = self._made.covers(sampling)
            self._judge.expect(covers == again, Rule.PURE, f"covers({sampling}) was {covers}, then {again}")
        tried = ", ".join(str(sampling) for sampling in _SANE)
        self._judge.expect(bool(self._covered), Rule.COVERS, f"covers() is False for all of {tried}")

    def test_it_accepts_a_prefix(self) -> None:
        """And the next token is one of the target's."""
        for sampling, case in self._cases():
            acceptance = self._accept(case, sampling)
            drafted = len(case.draft)
            is_one = isinstance(acceptance, Acceptance) and acceptance.accepted in range(drafted + 1)
            what = f"of a draft of {drafted} tokens, accept() returned {acceptance!r}"
            self._judge.expect(is_one, Rule.ACCEPTED, what)
            rows = case.verification.probabilities
            assert rows is not None
            said = rows[acceptance.accepted].get(acceptance.next_token, 0) > 0
            where = f"the next token {acceptance.next_token} at position {acceptance.accepted} has no share there"
            self._judge.expect(said, Rule.FOLLOWING, where)
            if self.policy.is_lossless:
                shares = [rows[i].get(case.draft[i].id, 0) for i in range(acceptance.accepted)]
                unlikely = "it accepted a draft token that the target never says there"
                self._judge.expect(all(shares), Rule.LOSSLESS, unlikely)

    def test_it_is_pure(self) -> None:
        """The same result forwards, backwards, and of another instance; what it is given stays."""
        cases = list(self._cases())
        results = [self._accept(case, sampling) for sampling, case in cases]
        backwards = [self._accept(case, sampling) for sampling, case in reversed(cases)]
        with self._stage() as stage:
            other = stage.route.policies[0].plugin
        again = [self._accept(case, sampling, other) for sampling, case in cases]
        same = results == backwards[::-1] == again
        self._judge.expect(same, Rule.PURE, "accept() gave another result for the same input")
        for sampling, case in cases:
            before = copy.deepcopy(case)
            self._accept(case, sampling)
            self._judge.expect(case == before, Rule.INPUTS_STAY, "accept() changed what it was given")

    def test_incomplete_distributions(self) -> None:
        """Without any, and with one that does not sum to 1."""
        for sampling, case in self._cases():
            if not case.draft:
                continue
            tokens = case.verification.tokens
            rows = case.verification.probabilities
            assert rows is not None
            half = [{token: share / 2 for token, share in row.items()} for row in rows]
            for poor in (Verification(tokens), Verification(tokens, half)):
                rng = random.Random(case.seed)  # noqa: S311
                before = rng.getstate()
                try:
                    self._made.accept(case.draft, poor, sampling, rng)
                except IncompleteDistribution:
                    needs = "it does not need distributions, and raised IncompleteDistribution"
                    self._judge.expect(self._made.needs_distributions, Rule.INCOMPLETE, needs)
                    drawn = "IncompleteDistribution was raised after a random number was drawn"
                    self._judge.expect(rng.getstate() == before, Rule.INCOMPLETE, drawn)
                except Exception as error:
                    self._judge.broken(Rule.INCOMPLETE, f"with incomplete distributions, accept() raised {error!r}")

    def test_greedy_answers_stay(self) -> None:
        """Where the target has one token to say at each position, it is said."""
        samplings = [sampling for sampling in self._covered if sampling.is_greedy]
        target = ToyDistribution.random(1, kept=1)
        for drafter in (target, ToyDistribution.random(2, kept=1), target.blend(ToyDistribution.random(3), 0.5)):
            self._keeps(target, drafter, samplings, 500)

    def test_the_distribution_is_kept(self) -> None:
        """Pearson's chi-square test of answers of three tokens, with drafters as good as the target, and worse."""
        samplings = [sampling for sampling in self._covered if not sampling.is_greedy]
        target = ToyDistribution.random(1)
        for drafter in (target.blend(ToyDistribution.random(2), 0.5), ToyDistribution.random(2)):
            self._keeps(target, drafter, samplings, _ANSWERS)

    # -- steps ---------------------------------------------------------------------------------------------

    def _accept(self, case: _Case, sampling: Sampling, policy: AcceptancePolicy | None = None) -> Acceptance:
        rng = random.Random(case.seed)  # noqa: S311
        return (policy or self._made).accept(case.draft, case.verification, sampling, rng)

    def _cases(self) -> Iterator[tuple[Sampling, _Case]]:
        """Drafts of 0 to 4 tokens, drawn and chosen, against a target that agrees with some of them."""
        for sampling in self._covered:
            kept = 1 if sampling.is_greedy else 3
            target, drafter = ToyDistribution.random(1, kept=kept), ToyDistribution.random(2)
            for seed, draws in itertools.product(range(40), (True, False)):
                drawn = draws and not sampling.is_greedy
                decoder = ToyDecoder(
                    self._made, target, target.blend(drafter, 0.5), longest_draft=4, samples_drafts=drawn, seed=seed
                )
                draft = decoder.draft(PROMPT)
                yield sampling, _Case(draft, decoder.verify(PROMPT, draft, seed), seed)

    def _keeps(
        self, target: ToyDistribution, drafter: ToyDistribution, samplings: Sequence[Sampling], answers: int
    ) -> None:
        """Whether answers, shared among the samplings, are distributed as the target's: it is the same for all."""
        if not samplings or not self.policy.is_lossless:
            return
        expected = target.joint(PROMPT, _LENGTH)
        for draws in (True, False):
            counts: Counter[tuple[int, ...]] = Counter()
            for seed, sampling in enumerate(samplings, start=1):
                drawn = draws and not sampling.is_greedy
                decoder = ToyDecoder(self._made, target, drafter, longest_draft=3, samples_drafts=drawn, seed=seed)
                decoder.sampling = sampling
                counts += decoder.count(PROMPT, _LENGTH, answers // len(samplings))
            result = chi_square(counts, expected)
            how = "drawn" if draws else "chosen without chance"
            said = f"with drafts that are {how}, {answers} answers are not distributed as the target's (p = {{:.1e}})"
            self._judge.expect(result.p_value > _LEAST_P_VALUE, Rule.LOSSLESS, said.format(result.p_value))
