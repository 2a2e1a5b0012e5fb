"""Decides when showing drafts to a target pays, and how much of them. Pure: the caller brings time and facts.

Units: times in seconds of one monotonic clock, costs and values in plain steps (the time in which the target alone
says one token).

The model behind it. A token that is primed is evaluated once when it is primed and, if the draft holds up to it,
once more when it is verified; each evaluation adds `token_cost` to a step. An accepted token saves one step. After
a miss, the target says about two tokens by itself before the first primed one can be verified: one in the step
under way, one in the step that evaluates the prime.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

_BINS = 10
_PRIOR_ACCEPTANCE = 0.85
_PRIOR_WEIGHT = 6.0
_MEMORY = 400.0  # outcomes per bin after which old ones fade

_PRIOR_TOKEN_COST = 0.15
_PRIOR_TOKENS = 40.0
_COST_MEMORY = 400.0

_LEAD = 2
"""Tokens the target says by itself before a prime that starts from nothing takes effect."""

_HORIZON = 12
"""Tokens beyond the drafted ones that count as hoped for, at the average acceptance."""

_WINDOW = 24
"""Tokens over which drafting has to show that it pays."""

_TOLERATED = 0.95
"""Speed against the target alone under which drafting stands down."""

_SHORTEST_PAUSE = 32
_LONGEST_PAUSE = 1024


class Calibration:
    """What a drafter's confidence is worth: share of its tokens accepted so far, by their probability."""

    def __init__(self) -> None:
        self._accepted = [_PRIOR_ACCEPTANCE * _PRIOR_WEIGHT] * (_BINS + 1)
        self._seen = [_PRIOR_WEIGHT] * (_BINS + 1)

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


@dataclass(slots=True)
class Memory:
    """What is learned about a route under one kind of sampling, carried from request to request.

    `plain_step` is the time of a step of the target alone, None before one was seen. `pause` is how many tokens
    drafting rests when it stands down next, `resting` how many it still has to.
    """

    calibration: Calibration = field(default_factory=Calibration)
    plain_step: float | None = None
    pause: int = _SHORTEST_PAUSE
    resting: int = 0
    _extra_tokens: float = _PRIOR_TOKENS
    _extra_steps: float = _PRIOR_TOKENS * _PRIOR_TOKEN_COST

    @property
    def token_cost(self) -> float:
        """What one more token in a step's batch costs, in plain steps."""
        return min(max(self._extra_steps / self._extra_tokens, 0.01), 1.5)

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
        if self._extra_tokens > _COST_MEMORY:
            self._extra_tokens *= 0.5
            self._extra_steps *= 0.5
        self._extra_tokens += extra_tokens
        self._extra_steps += min(seconds / self.plain_step - 1, 2.0 * extra_tokens)


class Governor:
    """Watches one answer. `primed` counts the pending draft tokens that were shown to the target already."""

    def __init__(self, memory: Memory, longest_verified: int) -> None:
        self.memory = memory
        self.stood_down = 0
        self._longest_verified = longest_verified
        self._steps: deque[tuple[float, int]] = deque()
        self._tokens = 0

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
            return
        self._steps.append((seconds, tokens))
        self._tokens += tokens
        while self._tokens - self._steps[0][1] >= _WINDOW:
            self._tokens -= self._steps.popleft()[1]
        self._stand_down_if_slow()

    def _stand_down_if_slow(self) -> None:
        memory = self.memory
        if self._tokens < _WINDOW or memory.plain_step is None:
            return
        elapsed = sum(seconds for seconds, _ in self._steps)
        speed = self._tokens * memory.plain_step / elapsed
        if speed < _TOLERATED:
            self.stood_down += 1
            memory.resting = memory.pause
            memory.pause = min(2 * memory.pause, _LONGEST_PAUSE)
            self._steps.clear()
            self._tokens = 0
        elif speed > 1.1:
            memory.pause = _SHORTEST_PAUSE

    def tokens_to_prime(self, probabilities: Sequence[float | None], primed: int) -> int:
        """How many pending draft tokens should be primed in all; not more than `primed` means: nothing now."""
        # Until one step went by unaccompanied nothing can be compared with anything.
        if self.is_resting or self.memory.plain_step is None:
            return primed
        if len(probabilities) <= primed or primed >= 2 * self._longest_verified:
            return primed
        cost = self.memory.token_cost
        chain = self._chain(probabilities)
        if primed == 0:
            return self._first_prime(chain, cost)
        # The pipeline runs: a further token pays when it is likelier than what both its evaluations cost.
        reached = chain[primed - 1]
        worth = primed
        while worth < len(chain) and chain[worth] > cost * (1 + reached):
            worth += 1
        return worth

    def _first_prime(self, chain: Sequence[float], cost: float) -> int:
        best, best_value, value = 0, 0.0, 0.0
        lead = chain[min(_LEAD, len(chain)) - 1]
        for index, likely in enumerate(chain):
            value -= cost
            if index >= _LEAD:
                value += likely - cost * lead
            if value > best_value:
                best, best_value = index + 1, value
        if best:
            return best
        # Too few tokens yet to pay by themselves: worth it if more of the usual quality follow.
        hoped, likely = value, chain[-1]
        for index in range(len(chain), len(chain) + _HORIZON):
            likely *= self.memory.calibration.average
            gain = likely - cost * lead if index >= _LEAD else 0.0
            hoped += gain - cost
            if hoped > 0:
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
        return (self.memory.plain_step or 0.0) * (1 + self.memory.token_cost * extra_tokens)

    @property
    def tokens_ahead(self) -> int:
        """How far ahead of the confirmed text to draft."""
        average = min(self.memory.calibration.average, 0.99)
        # Beyond this a draft survives less than one time in ten.
        return min(3 * self._longest_verified, max(8, math.ceil(math.log(0.1) / math.log(average))))
