"""Tells a target's steps apart by when its events arrive. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

_SAME_STEP = 0.003
_SAME_STEP_SHARE = 0.1

_LATE_SHARE = 0.5
"""Of a plain step: no step is over sooner, so what arrives within it is of the one before."""


@dataclass(frozen=True, slots=True)
class FinishedStep:
    """How long a step took, how many tokens it said, how many it evaluated for primes, and could verify.

    It was shared with `beside` other answers.
    """

    seconds: float
    tokens: int
    primed: int
    verified: int
    beside: int

    @property
    def others(self) -> int:
        """The tokens in its batch besides those of answers."""
        return self.primed + self.verified


class StepClock:
    """A step ends when its tokens arrive. `started` is when the step under way began: the arrival of the last ones.

    `tokens` counts those that have arrived with the last step's end; the caller adds to it. `same_step` is how close
    together, in seconds, the accepted tokens of one step arrive.
    """

    def __init__(self) -> None:
        self.started = 0.0
        self.tokens = 0
        self.same_step = _SAME_STEP
        self._plain_step = 0.0
        self._before = 0.0  # when the step began that ended at `started`
        self._verified = self._beside = 0  # of that step
        self._last_event = 0.0
        self._primes: deque[tuple[float, int]] = deque()

    @property
    def running(self) -> bool:
        """Whether the first token has arrived."""
        return self.started > 0

    @property
    def target_drafted(self) -> bool:
        """Whether the last step's end brought more tokens than it could verify, and sooner than one by one."""
        one_by_one = (self.tokens - 0.5) * self._plain_step
        return self.tokens - 1 > self._verified and self.started - self._before < one_by_one

    def expect(self, plain_step: float) -> None:
        """The target alone takes that long for a step: a busy machine spreads events in proportion."""
        self._plain_step = plain_step
        self.same_step = max(_SAME_STEP, _SAME_STEP_SHARE * plain_step)

    def begins_step(self, received: float) -> bool:
        """Whether an event received then belongs to a new step's end. Call it once per event, in order."""
        new = received - self._last_event > self.same_step
        self._last_event = received
        return new

    def primed(self, now: float, evaluated: int) -> None:
        """A prime's answer has arrived: that many tokens were evaluated in the step that ends now."""
        self._primes.append((now, evaluated))

    def belongs_to_last_end(self, now: float) -> bool:
        """Whether a prime's answer that arrives now is of the step whose end has arrived, not of the one under way."""
        return now - self.started <= max(_SAME_STEP, _LATE_SHARE * self._plain_step)

    def begin(self, received: float, verified: int, beside: int) -> FinishedStep | None:
        """The end of a step has begun to arrive, which could verify `verified` tokens; returns the step before it."""
        finished = None
        if self._before:
            evaluated = 0
            while self._primes and self.belongs_to_last_end(self._primes[0][0]):
                evaluated += self._primes.popleft()[1]
            seconds = self.started - self._before
            finished = FinishedStep(seconds, self.tokens, evaluated, self._verified, self._beside)
        self._before, self.started, self.tokens = self.started, received, 0
        self._verified, self._beside = verified, beside
        return finished
