"""Simulated time: what happens when, in order."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count


class Timeline:
    """Runs what was planned, in the order of its time and, at one time, in the order of its planning.

    `now` is in seconds, and never goes back.
    """

    def __init__(self, now: float) -> None:
        self.now = now
        self._planned: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()

    def at(self, seconds: float, happens: Callable[[], None]) -> None:
        """Plan something for a time that has not passed."""
        heapq.heappush(self._planned, (max(seconds, self.now), next(self._numbers), happens))

    def after(self, seconds: float, happens: Callable[[], None]) -> None:
        """Plan something for `seconds` from now."""
        self.at(self.now + seconds, happens)

    def run(self, is_over: Callable[[], bool]) -> None:
        """Until it is over, or nothing is planned any more."""
        while self._planned and not is_over():
            self.now, _, happens = heapq.heappop(self._planned)
            happens()
