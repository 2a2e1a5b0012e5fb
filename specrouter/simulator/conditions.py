"""What a prediction starts from: the target's costs, the drafter's speed, the distances. Times in seconds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from specrouter.step_cost import Curve


class TargetCosts(Curve):
    """What a target's step costs by the number of tokens in its batch, in plain steps.

    `measured[n]` is that of a batch of n tokens; a batch of one is a plain step. Raises ValueError for points that
    make no sense.
    """

    def __init__(self, measured: Mapping[int, float]) -> None:
        points = {1: 1.0, **measured}
        if points[1] != 1.0 or min(points) < 1:
            size = min(points)
            raise ValueError(f"a batch of {size} tokens cannot cost {points[size]} plain steps: one costs 1")
        super().__init__(points)


@dataclass(frozen=True, slots=True)
class Conditions:
    """A target, a drafter, and what lies between them.

    `plain_step` is the target's time for a token alone, `draft_token` the drafter's for one, `draft_restart` what a
    new draft needs before its first token, besides a token's time. The round trips are those from the router to the
    drafter and to the target. The target's n-gram pool finds up to `n_max` tokens behind `n_match`. On a busy machine
    steps are late, never early: by `jitter` of their time, as a standard deviation. The target says `beside` other
    answers at the same time, without drafts. (Only `injection` minds these two.)
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
    beside: int = 0

    @property
    def usual_step(self) -> float:
        """The mean time of a step without drafts, jitter included."""
        return self.step(1) * (1 + self.jitter * math.sqrt(2 / math.pi))

    def step(self, tokens: int) -> float:
        """Seconds of a step with `tokens` in its batch, and those of the answers beside it."""
        return self.plain_step * self.costs.at(tokens + self.beside)
