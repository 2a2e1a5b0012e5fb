"""When the next prime of an answer is due, and what is in it. Pure: the caller brings time and what has happened.

One `Priming` accompanies one answer. It knows what the target has said and what was drafted behind it (`Follower`),
tells the target's steps apart (`StepClock`), asks the `Governor` what pays, and remembers up to where the draft was
primed and evaluated. The verifier `inject` and the simulator drive the same one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .follow import Follower
from .governor import Governor, Memory
from .pacing import FinishedStep, StepClock
from .pool_text import PoolText
from .types import DraftToken

_MARGIN = 0.004
_MARGIN_SHARE = 0.1
"""Seconds, and share of the step, before the expected end of a step at which a prime has to be on its way."""

_LONGEST_TAIL = 512
"""Confirmed tokens in a prime's prompt after which the next one starts from a short tail again."""

_IN_FLIGHT = 2
"""One being evaluated, one waiting for its slot: sent only afterwards, it would miss the next step."""

_TRUST = 2
"""Steps in which a pool that should know the text may fail to show it."""

_AT_ONCE = 0.001
"""Seconds that are not worth waiting."""

_LAG = 3
"""Tokens by which a running draft may be behind before it is cheaper to start it again."""


@dataclass(frozen=True, slots=True)
class Prime:
    """What to show the target: the tokens from position `start` on, the last ones drafted.

    Positions count tokens from the beginning of the answer's prompt. `generation` is that of the draft in it.
    """

    start: int
    ids: Sequence[int]
    generation: int

    @property
    def end(self) -> int:
        """The position behind its last token."""
        return self.start + len(self.ids)


class Priming:
    """Keeps a draft ahead of one answer and says what of it to show the target, and when.

    The target's pool finds up to `n_max` tokens behind `n_match`. `memory` is what was learned from answers before,
    `spares_drafter` as for the `Governor`.
    The target has been sent primes up to `primed_to` and has evaluated them up to `evaluated_to`; up to `_shown_to`
    they hold what was confirmed since. Primes `in_flight` have been sent and not been answered; they take turns in one
    slot.
    """

    def __init__(
        self, prompt: Sequence[int], memory: Memory, *, n_match: int, n_max: int, spares_drafter: bool = True
    ) -> None:
        self.follower = Follower(prompt)
        self.governor = Governor(memory, n_max, spares_drafter=spares_drafter)
        self.clock = StepClock()
        self._pool_text = PoolText(prompt, n_match)
        self.primed_to = self.evaluated_to = len(prompt)
        self._verifying = 0  # primed tokens that the step under way can verify
        self._n_match, self._n_max = n_match, n_max
        self._tail_start = self._shown_to = len(prompt)
        self.in_flight = 0
        self._has_slot = False  # with the primes before in its cache
        self._primed_in_step = False
        self._leaves_to_pool = False  # in the step under way, because of what the pool should know
        self._left_to_pool = 0  # in how many steps, since it last showed that it does
        self._generation = 0  # of the follower, when the positions were last right

    # -- what has happened ---------------------------------------------------------------------------------

    def begin_step(self, received: float) -> FinishedStep | None:
        """The first event of a step's end has arrived. Returns the step before it: that one is complete."""
        finished = self.clock.begin(received, self._verifying, self.governor.beside)
        if finished is not None:
            self.governor.step(finished.seconds, finished.tokens, finished.others, finished.beside)
        if self.governor.memory.plain_step is not None:
            self.clock.expect(self.governor.memory.plain_step)
        self._primed_in_step = False
        self._left_to_pool += self._leaves_to_pool
        self._leaves_to_pool = False
        return finished

    def end(self, received: float) -> FinishedStep | None:
        """The answer has ended. Returns its last step."""
        return self.clock.begin(received, self._verifying, self.governor.beside)

    def settle(self) -> tuple[Sequence[DraftToken], Sequence[DraftToken]]:
        """What has arrived was followed. Returns the draft tokens that came true and those that did not."""
        follower = self.follower
        hits, misses = tuple(follower.hits), tuple(follower.misses)
        follower.hits.clear()
        follower.misses.clear()
        for token in hits:
            self.governor.judged(token.probability, accepted=True)
        for token in misses:
            self.governor.judged(token.probability, accepted=False)
        self._pool_text.said(follower.confirmed)
        self._correct_positions()
        self._count_verifying()
        return hits, misses

    def answered(self, prime: Prime, now: float, evaluated: int) -> None:
        """The target has evaluated that many tokens for a prime."""
        self.in_flight -= 1
        self._has_slot = True
        self.clock.primed(now, evaluated)
        if prime.generation == self.follower.generation:
            self.evaluated_to = max(self.evaluated_to, prime.end)
            self.primed_to = max(self.primed_to, self.evaluated_to)
            if self.clock.belongs_to_last_end(now):
                self._count_verifying()

    def failed(self, prime: Prime) -> None:
        """A prime was not evaluated."""
        self.in_flight -= 1
        self._has_slot = False
        # Behind a later one, that one's slot will tell.
        if prime.generation == self.follower.generation and prime.end == self.primed_to:
            self.primed_to = self.evaluated_to
            self._shown_to = min(self._shown_to, len(self.follower.confirmed))

    # -- draft ---------------------------------------------------------------------------------------------

    @property
    def should_stop_draft(self) -> bool:
        """Whether the running draft has turned out wrong, or so late that a new one is sooner."""
        return self.follower.is_lost or len(self.follower.behind) >= _LAG

    @property
    def tokens_to_draft(self) -> int:
        """How many tokens a new draft should have; 0: none is wanted now."""
        ahead = self.governor.tokens_ahead - len(self.follower.pending)
        return 0 if self.governor.is_resting or ahead < max(1, self.governor.tokens_ahead // 2) else ahead

    def restart(self) -> list[int]:
        """A new draft begins: the context it has to continue."""
        self._correct_positions()
        return self.follower.restart()

    # -- prime ---------------------------------------------------------------------------------------------

    def next_prime(self, now: float, round_trip: float) -> Prime | float | None:
        """The prime to send now; else after how many seconds to ask again, None: when something has happened.

        A prime takes half of `round_trip` seconds to the target.
        """
        wait = self.prime_due(round_trip) - now
        if wait > _AT_ONCE:
            return wait
        count = self.tokens_to_prime()
        return self.prime(count) if count else None

    def tokens_to_prime(self) -> int:
        """How many pending tokens the next prime should carry; 0: none now."""
        follower = self.follower
        # Before its first token the target is busy with the prompt: a prime would make the client wait.
        if not self.clock.running or self._primed_in_step or follower.is_lost:
            return 0
        # A pool that knows the text from elsewhere needs no primes, and they would only cost.
        if self._is_left_to_pool():
            return 0
        # Before the first is answered, a second prime would go to another slot and find no cache there.
        if self.in_flight >= (_IN_FLIGHT if self._has_slot else 1):
            return 0
        primed = max(0, self.primed_to - len(follower.confirmed))
        probabilities = [token.probability for token in follower.pending]
        # A tail that is sent anew is paid once, and no reason to send none.
        unseen = min(len(follower.confirmed) - self._shown_to, self._n_match)
        count = self.governor.tokens_to_prime(probabilities, primed, verifying=self._verifying, unseen=unseen)
        return count if count > primed else 0

    def _is_left_to_pool(self) -> bool:
        """Whether the target drafts by itself, or should: the draft repeats the prompt, or what was said before."""
        if self.clock.target_drafted:
            self._left_to_pool = 0
            return True
        ids = [token.id for token in self.follower.pending[: self._n_max]]
        knows = bool(ids) and self._pool_text.leads(self.follower.confirmed, ids) == len(ids)
        # It may have been emptied, or demand more.
        self._leaves_to_pool = knows and self._left_to_pool < _TRUST
        return self._leaves_to_pool

    def prime_due(self, round_trip: float) -> float:
        """When the next prime should be sent: the later in the step before it is evaluated, the more it carries."""
        in_flight = max(0, self.primed_to - max(self.evaluated_to, len(self.follower.confirmed)))
        seconds = self.governor.step_seconds(self._verifying + in_flight)
        return self.clock.started + seconds - max(_MARGIN, _MARGIN_SHARE * seconds) - round_trip

    def prime(self, count: int) -> Prime:
        """The prime that carries `count` pending tokens; it counts as sent."""
        follower = self.follower
        shortest = max(0, len(follower.confirmed) - self._n_match - 1)
        unseen = len(follower.confirmed) - self._shown_to
        # A longer tail is free as long as its beginning is in the slot's cache.
        if not self._has_slot or unseen > self._n_match or shortest - self._tail_start > _LONGEST_TAIL:
            self._tail_start = shortest
        ids = follower.confirmed[self._tail_start :] + [token.id for token in follower.pending[:count]]
        self.in_flight += 1
        self._primed_in_step = True
        self.primed_to = self._shown_to = len(follower.confirmed) + count
        return Prime(self._tail_start, ids, follower.generation)

    def _correct_positions(self) -> None:
        """What was primed of a draft that turned out wrong, leads nowhere."""
        if self._generation == self.follower.generation:
            return
        self._generation = self.follower.generation
        confirmed = len(self.follower.confirmed)
        self.primed_to = self.evaluated_to = confirmed
        self._shown_to = min(self._shown_to, confirmed)

    def _count_verifying(self) -> None:
        self._verifying = min(max(self.evaluated_to - len(self.follower.confirmed), 0), self._n_max)
