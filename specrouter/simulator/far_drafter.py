"""A drafter on another machine, in simulated time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from specrouter.types import DraftToken

from .conditions import Conditions
from .timeline import Timeline
from .traces import Trace


class FarDrafter:
    """Drafts what a trace says; `prompt` is where it begins. Ids are as PoolTarget has them.

    A new draft ends the one before it, which has cost time up to there.
    """

    def __init__(self, timeline: Timeline, conditions: Conditions, trace: Trace, *, prompt: int, offset: int) -> None:
        self.drafted = 0
        self._timeline = timeline
        self._conditions = conditions
        self._trace = trace
        self._prompt = prompt - offset
        self._draft = 0

    def draft(
        self, context: Sequence[int], count: int, take: Callable[[DraftToken], bool], ended: Callable[[], None]
    ) -> None:
        """Draft `count` tokens behind a context. `take` says whether to go on; `ended` is called if all were taken."""
        self._draft += 1
        number, conditions = self._draft, self._conditions
        position = len(context)
        is_right = not context or context[-1] == position - 1

        def arrive(position: int, left: int, *, is_right: bool) -> None:
            if number != self._draft:
                return
            said = self._trace[(position - self._prompt) % len(self._trace)]
            is_right = is_right and said.accepted
            self.drafted += 1
            if not take(DraftToken(position if is_right else -position - 1, b"", said.probability)):
                return
            if left == 1:
                ended()
                return
            self._timeline.after(conditions.draft_token, lambda: arrive(position + 1, left - 1, is_right=is_right))

        first = conditions.rtt_drafter + conditions.draft_restart + conditions.draft_token
        self._timeline.after(first, lambda: arrive(position, count, is_right=is_right))

    def stop(self) -> None:
        """Nothing more of the running draft is taken."""
        self._draft += 1
