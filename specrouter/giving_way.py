"""Trials give way to clients: what a router asks for itself waits while a server answers somebody."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar

import anyio

_PAUSE = 0.1
"""Seconds between two looks."""

_seconds_left: ContextVar[list[float] | None] = ContextVar("seconds_left", default=None)


@contextlib.contextmanager
def giving_way(seconds: float) -> Iterator[None]:
    """Everything that is asked within the context gives way, for that many seconds in all: some servers never rest."""
    token = _seconds_left.set([seconds])
    try:
        yield
    finally:
        _seconds_left.reset(token)


async def give_way(is_busy: Callable[[], bool]) -> None:
    """Wait while a server is busy, if whoever asks it gives way."""
    left = _seconds_left.get()
    if left is None:
        return
    began = time.monotonic()
    with anyio.move_on_after(left[0]):
        while is_busy():
            await anyio.sleep(_PAUSE)
    left[0] -= time.monotonic() - began
