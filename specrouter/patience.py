"""How long a server may take."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from typing import TypeVar

import anyio

from .config.model import ServerConfig
from .errors import UpstreamTimeout

T = TypeVar("T")

_NO_BEGINNING = "did not begin to answer"
_SILENCE = "was silent within its answer"


@contextmanager
def first_byte_limit(server: ServerConfig) -> Iterator[None]:
    """Raise UpstreamTimeout when the block, which waits for the beginning of an answer, takes longer than it may."""
    with _limit(server, server.first_byte_timeout, _NO_BEGINNING):
        yield


@contextmanager
def idle_limit(server: ServerConfig) -> Iterator[None]:
    """Raise UpstreamTimeout when the block, which waits for more of an answer, takes longer than it may."""
    with _limit(server, server.idle_timeout, _SILENCE):
        yield


async def in_time(server: ServerConfig, items: AsyncGenerator[T], *, has_begun: bool = False) -> AsyncGenerator[T]:
    """The items of an answer as they come. Raises UpstreamTimeout for a beginning or a pause that takes too long."""
    limit = idle_limit if has_begun else first_byte_limit
    while True:
        try:
            with limit(server):
                item = await anext(items)
        except StopAsyncIteration:
            return
        yield item
        limit = idle_limit


@contextmanager
def _limit(server: ServerConfig, seconds: float | None, what: str) -> Iterator[None]:
    try:
        with anyio.fail_after(seconds):
            yield
    except TimeoutError as error:
        raise UpstreamTimeout(f"server {server.name!r} {what} for {seconds:g} s", server=server.name) from error
