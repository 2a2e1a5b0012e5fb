"""Decides when showing drafts to a target pays, and how much of them. Pure: the caller brings time and facts.

Units: times in seconds of one monotonic clock, costs and values in plain steps (the time in which the target alone
says one token).

The model behind it. A step whose batch holds other tokens besides the answer's own one costs a fixed surcharge and
something per token (`StepCost`, learned). A primed token is evaluated once when it is primed and, if the draft holds
up to it, once more when it is verified. An accepted token saves one step. After a miss, the target says about two
tokens by itself before the first primed one can be verified: one in the step under way, one in the step that
evaluates the prime.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

_BINS = 10
_GREEDY_ACCEPTANCE = 0.85
_SAMPLED_ACCEPTANCE = 0.7
_PRIOR_WEIGHT = 6.0
_MEMORY = 400.0  # outcomes per bin after which old ones fade

_PRIOR_SURCHARGE = 0.3
_PRIOR_TOKEN_COST = 0.15
_PRIOR_BATCHES = ((4, 3.0), (16, 3.0))  # extra tokens, weight
_COST_FADING = 0.98

_LEAD = 2
"""Tokens the target says by itself before a prime that starts from nothing takes effect."""

_HORIZON = 12
"""Tokens beyond the drafted ones that count as hoped for, at the average acceptance."""

TRIAL = 20
"""Tokens for which drafting is given a chance before its speed is judged."""

_SPEED_MEMORY = 96.0
"""Tokens over which the speed with drafts is averaged, across requests."""

_TOLERATED = 0.97
_DOUBT = 5.0
"""Drafting stands down at a speed, against the target alone, under `_TOLERATED - _DOUBT / tokens seen`."""

_CLEARLY = 1.05

_SHORTEST_PAUSE = 64
_LONGEST_PAUSE = 2048


class Calibration:
    """What a drafter's confidence is worth: share of its tokens accepted so far, by their probability.

    `expected` is the share to begin with. It may be low: what comes true is seen without priming anything.
    """

    def __init__(self, expected: float) -> None:
        self._accepted = [expected * _PRIOR_WEIGHT] * (_BINS + 1)
        self._seen = [_PRIOR_WEIGHT] * (_BINS + 1)

    @classmethod
    def fresh(cls, *, is_greedy: bool) -> Calibration:
        """What to believe before anything was seen."""
        return cls(_GREEDY_ACCEPTANCE if is_greedy else _SAMPLED_ACCEPTANCE)

    def add(self, probability: float | None, *, accepted: bool) -> None:
        """Learn from one verified draft token."""
        index = _bin(probability)
        if self._seen[index] >= _MEMORY:
            self._accepted[index] *= 0.5
            self._seen[index] *= 0.5
        self._accepted[index] += accepted
        self._seen[index] += 1

    def acceptance(self, probability: float | None) -> float:
        """How likely a draft token of this probability is accepted, given that all before it were."""
        index = _bin(probability)
        return self._accepted[index] / self._seen[index]

    @property
    def average(self) -> float:
        """Acceptance over all tokens seen."""
        return sum(self._accepted) / sum(self._seen)


def _bin(probability: float | None) -> int:
    return _BINS if probability is None else min(int(probability * _BINS), _BINS - 1)


class StepCost:
    """What a step costs beyond a plain one, in plain steps: `surcharge` + `per_token` times its extra tokens.

    A least-squares line through the steps seen, older ones fading, that starts from what is usual on CPUs.
    """

    def __init__(self) -> None:
        self._weight = self._x = self._y = self._xx = self._xy = 0.0
        for tokens, weight in _PRIOR_BATCHES:
            self._add(tokens, _PRIOR_SURCHARGE + _PRIOR_TOKEN_COST * tokens, weight)

    def add(self, extra_tokens: int, extra_steps: float) -> None:
        """Learn from a step with `extra_tokens` in its batch that took `extra_steps` longer than a plain one."""
        self._weight *= _COST_FADING
        self._x *= _COST_FADING
        self._y *= _COST_FADING
        self._xx *= _COST_FADING
        self._xy *= _COST_FADING
        self._add(extra_tokens, extra_steps, 1.0)

    def _add(self, tokens: float, steps: float, weight: float) -> None:
        self._weight += weight
        self._x += weight * tokens
        self._y += weight * steps
        self._xx += weight * tokens * tokens
        self._xy += weight * tokens * steps

    @property
    def per_token(self) -> float:
        """Cost of one more token in a batch that has extra tokens already."""
        spread = self._xx - self._x * self._x / self._weight
        slope = (self._xy - self._x * self._y / self._weight) / spread if spread > 1e-6 else _PRIOR_TOKEN_COST
        # Never more than the average per token: the line goes through or above the origin.
        return min(max(slope, 0.01), max(self._y / self._x, 0.01))

    @property
    def surcharge(self) -> float:
        """Cost of having extra tokens in a batch at all."""
        return max(0.0, (self._y - self.per_token * self._x) / self._weight)

    def of(self, extra_tokens: int) -> float:
        """Cost of a step's extra tokens."""
        return self.surcharge + self.per_token * extra_tokens if extra_tokens else 0.0


class Speed:
    """Speed with drafts, as a multiple of the target alone, over the last tokens; 1 before anything was seen."""

    def __init__(self) -> None:
        self.tokens = 0.0
        self._steps = 0.0

    def add(self, tokens: int, plain_steps: float) -> None:
        """`tokens` were said in the time of `plain_steps` plain steps."""
        fading = 0.5 ** (tokens / _SPEED_MEMORY)
        self.tokens = self.tokens * fading + tokens
        self._steps = self._steps * fading + plain_steps

    @property
    def ratio(self) -> float:
        """Tokens per plain step."""
        return self.tokens / self._steps if self._steps else 1.0

    @property
    def is_loss(self) -> bool:
        """Whether drafting should stand down. Few tokens say little: every answer begins with what pays off later."""
        return self.ratio < _TOLERATED - _DOUBT / self.tokens

    @property
    def is_gain(self) -> bool:
        """Whether drafting pays, clearly."""
        return self.ratio > _CLEARLY


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
    def fresh(cls, *, is_greedy: bool) -> Memory:
        """What to believe before anything was seen."""
        return cls(Calibration.fresh(is_greedy=is_greedy))

    def add_plain_step(self, seconds: float) -> None:
        """Learn from a step that nothing accompanied."""
        if self.plain_step is None:
            self.plain_step = seconds
        else:
            # A step can be late for many reasons and early for none.
            weight = 0.25 if seconds < self.plain_step else 0.1
            self.plain_step += weight * (min(seconds, 2 * self.plain_step) - self.plain_step)

    def add_step(self, seconds: float, extra_tokens: int) -> None:
        """Learn from a step whose batch held `extra_tokens` primed or verified tokens."""
        assert self.plain_step is not None
        self.cost.add(extra_tokens, min(max(seconds / self.plain_step - 1, 0.0), 1.0 + 1.5 * extra_tokens))


class Governor:
    """Watches one answer. `primed` counts the pending draft tokens that were shown to the target already."""

    def __init__(self, memory: Memory, longest_verified: int) -> None:
        self.memory = memory
        self.stood_down = 0
        self._longest_verified = longest_verified
        self._tokens = 0  # said with drafts since this answer, or its last rest, began

    @property
    def is_resting(self) -> bool:
        """Drafting has stood down for now."""
        return self.memory.resting > 0

    def step(self, seconds: float, tokens: int, extra_tokens: int) -> None:
        """The target took a step of `seconds`, said `tokens` tokens, with `extra_tokens` others in its batch."""
        memory = self.memory
        if tokens == 1 and extra_tokens == 0:
            memory.add_plain_step(seconds)
        elif extra_tokens > 0 and memory.plain_step is not None:
            memory.add_step(seconds, extra_tokens)
        if memory.resting > 0:
            memory.resting = max(0, memory.resting - tokens)
        elif memory.plain_step is not None:
            self._tokens += tokens
            memory.speed.add(tokens, seconds / memory.plain_step)
            if self._tokens >= TRIAL:
                self._judge()

    def _judge(self) -> None:
        memory = self.memory
        if memory.speed.is_loss:
            self.stood_down += 1
            self._tokens = 0
            memory.speed = Speed()
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
        chunk = self._best_chunk()
        if primed == 0:
            return self._first_prime(chain[: _LEAD + chunk])
        # The pipeline runs: a further token pays when it is likelier than what both its evaluations cost. What the
        # next step but one cannot verify is better primed later, when more is known.
        cost, reached, worth = self.memory.cost.per_token, chain[primed - 1], primed
        while worth < min(len(chain), primed + chunk + 1) and chain[worth] > cost * (1 + reached):
            worth += 1
        return worth

    def _best_chunk(self) -> int:
        """How many tokens per step to prime and verify, when drafts go on as they did: the best speed."""
        cost, acceptance = self.memory.cost, self.memory.calibration.average
        best, best_speed, said, likely = 1, 0.0, 1.0, 1.0
        for length in range(1, self._longest_verified + 1):
            likely *= acceptance
            said += likely
            speed = said / (1 + cost.of(2 * length + 1))
            # Shorter ones bind less: a longer one has to be clearly better.
            if speed > best_speed * 1.02:
                best, best_speed = length, speed
        return best

    def _first_prime(self, chain: Sequence[float]) -> int:
        cost, surcharge = self.memory.cost.per_token, self.memory.cost.surcharge
        lead = chain[min(_LEAD, len(chain)) - 1]
        best, best_value = 0, 0.0
        # The step that evaluates the prime and the one that verifies it are both dearer than plain ones.
        value = -surcharge * (1 + lead)
        for index, likely in enumerate(chain):
            value -= cost
            if index >= _LEAD:
                value += likely - cost * lead
            if value > best_value:
                best, best_value = index + 1, value
        if best:
            return best
        # Too few tokens yet to pay by themselves: worth it if more of the usual quality follow.
        likely = chain[-1]
        for index in range(len(chain), len(chain) + _HORIZON):
            likely *= self.memory.calibration.average
            value += (likely - cost * lead if index >= _LEAD else 0.0) - cost
            if value > 0:
                return len(chain)
        return 0

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
        average = min(self.memory.calibration.average, 0.99)
        # Beyond this a draft survives less than one time in ten.
        return min(3 * self._longest_verified, max(8, math.ceil(math.log(0.1) / math.log(average))))
