"""Watches servers: probes that cost no slot, often while a server is away, seldom while it is well."""

from __future__ import annotations

import logging
import random

import anyio

from .types import ServerState
from .upstream import LlamaServer

log = logging.getLogger(__name__)

UP_INTERVAL = 10.0
"""Seconds between probes of a server that is up: how late a changed model is noticed without any request."""

FIRST_RETRY = 0.5
LONGEST_RETRY = 5.0


async def watch(server: LlamaServer) -> None:
    """Keep `server.state` true until cancelled. What requests see is recorded by the server object itself."""
    pause = FIRST_RETRY
    seen = server.state
    while True:
        try:
            await server.probe()
        except Exception:
            # One server that is stranger than anybody thought must not end the watch over all.
            log.exception("probing server %s", server.name)
        if server.state is not seen:
            seen = server.state
            level = logging.WARNING if seen is ServerState.DOWN else logging.INFO
            log.log(level, "server %s is %s%s", server.name, seen.value, _why(server))
        if server.state is ServerState.UP:
            pause = FIRST_RETRY
            with anyio.move_on_after(UP_INTERVAL):
                await server.changed()
        else:
            await anyio.sleep(pause * random.uniform(0.8, 1.2))  # noqa: S311  (jitter, not a secret)
            pause = min(2 * pause, LONGEST_RETRY)


def _why(server: LlamaServer) -> str:
    return "" if server.state is ServerState.UP else f" ({server.state_reason})"
