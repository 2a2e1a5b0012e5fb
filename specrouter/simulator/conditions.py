"""What a prediction starts from: the target's costs, the drafter's speed, the distances. Times in seconds."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass


class TargetCosts:
    """What a target's step costs by the number of tokens in its batch, in plain steps.

    Piecewise linear between the measured points, `measured[n]` for a batch of n tokens; a batch of one is a plain
    step. Beyond the last point it goes on as between the last two. Raises ValueError for points that make no sense.
    """

    def __init__(self, measured: Mapping[int, float]) -> None:
        points = sorted({1: 1.0, **measured}.items())
        if points[0] != (1, 1.0):
            raise ValueError(f"a batch of {points[0][0]} tokens cannot cost {points[0][1]} plain steps: one costs 1")
        self._sizes = [size for size, _ in points]
        self._steps: list[float] = []
        for _, steps in points:
            # More tokens never cost less: where it was measured so, that was noise.
            self._steps.append(max(steps, self._steps[-1] if self._steps else steps))

    def of(self, tokens: int) -> float:
        """The cost of a batch of `tokens`."""
        if len(self._sizes) == 1:
            return 1.0
        index = min(max(bisect_left(self._sizes, tokens), 1), len(self._sizes) - 1)
        low, high = self._sizes[index - 1], self._sizes[index]
        first, last = self._steps[index - 1], self._steps[index]
        return first + (last - first) * (tokens - low) / (high - low)

    @property
    def points(self) -> dict[int, float]:
        """The points between which it is linear."""
        return dict(zip(self._sizes, self._steps, strict=True))


@dataclass(frozen=True, slots=True)
class Conditions:
    """A target, a drafter, and what lies between them.

    `plain_step` is the target's time for a token alone, `draft_token` the drafter's for one, `draft_restart` what a
    new draft needs before its first token, besides a token's time. The round trips are those from the router to the
    drafter and to the target. The target's n-gram pool finds up to `n_max` tokens behind `n_match`. On a busy machine
    steps are late, never early: by `jitter` of their time, as a standard deviation (only `injection` minds).
    """

    costs: TargetCosts
    plain_step: float
    draft_token: float
    draft_restart: float = 0.0
    rtt_drafter: float = 0.0
    rtt_target: float = 0.0
    n_match: int = 8
    n_max: int = 16
    jitter: float = 0.0

    @property
    def usual_step(self) -> float:
        """The mean time of a plain step, jitter included."""
        return self.plain_step * (1 + self.jitter * math.sqrt(2 / math.pi))

    def step(self, tokens: int) -> float:
        """Seconds of a step with `tokens` in its batch."""
        return self.plain_step * self.costs.of(tokens)
