"""The loop of the verifier `inject` in simulated time, around the same `Priming`.

What `specrouter_plugins.inject` awaits is an event here.
"""

from __future__ import annotations

from collections import deque
from functools import partial

from specrouter.governor import Memory
from specrouter.priming import Prime, Priming
from specrouter.types import DraftToken

from .conditions import Conditions
from .far_drafter import FarDrafter
from .pool_target import PoolTarget, SideRequest
from .prediction import Prediction
from .timeline import Timeline
from .traces import Trace

ANSWER = 256
"""Tokens of an answer, if nothing else is asked for."""

_PROMPT = 64
_PROMPT_STEPS = 8.0
"""Plain steps that the evaluation of a prompt takes; the draft begins meanwhile."""


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
        ratio=sum(one.said for one in said) / (1 + conditions.beside) * conditions.usual_step / seconds,
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
    """One answer and its companion."""

    def __init__(self, conditions: Conditions, trace: Trace, memory: Memory, *, tokens: int, offset: int) -> None:
        self.tokens = tokens
        self._conditions = conditions
        self._timeline = timeline = Timeline(1.0)
        self.target = PoolTarget(timeline, conditions, self._said, prompt=_PROMPT, tokens=tokens, seed=offset)
        self.drafter = FarDrafter(timeline, conditions, trace, prompt=_PROMPT, offset=offset)
        self._priming = Priming(range(_PROMPT), memory, n_match=conditions.n_match, n_max=conditions.n_max)
        self._follower, self._governor = self._priming.follower, self._priming.governor
        self._governor.beside = conditions.beside
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
    def said(self) -> int:
        """Tokens said in these seconds, in answers beside this one too."""
        return self.tokens - 1 + self._conditions.beside * self.target.steps

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
            if self._priming.clock.begins_step(received):
                self._priming.begin_step(received)
            self._priming.clock.tokens += len(ids)
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

    def _after_deltas(self) -> None:
        self._priming.settle()
        if self._priming.should_stop_draft:
            self.drafter.stop()
            self._is_drafting = False
        self._keep_drafting()
        self._consider_priming()

    # -- draft ---------------------------------------------------------------------------------------------

    def _keep_drafting(self) -> None:
        count = self._priming.tokens_to_draft
        if not count or self._is_drafting or self._is_asking:
            return
        self._is_drafting = True
        self.drafter.draft(self._priming.restart(), count, self._take_drafted, self._draft_ended)

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
        plan = self._plan
        next_one = self._priming.next_prime(self._timeline.now, self._conditions.rtt_target)
        if isinstance(next_one, Prime):
            self._send(next_one)
        elif next_one is not None:
            self._timeline.after(next_one, lambda: self._consider_priming() if plan == self._plan else None)

    def _send(self, prime: Prime) -> None:
        request = SideRequest(prime.start, prime.ids, partial(self._done, prime))
        self._timeline.after(self._conditions.rtt_target / 2, partial(self.target.receive, request))

    def _done(self, prime: Prime, evaluated: int) -> None:
        self._timeline.after(self._conditions.rtt_target / 2, partial(self._answered, prime, evaluated))

    def _answered(self, prime: Prime, evaluated: int) -> None:
        self._priming.answered(prime, self._timeline.now, evaluated)
        self._consider_priming()
