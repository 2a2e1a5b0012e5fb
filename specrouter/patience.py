"""How long a server may take."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import anyio

from .errors import UpstreamTimeout


@contextmanager
def time_limit(server: str, seconds: float | None, what: str) -> Iterator[None]:
    """Raise UpstreamTimeout, which says that the server `what`, when the block takes longer; None is for ever."""
    try:
        with anyio.fail_after(seconds):
            yield
    except TimeoutError as error:
        raise UpstreamTimeout(f"server {server!r} {what} for {seconds:g} s", server=server) from error
