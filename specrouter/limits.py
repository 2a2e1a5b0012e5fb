"""How many requests are answered at once, and how long others may wait in line for that."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import AsyncIterator

import anyio

from .config import Limits
from .errors import TooManyRequests

_LONGEST_ADVICE = 120
"""Seconds; longer estimates of when there will be room are not worth much."""

_SMOOTHING = 0.2


class Gate:
    """Lets a number of requests through at once. Others wait in order, as long as there is room and time for that.

    `what` is what the gate is for, in words for the client. A gate without a limit is always open.
    """

    def __init__(self, limits: Limits, what: str) -> None:
        self.limits = limits
        self.what = what
        self.waiting = 0
        self._places = anyio.Semaphore(limits.concurrent) if limits.concurrent is not None else None
        self._seconds = 1.0  # how long a request keeps its place, smoothed

    @contextlib.asynccontextmanager
    async def passed(self) -> AsyncIterator[None]:
        """Wait for a place and keep it while the context lasts. Raises TooManyRequests."""
        if self._places is None:
            yield
            return
        await self._wait(self._places)
        started = time.monotonic()
        try:
            yield
        finally:
            self._places.release()
            self._seconds += _SMOOTHING * (time.monotonic() - started - self._seconds)

    async def _wait(self, places: anyio.Semaphore) -> None:
        with contextlib.suppress(anyio.WouldBlock):
            places.acquire_nowait()
            return
        if self.waiting >= self.limits.queued:
            raise self._refusal("no more may wait")
        self.waiting += 1
        try:
            with anyio.move_on_after(self.limits.wait) as limit:
                await places.acquire()
                return
        finally:
            self.waiting -= 1
        assert limit.cancelled_caught
        raise self._refusal(f"no place became free within {self.limits.wait:g} s")

    def _refusal(self, why: str) -> TooManyRequests:
        concurrent = self.limits.concurrent or 1
        turns = (self.waiting + 1) / concurrent
        error = TooManyRequests(
            f"{self.what} answers {concurrent} request{'s' * (concurrent != 1)} at a time, "
            f"{self.waiting} are waiting, and {why}"
        )
        error.retry_after = min(max(1, math.ceil(turns * self._seconds)), _LONGEST_ADVICE)
        return error
