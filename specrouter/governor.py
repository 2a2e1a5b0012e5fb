"""Decides when showing drafts to a target pays, and how much of them. Pure: the caller brings time and facts.

Units: times in seconds of one monotonic clock, costs and values in plain steps (the time in which the target alone
says one token).

The model behind it. A step whose batch holds other tokens besides the answer's own one costs more than a plain one
(`StepCost`, learned). A primed token is evaluated once when it is primed and, if the draft holds up to it, once more
when it is verified. An accepted token saves a step. So priming some more tokens is worth the likelihoods of those
tokens, each the product of what the drafter's confidence in it and in all before it has been worth so far
(`Calibration`), less what the steps that evaluate and verify them take longer, and that time counts as the tokens that
would have been said in it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

_BINS = 10
_GREEDY_ACCEPTANCE = 0.85
_SAMPLED_ACCEPTANCE = 0.7
_PRIOR_WEIGHT = 6.0
_MEMORY = 400.0  # tokens after which old ones fade

_SIZES = (1, 2, 4, 8, 16, 32, 64)
"""Extra tokens in a batch for which costs are kept."""

_USUAL_SURCHARGE = 0.3
_USUAL_TOKEN_COST = 0.15
_USUAL_WEIGHT = 2.0
_MEASURED_WEIGHT = 6.0
_ODD = 1.0
"""Plain steps, besides its expected cost, by which a single step may miss that cost and be believed."""

_COST_MEMORY = 25.0  # steps after which old ones fade

_DOUBTING = 64
_DOUBT = 1 / 32
"""After how many steps without others the costs return towards what they began with, and by what share of the way."""

_LEAD = 3
"""Tokens that a prime which starts from nothing does not save: those of the step under way and of the step that
evaluates it, and one more, since the best of many estimates is too good to be true."""

_SPEED_MEMORY = 96.0
"""Tokens over which the speed with drafts is averaged, across requests."""

_PATIENCE, _PATIENCE_AGAIN = 16.0, 12.0
"""Plain steps that drafts may cost before they stand down for the first time, and again."""

_CLEARLY = 6.0
_CREDIT = 24.0
"""Plain steps of gain after which drafts pay, clearly; and what counts of a long gain when losses follow."""

_SHORTEST_PAUSE = 64
_LONGEST_PAUSE = 2048


class Calibration:
    """What a drafter's confidence is worth: share of its tokens accepted so far, by their probability.

    `expected` is the share to begin with. It may be low: what comes true is seen without priming anything.
    """

    def __init__(self, expected: float) -> None:
        self._bins = [_Share() for _ in range(_BINS + 1)]
        self._all = _Share(expected * _PRIOR_WEIGHT, _PRIOR_WEIGHT)

    @classmethod
    def fresh(cls, *, is_greedy: bool) -> Calibration:
        """What to believe before anything was seen."""
        return cls(_GREEDY_ACCEPTANCE if is_greedy else _SAMPLED_ACCEPTANCE)

    def add(self, probability: float | None, *, accepted: bool) -> None:
        """Learn from one verified draft token."""
        self._bins[_bin(probability)].add(accepted)
        self._all.add(accepted)

    def acceptance(self, probability: float | None) -> float:
        """How likely a draft token of this probability is accepted, given that all before it were."""
        seen = self._bins[_bin(probability)]
        # What is known of all tokens goes for those of a probability that was rarely seen, with some caution: the
        # square is little less for good drafts and much for poor ones.
        return (seen.accepted + _PRIOR_WEIGHT * self.average**2) / (seen.tokens + _PRIOR_WEIGHT)

    @property
    def average(self) -> float:
        """Acceptance over all tokens seen."""
        return self._all.accepted / self._all.tokens


@dataclass(slots=True)
class _Share:
    """How many tokens were seen, and accepted; old ones fade."""

    accepted: float = 0.0
    tokens: float = 0.0

    def add(self, accepted: bool) -> None:
        if self.tokens >= _MEMORY:
            self.accepted *= 0.5
            self.tokens *= 0.5
        self.accepted += accepted
        self.tokens += 1


def _bin(probability: float | None) -> int:
    return _BINS if probability is None else min(int(probability * _BINS), _BINS - 1)


class StepCost:
    """What a step costs beyond a plain one, in plain steps, by the extra tokens in its batch: learned from steps.

    Linear between `_SIZES`. Costs never fall with size, but often rise unevenly: the second token of a batch can cost
    more than the ten after it. `measured[n]` is the cost of a batch of n tokens in plain steps, where somebody
    measured it; otherwise it begins with what is usual on CPUs.

    What was learned in bad times would keep drafts from being shown, and so from being seen to be cheap again: while
    nothing is shown, it is slowly forgotten.
    """

    def __init__(self, measured: Mapping[int, float] | None = None) -> None:
        self._costs = [_USUAL_SURCHARGE + _USUAL_TOKEN_COST * size for size in _SIZES]
        self._weights = [_USUAL_WEIGHT] * len(_SIZES)
        points = sorted((size - 1, max(0.0, steps - 1)) for size, steps in (measured or {}).items() if size > 1)
        if points:
            self._costs = [_interpolated(points, size) for size in _SIZES]
            self._weights = [_MEASURED_WEIGHT] * len(_SIZES)
        self._never_falling()
        self._first_costs, self._first_weights = list(self._costs), list(self._weights)
        self._without_others = 0
        # Where nothing was measured, the first step is not odd, it is all that is known.
        self._missed_before = 0.0 if points else math.inf
        self._of = self._table()

    def add(self, extra_tokens: int, extra_steps: float) -> None:
        """Learn from a step with `extra_tokens` in its batch that took `extra_steps` longer than a plain one."""
        self._without_others = 0
        expected = self.of(extra_tokens)
        # One odd step, with somebody else's prompt in it, is no reason to believe in several times the cost. Two are.
        missed = extra_steps - expected
        missed_by = min(missed, max(expected + _ODD, self._missed_before))
        self._missed_before = missed
        for index, size in enumerate(_SIZES):
            # Sizes up to twice as large or small are told something by it.
            nearness = 1 - abs(math.log2(size / extra_tokens)) / 2
            if nearness <= 0:
                continue
            self._weights[index] = min(self._weights[index] + nearness, _COST_MEMORY)
            self._costs[index] += missed_by * nearness / self._weights[index]
        self._never_falling()
        self._of = self._table()

    def add_without_others(self) -> None:
        """A step had nothing else in its batch."""
        self._without_others += 1
        if self._without_others == _DOUBTING:
            self._without_others = 0
            for now, first in ((self._costs, self._first_costs), (self._weights, self._first_weights)):
                now[:] = [value + _DOUBT * (begun - value) for value, begun in zip(now, first, strict=True)]
            self._of = self._table()

    def _never_falling(self) -> None:
        self._costs = list(accumulate(self._costs, max, initial=0.0))[1:]

    def _table(self) -> list[float]:
        """The costs of all sizes: they are asked for with each draft token, and change once a step."""
        points = list(zip(_SIZES, self._costs, strict=True))
        return [0.0, *(_interpolated(points, size) for size in range(1, 2 * _SIZES[-1] + 1))]

    def of(self, extra_tokens: int) -> float:
        """Cost of a step's extra tokens."""
        return self._of[min(extra_tokens, len(self._of) - 1)]


def _interpolated(points: Sequence[tuple[int, float]], size: int) -> float:
    """The value at `size`, on lines between points in order; flat before the first, beyond the last as before it."""
    before = (0, 0.0) if len(points) == 1 else points[-2]
    (low, first), (high, last) = before, points[-1]
    for index, (at, value) in enumerate(points):
        if size <= at:
            low, first = points[index - 1] if index else (0, value)
            high, last = at, value
            break
    return first + (last - first) * (size - low) / (high - low)


def longer_by(plain_steps: float, extra_tokens: int) -> float:
    """How much longer than a plain step one took that lasted `plain_steps`, as far as its extra tokens can explain."""
    return min(max(plain_steps - 1, 0.0), 1.0 + 1.5 * extra_tokens)


class Speed:
    """What drafts have brought lately, against the target alone. They may lose `patience` plain steps.

    A loss is counted from the last gain on, as in a cumulative sum control chart (E. S. Page, 1954): drafts lose
    before they win, so the speed of the last few tokens says little.
    """

    def __init__(self, patience: float = _PATIENCE) -> None:
        self._patience = patience
        self._tokens = self._steps = self._balance = 0.0

    def add(self, tokens: int, plain_steps: float) -> None:
        """`tokens` were said in the time of `plain_steps` plain steps."""
        fading = 0.5 ** (tokens / _SPEED_MEMORY)
        self._tokens = self._tokens * fading + tokens
        self._steps = self._steps * fading + plain_steps
        self._balance = min(self._balance + tokens - plain_steps, _CREDIT)

    @property
    def ratio(self) -> float:
        """Tokens per plain step, on average; 1 before anything was seen."""
        return self._tokens / self._steps if self._steps else 1.0

    @property
    def is_loss(self) -> bool:
        """Whether drafting should stand down."""
        return self._balance < -self._patience

    @property
    def is_gain(self) -> bool:
        """Whether drafting pays, clearly."""
        return self._balance > _CLEARLY

    @classmethod
    def after_standing_down(cls) -> Speed:
        """Nothing seen, and less patience."""
        return cls(_PATIENCE_AGAIN)


@dataclass(slots=True)
class Memory:
    """What is learned about a route under one kind of sampling, carried from request to request.

    `plain_step` is the time of a step of the target alone, None before one was seen. `pause` is how many tokens
    drafting rests when it stands down next, `resting` how many it still has to.
    """

    calibration: Calibration
    cost: StepCost = field(default_factory=StepCost)
    speed: Speed = field(default_factory=Speed)
    plain_step: float | None = None
    pause: int = _SHORTEST_PAUSE
    resting: int = 0

    @classmethod
    def fresh(cls, *, is_greedy: bool, batches: Mapping[int, float] | None = None) -> Memory:
        """What to believe before anything was seen. `batches` is what batches cost, as for `StepCost`, if measured."""
        return cls(Calibration.fresh(is_greedy=is_greedy), StepCost(batches))

    def add_plain_step(self, seconds: float) -> None:
        """Learn from a step that nothing accompanied."""
        if self.plain_step is None:
            self.plain_step = seconds
        else:
            # A step can be late for many reasons and early for none.
            weight = 0.25 if seconds < self.plain_step else 0.1
            self.plain_step += weight * (min(seconds, 2 * self.plain_step) - self.plain_step)

    def add_step(self, seconds: float, tokens: int, extra_tokens: int) -> None:
        """Learn from a step that said `tokens` tokens, with `extra_tokens` primed or verified ones in its batch."""
        assert self.plain_step is not None
        steps = seconds / self.plain_step
        # More than the others explain: the pool knew an earlier answer, or several steps were read together.
        unexplained = tokens - 1 > extra_tokens
        if extra_tokens and not unexplained:
            self.cost.add(extra_tokens, longer_by(steps, extra_tokens))
        elif not extra_tokens and tokens == 1:
            self.cost.add_without_others()
        longer = longer_by(steps, max(extra_tokens, tokens - 1))
        if not self.resting:
            # A step without others is a plain one whatever it took: a machine's hiccups say nothing about drafts.
            self.speed.add(tokens, 1 + longer if tokens > 1 or extra_tokens else 1.0)


class Governor:
    """Watches one answer. `primed` counts the pending draft tokens that were shown to the target already."""

    def __init__(self, memory: Memory, longest_verified: int) -> None:
        self.memory = memory
        self.stood_down = 0
        self._longest_verified = longest_verified

    @property
    def is_resting(self) -> bool:
        """Drafting has stood down for now."""
        return self.memory.resting > 0

    def step(self, seconds: float, tokens: int, extra_tokens: int) -> None:
        """The target took a step of `seconds`, said `tokens` tokens, with `extra_tokens` others in its batch."""
        memory = self.memory
        if tokens == 1 and extra_tokens == 0:
            memory.add_plain_step(seconds)
        if memory.plain_step is None:
            return
        memory.add_step(seconds, tokens, extra_tokens)
        if memory.resting:
            memory.resting = max(0, memory.resting - tokens)
        else:
            self._judge()

    def _judge(self) -> None:
        memory = self.memory
        if memory.speed.is_loss:
            self.stood_down += 1
            memory.speed = Speed.after_standing_down()
            memory.resting = memory.pause
            memory.pause = min(2 * memory.pause, _LONGEST_PAUSE)
        elif memory.speed.is_gain:
            memory.pause = _SHORTEST_PAUSE

    def tokens_to_prime(self, probabilities: Sequence[float | None], primed: int) -> int:
        """How many pending draft tokens should be primed in all; not more than `primed` means: nothing now."""
        # Until one step went by unaccompanied nothing can be compared with anything.
        if self.is_resting or self.memory.plain_step is None or len(probabilities) <= primed:
            return primed
        chain = self._chain(probabilities)
        return self._further_prime(chain, primed) if primed else self._first_prime(chain)

    def _further_prime(self, chain: Sequence[float], primed: int) -> int:
        """The pipeline runs: what to add to it. Each token is evaluated in two steps that have others in them."""
        cost, speed = self.memory.cost, self._speed
        beside = min(primed, self._longest_verified)
        alone, reached = cost.of(beside), chain[primed - 1]
        best, best_value, hits = primed, 0.0, 0.0
        # What the next step but one cannot verify is better primed later, when more is known.
        for count in range(1, min(len(chain) - primed, self._longest_verified + 1) + 1):
            hits += chain[primed + count - 1]
            # Where the draft breaks first, the step that evaluates it verifies nothing.
            further = cost.of(beside + count) - alone
            value = hits - speed * (2 * reached * further + (1 - reached) * cost.of(count))
            if value > best_value:
                best, best_value = primed + count, value
        return best

    def _first_prime(self, chain: Sequence[float]) -> int:
        """Start the pipeline, if that pays: tokens are evaluated in a step of their own and verified in the next."""
        cost, speed = self.memory.cost, self._speed
        lead = chain[min(_LEAD, len(chain)) - 1]
        best, best_value, hits = 0, 0.0, 0.0
        for count in range(_LEAD + 1, min(len(chain), _LEAD + self._longest_verified) + 1):
            hits += chain[count - 1]
            verified = count - _LEAD
            value = hits - speed * (cost.of(count) + lead * cost.of(verified))
            if value > best_value:
                best, best_value = count, value
        return best

    @property
    def _speed(self) -> float:
        """Tokens that a plain step's time is worth: what drafting brings here, and never less than the target alone."""
        return max(1.0, self.memory.speed.ratio)

    def _chain(self, probabilities: Sequence[float | None]) -> list[float]:
        """Likelihood that the draft holds up to and including each token."""
        acceptance = self.memory.calibration.acceptance
        product = 1.0
        chain = []
        for probability in probabilities:
            product *= acceptance(probability)
            chain.append(product)
        return chain

    def step_seconds(self, extra_tokens: int) -> float:
        """How long a step with that many extra tokens is expected to take; 0 before anything is known."""
        return (self.memory.plain_step or 0.0) * (1 + self.memory.cost.of(extra_tokens))

    @property
    def tokens_ahead(self) -> int:
        """How far ahead of the confirmed text to draft."""
        average = min(max(self.memory.calibration.average, 0.01), 0.99)
        # Three steps' tokens are under way at a time. Beyond this a draft survives less than one time in ten.
        return min(4 * (self._longest_verified + 1), max(8, math.ceil(math.log(0.1) / math.log(average))))
