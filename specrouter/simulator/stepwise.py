"""Stepwise verification (`fanout`) in simulated time, with the governor that it runs with."""

from __future__ import annotations

from collections.abc import Sequence

from specrouter.draft_length import StepGovernor, StepMemory
from specrouter.interfaces import RoundCosts

from .conditions import Conditions
from .prediction import Prediction
from .traces import Trace

_PATIENCE = 0.5
"""Share of a plain step for which a round waits for draft tokens, as in the engine."""

_LAG = 3
_LONGEST_DRAFT = 7


def round_seconds(conditions: Conditions, longest: int = _LONGEST_DRAFT) -> list[float]:
    """What rounds with drafts of 0 to `longest` tokens take, round trip included, by the costs of a batch.

    Every position has a slot, and each slot evaluates what is new to it: the same tokens several times over.
    """
    rounds = []
    for length in range(longest + 1):
        half = length // 2
        # After a draft that was accepted by half, the slots of its first positions have to catch up besides.
        tokens = (length + 1) * (length + 2) // 2 + half * (half + 1) // 2
        rounds.append(conditions.rtt_target + conditions.step(tokens))
    return rounds


def fanout(
    conditions: Conditions, trace: Trace, *, tokens: int | None = None, rounds: Sequence[float] | None = None
) -> Prediction:
    """An answer in rounds; `rounds[K]` are seconds of one with a draft of K tokens, as measured on a target."""
    wanted = len(trace) if tokens is None else tokens
    costs = RoundCosts(conditions.plain_step, list(rounds or round_seconds(conditions)))
    governor = StepGovernor(StepMemory.fresh(costs, is_greedy=True), stands_down=True)
    drafts = _Drafts(conditions)
    now = 0.0
    said = verified = accepted = verifications = 0
    while said < wanted:
        if governor.has_stood_down:
            # For the rest of the answer.
            now += (wanted - said) * conditions.plain_step
            said = wanted
            break
        began = now
        now = drafts.wait_for(said, costs.longest_draft, now, _PATIENCE * conditions.plain_step)
        ready = [trace[(said + n) % len(trace)] for n in range(min(drafts.ready(said, now), costs.longest_draft))]
        length = governor.length([token.probability for token in ready])
        now += costs.rounds[length]
        right = next((n for n in range(length) if not ready[n].accepted), length)
        governor.round(now - began, length, right + 1, filled_slots=False)
        for n, token in enumerate(ready[: min(right + 1, length)]):
            governor.memory.calibration.add(token.probability, accepted=n < right)
        if right < length or not trace[(said + right) % len(trace)].accepted:
            drafts.restart(said + right + 1, now)
        verified += length
        accepted += right
        verifications += length > 0
        said += right + 1
        drafts.keep_up(said, now)
    return Prediction(
        ratio=said * conditions.plain_step / now,
        tokens=said,
        seconds=now,
        drafted=drafts.drafted,
        verified=verified,
        accepted=accepted,
        verifications=verifications,
        stood_down=int(governor.has_stood_down),
    )


class _Drafts:
    """When which token of a draft has arrived: it begins at `_start`, and its first token comes at `_first`."""

    def __init__(self, conditions: Conditions) -> None:
        self.drafted = 0
        self._conditions = conditions
        self.restart(0, -conditions.rtt_drafter)
        self._start = 0

    def restart(self, position: int, now: float) -> None:
        """Draft from a position on."""
        conditions = self._conditions
        self._start = position
        self._first = now + conditions.rtt_drafter + conditions.draft_restart + conditions.draft_token

    def ready(self, position: int, now: float) -> int:
        """How many tokens from `position` on are there."""
        drafted = int((now - self._first) / self._conditions.draft_token + 1 + 1e-9) if now >= self._first else 0
        return max(0, self._start + drafted - position)

    def wait_for(self, position: int, count: int, now: float, seconds: float) -> float:
        """When `count` tokens from `position` on are there, or the time is up."""
        needed = position + count - self._start
        there = self._first + (needed - 1) * self._conditions.draft_token
        return min(max(now, there), now + seconds)

    def keep_up(self, position: int, now: float) -> None:
        """A draft that has fallen behind begins again."""
        if position - self._start - self.ready(self._start, now) >= _LAG:
            self.restart(position, now)
