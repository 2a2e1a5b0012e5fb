"""Waits until a route can be measured: its servers are up, and it is known whether its drafts can be verified."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import anyio

from specrouter.route import Route
from specrouter.types import ServerState
from specrouter.upstream import LlamaServer

from .asking import PATH

_LONGEST_SECONDS = 900.0
_POLL_SECONDS = 0.02

_PASSING = (
    "not tried out yet",
    "being tried out",
    "is unknown",
    "is stopped",
    "is loading",
    "are unknown",
    "is back",
    "are back",
)
"""Words of reasons against drafting that pass by themselves."""


async def until_ready(route: Route, body: Mapping[str, Any]) -> LlamaServer | str:
    """The server that answers such a request, as soon as it does and drafts where the route declares that.

    Otherwise why it does not, as it goes on after the name of the route. Raises DraftRefused.
    """
    waits_for = "is not ready"
    with anyio.move_on_after(_LONGEST_SECONDS):
        while True:
            server = route.candidates()[0]
            if server.state is ServerState.UP:
                against = route.decide(server, PATH, body).reason
                if against is None:
                    return server
                waits_for = f"does not draft: {against}"
                if not any(words in against for words in _PASSING):
                    return waits_for
            else:
                # One that the router runs is started for whoever needs it.
                server.wake()
                waits_for = f"has no target that is up: {server.state_reason}"
                if server.state is ServerState.DOWN:
                    return waits_for
            await anyio.sleep(_POLL_SECONDS)
    return waits_for
