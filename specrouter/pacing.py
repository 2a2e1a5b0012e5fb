"""Tells a target's steps apart by when its events arrive. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

_SAME_STEP = 0.003
_SAME_STEP_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class FinishedStep:
    """How long a step took, how many tokens it said, how many it evaluated for primes, and could verify."""

    seconds: float
    tokens: int
    primed: int
    verified: int

    @property
    def others(self) -> int:
        """The tokens in its batch besides the answer's own one."""
        return self.primed + self.verified


class StepClock:
    """A step ends when its tokens arrive. `started` is when the step under way began: the arrival of the last ones.

    `tokens` counts those that have arrived with the last step's end; the caller adds to it. `same_step` is how close
    together, in seconds, the accepted tokens of one step and the answer to a prime evaluated in it arrive.
    """

    def __init__(self) -> None:
        self.started = 0.0
        self.tokens = 0
        self.same_step = _SAME_STEP
        self._before = 0.0  # when the step began that ended at `started`
        self._verified = 0  # what that step could verify
        self._last_event = 0.0
        self._primes: deque[tuple[float, int]] = deque()

    @property
    def running(self) -> bool:
        """Whether the first token has arrived."""
        return self.started > 0

    @property
    def said_more_than_shown(self) -> bool:
        """Whether the last step's end brought more tokens than it could verify: the target drafted by itself."""
        return self.tokens - 1 > self._verified

    def expect(self, plain_step: float) -> None:
        """The target alone takes that long for a step: a busy machine spreads events in proportion."""
        self.same_step = max(_SAME_STEP, _SAME_STEP_SHARE * plain_step)

    def begins_step(self, received: float) -> bool:
        """Whether an event received then belongs to a new step's end. Call it once per event, in order."""
        new = received - self._last_event > self.same_step
        self._last_event = received
        return new

    def primed(self, now: float, evaluated: int) -> None:
        """A prime's answer has arrived: that many tokens were evaluated in the step that ends now."""
        self._primes.append((now, evaluated))

    def begin(self, received: float, verified: int) -> FinishedStep | None:
        """The end of a step that could verify `verified` tokens has begun to arrive; returns the step before it."""
        finished = None
        if self._before:
            evaluated = 0
            while self._primes and self._primes[0][0] <= self.started + self.same_step:
                evaluated += self._primes.popleft()[1]
            finished = FinishedStep(self.started - self._before, self.tokens, evaluated, self._verified)
        self._before, self.started, self.tokens, self._verified = self.started, received, 0, verified
        return finished
