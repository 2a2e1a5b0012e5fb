"""Runs a companion beside a proxied request: feeds it what the target says, keeps its faults to itself."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import anyio

from .drafting import close_drafter, generation_of, start_drafter
from .errors import SpecrouterError, UpstreamError
from .formats import DeltaReader, Format
from .interfaces import NativeVerifier
from .plugins import guard
from .route import Route
from .tasks import background
from .types import Delta, DraftCounts
from .upstream import LlamaServer

log = logging.getLogger(__name__)


class DeltaFeed:
    """What the target says, handed from the proxy to the companion. Parsed only when the companion reads it."""

    def __init__(self, reader: DeltaReader) -> None:
        self._reader = reader
        self._waiting: list[tuple[bytes, float]] = []
        self._changed = anyio.Event()
        self.closed = False

    def put(self, data: bytes, received: float) -> None:
        """Add the data of one event, received at `received` (monotonic seconds)."""
        if not self.closed:
            self._waiting.append((data, received))
            self._changed.set()

    def close(self) -> None:
        """The answer has ended."""
        self.closed = True
        self._changed.set()

    async def deltas(self) -> AsyncIterator[Sequence[Delta]]:
        """All deltas since the last time, whenever there are any, until the answer ends."""
        while True:
            await self._changed.wait()
            self._changed = anyio.Event()
            waiting, self._waiting = self._waiting, []
            deltas = [delta for data, received in waiting for delta in self._reader(data, received)]
            if deltas:
                yield deltas
            if self.closed:
                return


class Accompanied:
    """What is known about a request's companion when the request has ended."""

    def __init__(self) -> None:
        self.counts: DraftCounts | None = None
        self.reason: str | None = None


@contextlib.asynccontextmanager
async def accompany(
    route: Route, target: LlamaServer, form: Format, body: Mapping[str, Any], feed: DeltaFeed
) -> AsyncIterator[Accompanied]:
    """Run a companion for as long as the context lasts.

    Nothing that goes wrong in it reaches the request; `Accompanied.reason` says what did.
    """
    accompanied = Accompanied()
    async with background() as tasks:
        tasks.start_soon(_run, accompanied, route, target, form, body, feed)
        yield accompanied
        feed.close()


async def _run(
    accompanied: Accompanied,
    route: Route,
    target: LlamaServer,
    form: Format,
    body: Mapping[str, Any],
    feed: DeltaFeed,
) -> None:
    try:
        await _follow(accompanied, route, target, form, body, feed)
    except UpstreamError as error:
        # Connections that break because the answer is over are no news.
        if not feed.closed:
            accompanied.reason = str(error)
    except SpecrouterError as error:
        accompanied.reason = str(error)
        log.exception("drafting for route %r ended", route.config.name)
    except Exception:
        accompanied.reason = "an error in specrouter, see its log"
        log.exception("drafting for route %r ended", route.config.name)
    finally:
        # Nobody reads any more.
        feed.close()


async def _follow(
    accompanied: Accompanied,
    route: Route,
    target: LlamaServer,
    form: Format,
    body: Mapping[str, Any],
    feed: DeltaFeed,
) -> None:
    pair = route.pairs[target.name]
    assert pair.verifier is not None
    assert pair.support is not None
    verifier = pair.verifier.plugin
    assert isinstance(verifier, NativeVerifier), "the step engine answers with the others"
    started = time.monotonic()
    generation = generation_of(route, pair, await form.prompt(target, body), body)
    log.debug("prompt of %d tokens known after %.1f ms", len(generation.prompt), (time.monotonic() - started) * 1000)
    drafter = start_drafter(route, pair, generation, form, body)
    if drafter is None:
        accompanied.reason = "nothing to draft"
        return
    try:
        with guard(pair.verifier.info):
            companion = verifier.accompany(generation, drafter, pair.support)
            accompanied.counts = companion.counts
            await companion.run(feed.deltas())
    finally:
        await close_drafter(drafter)
