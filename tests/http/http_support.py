"""What the tests of the router say again and again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import anyio
import httpx
import pytest

from specrouter.testing import Exchange, FakeServer, ToyModel

ANSWER = "".join(f" {first}{second}" for first in ("ba", "ko", "mi", "tu", "ze", "ra") for second in ("da", "fo", "li"))
"""18 words, each of them one token."""


class StartFake(Protocol):
    """Starts a fake server that says `says`; it runs until the test ends."""

    async def __call__(self, says: str | ToyModel = ANSWER, **options: Any) -> FakeServer: ...


class StartRouter(Protocol):
    """Starts a router and returns a client of it; both end with the test.

    `servers` are fakes or configured servers; by default, there is one route `fast` for all of them, in order.
    It waits until the router knows the first server of each route, unless `wait` is False.
    """

    async def __call__(
        self,
        servers: Mapping[str, FakeServer | Mapping[str, Any]],
        routes: Mapping[str, Any] | None = None,
        *,
        wait: bool = True,
        plugins: Sequence[str] = (),
        **listen: Any,
    ) -> httpx.AsyncClient: ...


async def until_known(client: httpx.AsyncClient) -> None:
    """Wait until the router has asked the first server of every route about itself."""
    with anyio.fail_after(20):
        while not all("n_vocab" in model["meta"] for model in (await client.get("/v1/models")).json()["data"]):
            await anyio.sleep(0.01)


class Pair:
    """A target that verifies drafts, a draft server that is always right, and a router that brings them together."""

    def __init__(self, target: FakeServer, drafter: FakeServer) -> None:
        self.target = target
        self.drafter = drafter
        self.routes: dict[str, Any] = {
            "fast": {"target": "big", "draft": {"use": "remote", "options": {"server": "laptop"}}},
            "plain": {"target": "big"},
        }

    @property
    def servers(self) -> dict[str, FakeServer | Mapping[str, Any]]:
        """As the router's topology names them."""
        return {"big": self.target, "laptop": self.drafter}


CHAT: dict[str, Any] = {
    "model": "fast",
    "messages": [{"role": "user", "content": "hi"}],
    "cache_prompt": False,
    "temperature": 0,
}


async def decoding(client: httpx.AsyncClient, **changed: Any) -> str:
    """How the router says that it decodes a chat request."""
    response = await client.post("/v1/chat/completions", json={**CHAT, "max_tokens": 8, **changed})
    response.raise_for_status()
    return response.headers["x-specrouter-decoding"]


async def until_decoding(client: httpx.AsyncClient, wanted: str, *, seconds: float = 30.0, **changed: Any) -> None:
    """Wait until a chat request is decoded in that way, or plainly with a reason that contains `wanted`."""
    found = ""
    with anyio.move_on_after(seconds):
        # While a target is tried out it is left alone: a trial waits while it answers somebody.
        while await is_being_tried_out(client) or not is_wanted(found := await decoding(client, **changed), wanted):
            await anyio.sleep(0.02)
        return
    pytest.fail(f"{wanted!r} expected, the last answer said {found!r}")


def is_wanted(decoding: str, wanted: str) -> bool:
    """Whether an answer was decoded in that way, or with that reason. A way may be named in a reason as well."""
    return decoding == wanted or (" " in wanted and wanted in decoding)


async def is_being_tried_out(client: httpx.AsyncClient) -> bool:
    """Whether one of the router's pairs is."""
    status = await client.get("/specrouter/status")
    drafts = [route["draft"] for route in status.json()["routes"]] if status.is_success else []
    return any(pair["obstacle"] == "being tried out" for draft in drafts if draft for pair in draft["pairs"])


async def until(condition: Any, *, seconds: float = 20.0) -> None:
    """Wait until `condition()` is true."""
    with anyio.move_on_after(seconds):
        while not condition():
            await anyio.sleep(0.01)
    assert condition()


class Held:
    """Holds a fake's answers before their third word until `go` is set."""

    def __init__(self, server: FakeServer) -> None:
        self.go = anyio.Event()
        self.reached = anyio.Event()
        server.before_token = self._hold

    async def _hold(self, _: Exchange, number: int) -> None:
        if number == 2:
            self.reached.set()
            await self.go.wait()


def dies_after(target: FakeServer, path: str, events: int) -> None:
    """The next answer breaks off after so many events; then the server is gone."""

    async def reply(exchange: Exchange) -> None:
        sent, send = 0, exchange.send_event

        async def counting(data: object) -> None:
            nonlocal sent
            await send(data)
            sent += 1
            if sent == events:
                target.stop()
                exchange.end_connection()

        exchange.send_event = counting  # type: ignore[method-assign]
        await target.unscripted(exchange)(exchange)

    target.replies[path] = reply
