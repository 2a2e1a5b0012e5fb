"""The loop of the verifier `inject` in simulated time, around the governor and the clock that it runs with.

What `specrouter_plugins.inject` awaits is an event here; what it decides, and by what, is the same. Only this file of
the simulator knows the governor.
"""

from __future__ import annotations

from collections import deque
from functools import partial

from specrouter.follow import Follower
from specrouter.governor import Governor, Memory
from specrouter.pacing import StepClock
from specrouter.types import DraftToken

from .conditions import Conditions
from .far_drafter import FarDrafter
from .pool_target import PoolTarget, Prime
from .prediction import Prediction
from .timeline import Timeline
from .traces import Trace

ANSWER = 256
"""Tokens of an answer, if nothing else is asked for."""

_PROMPT = 64
_PROMPT_STEPS = 8.0
"""Plain steps that the evaluation of a prompt takes; the draft begins meanwhile."""

# As in the verifier.
_MARGIN, _MARGIN_SHARE = 0.004, 0.1
_LONGEST_TAIL = 512
_PRIMES_IN_FLIGHT = 2
_LAG = 3
_AT_ONCE = 0.001


def injection(
    conditions: Conditions,
    trace: Trace,
    *,
    tokens: int | None = None,
    answer: int = ANSWER,
    learning: int = 0,
    memory: Memory | None = None,
) -> Prediction:
    """Answers of `answer` tokens each, one after the other, until there are `tokens` (by default, as the trace has).

    What is learned from one is carried to the next, in `memory`. Without one, only what batches cost is known at
    first, as on a target that was tried out. Answers with `learning` tokens are said before those that count. As in
    measurements, time counts from an answer's first token on.
    """
    if memory is None:
        batches = {size: steps for size, steps in conditions.costs.points.items() if size > 1}
        memory = Memory.fresh(is_greedy=True, batches=batches)
    _answers(conditions, trace, memory, tokens=learning, answer=answer)
    said = _answers(conditions, trace, memory, tokens=len(trace) if tokens is None else tokens, answer=answer)
    seconds = sum(one.seconds for one in said)
    targets = [one.target for one in said]
    return Prediction(
        ratio=sum(one.tokens - 1 for one in said) * conditions.usual_step / seconds,
        tokens=sum(one.tokens for one in said),
        seconds=seconds,
        drafted=sum(one.drafter.drafted for one in said),
        primed=sum(target.primed for target in targets),
        verified=sum(target.verified for target in targets),
        accepted=sum(target.accepted for target in targets),
        verifications=sum(target.verifications for target in targets),
        stood_down=sum(one.stood_down for one in said),
    )


def _answers(conditions: Conditions, trace: Trace, memory: Memory, *, tokens: int, answer: int) -> list[_Answer]:
    said: list[_Answer] = []
    offset = 0
    while offset < tokens:
        one = _Answer(conditions, trace, memory, tokens=max(2, min(answer, tokens - offset)), offset=offset)
        one.run()
        said.append(one)
        offset += one.tokens
    return said


class _Answer:
    """One answer and its companion. Names are those of `InjectCompanion`, where it has the same."""

    def __init__(self, conditions: Conditions, trace: Trace, memory: Memory, *, tokens: int, offset: int) -> None:
        self.tokens = tokens
        self._conditions = conditions
        self._timeline = timeline = Timeline(1.0)
        self.target = PoolTarget(timeline, conditions, self._said, prompt=_PROMPT, tokens=tokens, seed=offset)
        self.drafter = FarDrafter(timeline, conditions, trace, prompt=_PROMPT, offset=offset)
        self._follower = Follower(range(_PROMPT))
        self._governor = Governor(memory, conditions.n_max)
        self._clock = StepClock()
        self._tail_start = self._primed_to = self._evaluated_to = self._shown_to = _PROMPT
        self._verifying = self._verified = 0
        self._in_flight = 0
        self._primed_in_step = False
        self._has_slot = False
        self._round_trip = conditions.rtt_target
        self._generation = 0
        self._arrived: deque[tuple[float, list[int]]] = deque()
        self._is_asking = False
        self._is_drafting = False
        self._plan = 0
        self._began = self._ended = 0.0

    @property
    def seconds(self) -> float:
        """From the first token to the last, where they are said: on the way they lose the same."""
        return self._ended - self._began

    @property
    def stood_down(self) -> int:
        """How often drafting did."""
        return self._governor.stood_down

    def run(self) -> None:
        """Until it is said."""
        self._keep_drafting()
        self._timeline.after(_PROMPT_STEPS * self._conditions.plain_step, self.target.say_first)
        self._timeline.run(lambda: self.target.is_done)

    # -- follow --------------------------------------------------------------------------------------------

    def _said(self, count: int) -> None:
        now = self._timeline.now
        self._began, self._ended = self._began or now, now
        ids = list(range(self.target.position - count, self.target.position))
        received = now + self._conditions.rtt_target / 2
        self._timeline.at(received, partial(self._receive, received, ids))

    def _receive(self, received: float, ids: list[int]) -> None:
        self._arrived.append((received, ids))
        if not self._is_asking:
            self._follow()

    def _follow(self) -> None:
        """What has arrived, up to text whose ids have to be asked for first."""
        while self._arrived:
            received, ids = self._arrived.popleft()
            if self._clock.begins_step(received):
                self._begin_step(received)
            self._clock.tokens += len(ids)
            pending = self._follower.pending
            foreseen = len(pending) >= len(ids) and pending[len(ids) - 1].id == ids[-1]
            # Its text may be known from elsewhere. Here it never is, which makes distance a little worse than it is.
            if foreseen or self._governor.is_resting or not self._conditions.rtt_target:
                self._follower.resolve(ids)
                continue
            self._is_asking = True
            self._timeline.after(self._conditions.rtt_target, partial(self._identified, ids))
            return
        self._after_deltas()

    def _identified(self, ids: list[int]) -> None:
        self._is_asking = False
        self._follower.resolve(ids)
        self._follow()

    def _begin_step(self, received: float) -> None:
        finished = self._clock.begin(received)
        if finished is not None:
            self._governor.step(finished.seconds, finished.tokens, finished.primed + self._verified)
        if self._governor.memory.plain_step is not None:
            self._clock.expect(self._governor.memory.plain_step)
        self._verified = self._verifying
        self._primed_in_step = False

    def _after_deltas(self) -> None:
        follower, calibration = self._follower, self._governor.memory.calibration
        for token in follower.hits:
            calibration.add(token.probability, accepted=True)
        for token in follower.misses:
            calibration.add(token.probability, accepted=False)
        if follower.is_lost or len(follower.behind) >= _LAG:
            self.drafter.stop()
            self._is_drafting = False
        self._correct_positions()
        follower.hits.clear()
        follower.misses.clear()
        self._count_verifying()
        self._keep_drafting()
        self._consider_priming()

    def _correct_positions(self) -> None:
        if self._generation == self._follower.generation:
            return
        self._generation = self._follower.generation
        self._primed_to = self._evaluated_to = len(self._follower.confirmed)
        self._shown_to = min(self._shown_to, len(self._follower.confirmed))

    def _count_verifying(self) -> None:
        ahead = self._evaluated_to - len(self._follower.confirmed)
        self._verifying = min(max(ahead, 0), self._conditions.n_max)

    # -- draft ---------------------------------------------------------------------------------------------

    def _keep_drafting(self) -> None:
        ahead = self._governor.tokens_ahead - len(self._follower.pending)
        if self._is_drafting or self._is_asking or self._governor.is_resting:
            return
        if ahead < max(1, self._governor.tokens_ahead // 2):
            return
        self._correct_positions()
        self._is_drafting = True
        self.drafter.draft(self._follower.restart(), ahead, self._take_drafted, self._draft_ended)

    def _take_drafted(self, token: DraftToken) -> bool:
        if self._follower.add_draft(token):
            self._consider_priming()
            return True
        self._draft_ended()
        return False

    def _draft_ended(self) -> None:
        self._is_drafting = False
        self._keep_drafting()

    # -- prime ---------------------------------------------------------------------------------------------

    def _consider_priming(self) -> None:
        self._plan += 1
        count = self._tokens_to_prime()
        if not count:
            return
        wait = self._seconds_to_wait()
        if wait <= _AT_ONCE:
            self._send_prime(count)
            return
        plan = self._plan
        self._timeline.after(wait, lambda: self._consider_priming() if plan == self._plan else None)

    def _tokens_to_prime(self) -> int:
        follower = self._follower
        if not self._clock.running or self._primed_in_step or follower.is_lost:
            return 0
        if self._in_flight >= (_PRIMES_IN_FLIGHT if self._has_slot else 1):
            return 0
        primed = max(0, self._primed_to - len(follower.confirmed))
        count = self._governor.tokens_to_prime([token.probability for token in follower.pending], primed)
        return count if count > primed else 0

    def _seconds_to_wait(self) -> float:
        in_flight = max(0, self._primed_to - max(self._evaluated_to, len(self._follower.confirmed)))
        seconds = self._governor.step_seconds(self._verifying + in_flight)
        margin = max(_MARGIN, _MARGIN_SHARE * seconds)
        return self._clock.started + seconds - margin - self._round_trip - self._timeline.now

    def _send_prime(self, count: int) -> None:
        follower, n_match = self._follower, self._conditions.n_match
        shortest = max(0, len(follower.confirmed) - n_match - 1)
        unseen = len(follower.confirmed) - self._shown_to
        if not self._has_slot or unseen > n_match or shortest - self._tail_start > _LONGEST_TAIL:
            self._tail_start = shortest
        ids = follower.confirmed[self._tail_start :] + [token.id for token in follower.pending[:count]]
        self._primed_to = self._shown_to = len(follower.confirmed) + count
        self._primed_in_step = True
        self._in_flight += 1
        prime = Prime(self._tail_start, ids, partial(self._prime_done, self._primed_to, follower.generation))
        self._timeline.after(self._conditions.rtt_target / 2, partial(self.target.receive, prime))

    def _prime_done(self, reaches: int, generation: int, evaluated: int) -> None:
        answered = partial(self._prime_answered, reaches, generation, evaluated)
        self._timeline.after(self._conditions.rtt_target / 2, answered)

    def _prime_answered(self, reaches: int, generation: int, evaluated: int) -> None:
        now = self._timeline.now
        self._in_flight -= 1
        self._has_slot = True
        self._clock.primed(now, evaluated)
        if generation == self._follower.generation:
            self._evaluated_to = max(self._evaluated_to, reaches)
            if now - self._clock.started <= self._clock.same_step:
                self._count_verifying()
        self._consider_priming()
