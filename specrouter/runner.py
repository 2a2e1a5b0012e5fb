"""What a server needs to be run by the router: somebody who runs it, and a clock that tells whether it is used."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Protocol


class Runner(Protocol):
    """Whoever runs a server on this machine."""

    def wake(self) -> None:
        """Have the server started, if it is stopped. Returns at once."""

    async def ready(self, seconds: float) -> None:
        """Wake it and wait, up to `seconds`, until it takes requests. Raises UpstreamLoading, UpstreamUnavailable."""


class Use:
    """Whether something is used, and for how long it has not been."""

    def __init__(self) -> None:
        self._count = 0
        self._last = time.monotonic()

    @contextlib.contextmanager
    def counted(self) -> Iterator[None]:
        """It is used while the context lasts."""
        self._count += 1
        try:
            yield
        finally:
            self._count -= 1
            self._last = time.monotonic()

    @property
    def idle_seconds(self) -> float:
        """For how long nobody has used it; 0 while somebody does."""
        return 0.0 if self._count else time.monotonic() - self._last
