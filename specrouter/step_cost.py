"""What a target's steps cost by the size of their batches, learned as they go by. Pure."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping
from itertools import accumulate

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


class Curve:
    """Costs by size: through the given points, linear between them, never falling.

    Before the first point it is flat, beyond the last it goes on as between the last two.
    """

    def __init__(self, points: Mapping[int, float]) -> None:
        self._sizes = sorted(points)
        # More never costs less: where it was measured so, that was noise.
        self._costs = list(accumulate((points[size] for size in self._sizes), max))

    def at(self, size: int) -> float:
        """The cost of that size."""
        if size <= self._sizes[0] or len(self._sizes) == 1:
            return self._costs[0]
        index = min(bisect_left(self._sizes, size), len(self._sizes) - 1)
        low, high = self._sizes[index - 1], self._sizes[index]
        first, last = self._costs[index - 1], self._costs[index]
        return first + (last - first) * (size - low) / (high - low)

    @property
    def points(self) -> dict[int, float]:
        """The points it goes through."""
        return dict(zip(self._sizes, self._costs, strict=True))


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
        points = {size - 1: max(0.0, steps - 1) for size, steps in (measured or {}).items() if size > 1}
        if points:
            # A single one makes a line from nothing.
            curve = Curve(points if len(points) > 1 else {0: 0.0, **points})
            self._costs = [curve.at(size) for size in _SIZES]
            self._weights = [_MEASURED_WEIGHT] * len(_SIZES)
        self._never_falling()
        self._first_costs, self._first_weights = list(self._costs), list(self._weights)
        self._without_others = 0
        # Where nothing was measured, the first step is not odd, it is all that is known.
        self._missed_before = 0.0 if points else math.inf
        self._tabulate()

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
        self._tabulate()

    def add_without_others(self) -> None:
        """A step had nothing else in its batch."""
        self._without_others += 1
        if self._without_others == _DOUBTING:
            self._without_others = 0
            for now, first in ((self._costs, self._first_costs), (self._weights, self._first_weights)):
                now[:] = [value + _DOUBT * (begun - value) for value, begun in zip(now, first, strict=True)]
            self._tabulate()

    def _never_falling(self) -> None:
        """Average what falls, by what it rests on: isotonic regression, by pooling adjacent violators (Ayer, 1955)."""
        pools: list[tuple[float, float, int]] = []
        for cost, weight in zip(self._costs, self._weights, strict=True):
            pools.append((max(cost, 0.0), weight, 1))
            while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
                (one, weighs, ones), (other, weighs_too, others) = pools[-2:]
                total = weighs + weighs_too
                pools[-2:] = [((one * weighs + other * weighs_too) / total, total, ones + others)]
        self._costs = [cost for cost, _, sizes in pools for _ in range(sizes)]

    def _tabulate(self) -> None:
        """The costs of usual sizes: they are asked for often, and change once a step."""
        self._curve = Curve(dict(zip(_SIZES, self._costs, strict=True)))
        self._of = [0.0, *(self._curve.at(size) for size in range(1, 2 * _SIZES[-1] + 1))]

    def of(self, extra_tokens: int, beside: int = 0) -> float:
        """Cost of a step's extra tokens, where it has those of `beside` other answers too."""
        return self._total(beside + extra_tokens) - self._total(beside)

    def _total(self, tokens: int) -> float:
        return self._of[tokens] if tokens < len(self._of) else self._curve.at(tokens)

    def shared(self, beside: int) -> float:
        """What a step takes that says a token of this answer and of `beside` others."""
        return 1 + self.of(beside)
