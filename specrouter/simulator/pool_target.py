"""A target with an n-gram pool, in simulated time.

The tokens of an answer are numbered by their position, counted from the beginning of the prompt, and the right token
at a position has the position for its id. Wrong ones are negative.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .conditions import Conditions
from .timeline import Timeline


@dataclass(frozen=True, slots=True)
class SideRequest:
    """A prime: its first token's position, its tokens, and whom to tell how many of them were evaluated."""

    start: int
    ids: Sequence[int]
    answered: Callable[[int], None]

    @property
    def right_to(self) -> int:
        """The position of its first wrong token, or the one behind its end."""
        return next((self.start + n for n, token in enumerate(self.ids) if token != self.start + n), self.end)

    @property
    def end(self) -> int:
        """The position behind its last token."""
        return self.start + len(self.ids)


class PoolTarget:
    """Says an answer step by step: evaluates the primes that wait for it, and verifies what it finds in its pool.

    `says(count)` is called at the end of each step, before the primes evaluated in it are answered.
    """

    def __init__(
        self,
        timeline: Timeline,
        conditions: Conditions,
        says: Callable[[int], None],
        *,
        prompt: int,
        tokens: int,
        seed: int,
    ) -> None:
        self.position = prompt
        self.steps = 0
        self.verified = self.accepted = self.verifications = self.primed = 0
        self._timeline = timeline
        self._conditions = conditions
        self._says = says
        self._end = prompt + tokens
        self._rng = random.Random(seed)  # noqa: S311  (a simulation, not a secret)
        self._waiting: deque[SideRequest] = deque()
        self._cached = range(0)  # the positions of the right tokens in the side slot
        # The pool knows what follows up to `_right_to`; from there it may lead on, wrongly, to `_end_of_wrong`.
        self._right_to = self._end_of_wrong = prompt

    @property
    def is_done(self) -> bool:
        """Whether the answer has ended."""
        return self.position >= self._end

    def receive(self, prime: SideRequest) -> None:
        """A prime has arrived. It takes part in the step that begins next, or in a later one if others wait too."""
        self._waiting.append(prime)

    def say_first(self) -> None:
        """The prompt is evaluated."""
        self.position += 1
        self._says(1)
        self._begin_step()

    def _begin_step(self) -> None:
        if self.is_done:
            return
        # Once the target has said something else, what the pool knows behind a wrong token is never found.
        found = self._end_of_wrong - self.position if self.position <= self._right_to else 0
        verifying = min(found, self._conditions.n_max)
        # No more is said than was asked for.
        accepted = min(self._right_to - self.position, verifying, self._end - self.position - 1) if verifying else 0
        # They have one slot, and it evaluates one at a time.
        prime = self._waiting.popleft() if self._waiting else None
        evaluated = 0 if prime is None else self._evaluate(prime)
        self.verified += verifying
        self.accepted += accepted
        self.verifications += verifying > 0
        self.primed += evaluated

        def end() -> None:
            self.steps += 1
            self.position += accepted + 1
            self._says(accepted + 1)
            if prime is not None:
                self._add_to_pool(prime)
                prime.answered(evaluated)
            self._begin_step()

        late = 1 + self._conditions.jitter * abs(self._rng.gauss(0, 1)) if self._conditions.jitter else 1.0
        self._timeline.after(late * self._conditions.step(1 + verifying + evaluated), end)

    def _evaluate(self, prime: SideRequest) -> int:
        """How many of its tokens are new to its slot; one is evaluated in any case."""
        known = min(self._cached.stop, prime.right_to) if self._cached.start == prime.start else prime.start
        self._cached = range(prime.start, prime.right_to)
        return max(prime.end - known, 1)

    def _add_to_pool(self, prime: SideRequest) -> None:
        if prime.right_to > self._right_to:
            self._right_to, self._end_of_wrong = prime.right_to, prime.end
        elif prime.right_to == self._right_to:
            # Last write wins; where it writes nothing, what was there stays.
            self._end_of_wrong = prime.end if prime.end > prime.right_to else self._end_of_wrong
