"""Decides how many draft tokens a stepwise verification should ask about, and when it does not pay at all. Pure.

Times in seconds. A round with a draft of K tokens costs what such rounds have cost lately, and yields one token and the
accepted ones; the target alone would need `plain` for each. Slots that have not seen the prompt have to evaluate it
first: that is paid once per answer, and only for as many slots as a draft needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from .governor import Calibration, Speed, longer_by
from .interfaces import RoundCosts

_CLEARLY = 1.02
_WEIGHT = 0.25

_USUAL_ANSWER = 256
"""Tokens that an answer without a limit, or with a larger one, is expected to have."""

_LONGEST_REST = 64

_DOUBT = 1 / 16
"""By what share of the way rounds return to what was measured, with each answer that they keep from drafts."""


@dataclass(slots=True)
class StepMemory:
    """What is learned about a pair under one kind of sampling, carried from request to request.

    `rest` is how many requests are answered without drafts after the next stand-down, `resting` how many still are.
    """

    calibration: Calibration
    plain: float
    measured: Sequence[float]
    rounds: list[float]
    speed: Speed = field(default_factory=Speed)
    rest: int = 1
    resting: int = 0

    @classmethod
    def fresh(cls, costs: RoundCosts, *, is_greedy: bool) -> StepMemory:
        """What to believe before anything was seen."""
        return cls(Calibration.fresh(is_greedy=is_greedy), costs.plain, costs.rounds, list(costs.rounds))

    def doubt(self) -> None:
        """Rounds were too dear to be asked for, and so to be seen to be cheap again."""
        self.rounds = [now + _DOUBT * (first - now) for now, first in zip(self.rounds, self.measured, strict=True)]

    def may_draft(self) -> bool:
        """Whether the next request should be drafted for; counts the requests that are not."""
        if self.resting:
            self.resting -= 1
            return False
        return True


class StepGovernor:
    """Watches one answer. With `stands_down` False it drafts whatever that costs."""

    def __init__(self, memory: StepMemory, *, stands_down: bool) -> None:
        self.memory = memory
        self.has_stood_down = False
        self._stands_down = stands_down

    def begin(self, prompt_seconds: float, limit: int | None) -> None:
        """The first token has arrived after `prompt_seconds`: stand down if the other slots cannot earn theirs."""
        length, speed = self._best([self.memory.calibration.average] * (len(self.memory.rounds) - 1))
        saved = min(limit or _USUAL_ANSWER, _USUAL_ANSWER) * self.memory.plain * (1 - 1 / speed)
        if self._stands_down and (not length or saved <= length * prompt_seconds):
            # Of this answer; another one may have a shorter prompt.
            self.has_stood_down = True
            self.memory.doubt()

    def length(self, probabilities: Sequence[float | None]) -> int:
        """How many of the pending draft tokens, by the drafter's confidence, to ask about."""
        acceptance = self.memory.calibration.acceptance
        if not self._stands_down:
            return min(len(probabilities), len(self.memory.rounds) - 1)
        return self._best([acceptance(probability) for probability in probabilities])[0]

    def _best(self, acceptances: Sequence[float]) -> tuple[int, float]:
        """The best length, and the speed, in tokens per plain token, that it promises."""
        memory = self.memory
        best, best_speed = 0, memory.plain / memory.rounds[0]
        said = likely = 1.0
        for length, acceptance in enumerate(acceptances[: len(memory.rounds) - 1], start=1):
            likely *= acceptance
            said += likely
            speed = said * memory.plain / memory.rounds[length]
            if speed > best_speed * _CLEARLY:
                best, best_speed = length, speed
        return best, best_speed

    def round(self, seconds: float, length: int, said: int, *, filled_slots: bool) -> None:
        """A round with a draft of `length` tokens took `seconds` and gave `said` tokens.

        `filled_slots`: it had to evaluate the prompt in slots that had not seen it.
        """
        memory = self.memory
        if not filled_slots:
            # One that is late for another reason is not asked for again, and would never be seen to be cheap.
            believed = min(seconds, 2 * memory.rounds[length])
            memory.rounds[length] += _WEIGHT * (believed - memory.rounds[length])
        memory.speed.add(said, 1 + longer_by(seconds / memory.plain, length))
        if self._stands_down:
            self._judge()

    def _judge(self) -> None:
        memory = self.memory
        if memory.speed.is_loss:
            self.has_stood_down = True
            memory.speed = Speed.after_standing_down()
            memory.resting, memory.rest = memory.rest, min(2 * memory.rest, _LONGEST_REST)
        elif memory.speed.is_gain:
            memory.rest = 1
