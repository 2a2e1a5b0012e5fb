"""The end of a router: whoever is being answered may have the time that the topology gives, and no upstream is left."""

from __future__ import annotations

import json
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from http_support import ANSWER, CHAT, Held, StartFake, until
from router_process import RouterProcess, served, write_topology

from specrouter.app import make_app, serve_in_background
from specrouter.config import load_topology
from specrouter.routing import Router
from specrouter.running import find
from specrouter.service import Service
from specrouter.testing import FakeServer

pytestmark = pytest.mark.anyio

PATH = "/v1/chat/completions"
LONG = 300
"""Seconds that no test waits for."""

Serve = Callable[..., AbstractAsyncContextManager[RouterProcess]]


@pytest.fixture
async def target(fake: StartFake) -> FakeServer:
    return await fake()


@pytest.fixture
def serve(target: FakeServer, tmp_path: Path) -> Serve:
    """A router before the target, in a process. Keywords are those of `listen` and, with a `_`, of the route."""

    @asynccontextmanager
    async def start(route: dict[str, Any] | None = None, **listen: Any) -> AsyncIterator[RouterProcess]:
        routes = {"fast": {"target": "big", **(route or {})}}
        file = write_topology(tmp_path / "served.yaml", {"big": target}, routes, **listen)
        async with served(file) as router:
            yield router
        assert not find(file)

    return start


class Answer:
    """A request that is asked in the background; `response` is there when it has ended."""

    def __init__(self, router: RouterProcess, tasks: Any, **changed: Any) -> None:
        self.response: httpx.Response
        self.sent = anyio.Event()
        self.ended = anyio.Event()
        tasks.start_soon(self._ask, router, {**CHAT, **changed})

    async def _ask(self, router: RouterProcess, body: dict[str, Any]) -> None:
        async def trace(event: str, _: object) -> None:
            if event == "http11.send_request_body.complete":
                self.sent.set()

        self.response = await router.client.post(PATH, json=body, extensions={"trace": trace})
        self.ended.set()

    @property
    def events(self) -> list[str]:
        lines = self.response.text.splitlines()
        return [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]


async def refused(router: RouterProcess) -> None:
    """Wait until new connections are refused."""
    with anyio.fail_after(60):
        while True:
            try:
                async with httpx.AsyncClient(base_url=router.client.base_url) as client:
                    await client.get("/health")
            except httpx.TransportError:
                return
            await anyio.sleep(0.02)


async def all_received(router: RouterProcess) -> None:
    """Return when the router has read what was sent to it before: it reads all its connections in turn."""
    for _ in range(3):
        await router.client.get("/health")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_running_answers_may_end(target: FakeServer, serve: Serve, number: signal.Signals) -> None:
    held = Held(target)
    async with serve(shutdown_wait=LONG) as router, anyio.create_task_group() as tasks:
        streamed, whole = Answer(router, tasks, stream=True), Answer(router, tasks)
        await until(lambda: target.running == 2, seconds=60)
        router.send(number)
        await refused(router)
        held.go.set()
        assert await router.ended() == 0
        await streamed.ended.wait()
        await whole.ended.wait()
        assert streamed.events[-1] == "[DONE]"
        assert whole.response.json()["choices"][0]["message"]["content"] == ANSWER
    await until(lambda: not target.open_connections, seconds=20)


async def test_answers_that_take_too_long_are_cut(target: FakeServer, serve: Serve) -> None:
    held = Held(target)
    async with serve(shutdown_wait=0.2) as router, anyio.create_task_group() as tasks:
        streamed, whole = Answer(router, tasks, stream=True), Answer(router, tasks)
        await until(lambda: target.running == 2, seconds=60)
        await held.reached.wait()
        router.send(signal.SIGTERM)
        assert await router.ended() == 0
        await streamed.ended.wait()
        await whole.ended.wait()
        assert json.loads(streamed.events[-1])["error"]["code"] == "shutting_down"
        assert whole.response.status_code == 503
        assert whole.response.json()["error"]["code"] == "shutting_down"
        assert "Traceback" not in router.log()
    await until(lambda: not target.running and not target.open_connections, seconds=20)


async def test_request_in_line_is_served_when_its_turn_comes(target: FakeServer, serve: Serve) -> None:
    held = Held(target)
    async with serve({"limits": {"concurrent": 1}}, shutdown_wait=LONG) as router, anyio.create_task_group() as tasks:
        first = Answer(router, tasks, stream=True)
        await held.reached.wait()
        second = Answer(router, tasks)
        await second.sent.wait()
        await all_received(router)
        router.send(signal.SIGTERM)
        await refused(router)
        held.go.set()
        assert await router.ended() == 0
        await first.ended.wait()
        await second.ended.wait()
        assert second.response.json()["choices"][0]["message"]["content"] == ANSWER


async def test_request_in_line_is_told_at_the_end(target: FakeServer, serve: Serve) -> None:
    held = Held(target)
    async with serve({"limits": {"concurrent": 1}}, shutdown_wait=0.2) as router, anyio.create_task_group() as tasks:
        Answer(router, tasks, stream=True)
        await held.reached.wait()
        second = Answer(router, tasks)
        await second.sent.wait()
        await all_received(router)
        router.send(signal.SIGTERM)
        assert await router.ended() == 0
        await second.ended.wait()
        assert second.response.status_code == 503
        assert second.response.json()["error"]["code"] == "shutting_down"


async def test_half_a_request(serve: Serve) -> None:
    async with serve(shutdown_wait=0.2) as router:
        url = router.client.base_url
        async with await anyio.connect_tcp(url.host, url.port or 80) as stream:
            await stream.send(f"POST {PATH} HTTP/1.1\r\nHost: {url.host}\r\nContent-Length: 100\r\n\r\n{{".encode())
            await all_received(router)
            router.send(signal.SIGTERM)
            assert await router.ended() == 0
            received = b"".join([chunk async for chunk in stream])
        assert received.startswith(b"HTTP/1.1 503")
        assert b"shutting_down" in received
        assert "Traceback" not in router.log()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_asked_twice(target: FakeServer, serve: Serve, number: signal.Signals) -> None:
    held = Held(target)
    async with (
        serve(shutdown_wait=LONG) as router,
        router.client.stream("POST", PATH, json={**CHAT, "stream": True}),
    ):
        await held.reached.wait()
        router.send(number)
        await refused(router)
        router.send(number)
        assert await router.ended() == -number
    await until(lambda: not target.running and not target.open_connections, seconds=20)


async def test_wait_of_a_reloaded_topology(target: FakeServer, serve: Serve, tmp_path: Path) -> None:
    held = Held(target)
    async with serve(shutdown_wait=LONG) as router, anyio.create_task_group() as tasks:
        answer = Answer(router, tasks, stream=True)
        await held.reached.wait()
        file = write_topology(tmp_path / "served.yaml", {"big": target}, {"fast": {"target": "big"}}, shutdown_wait=0.2)
        router.send(signal.SIGHUP)
        await until(lambda: find(file)[0].status.ended == 1, seconds=60)
        router.send(signal.SIGTERM)
        assert await router.ended() == 0
        await answer.ended.wait()
        assert json.loads(answer.events[-1])["error"]["code"] == "shutting_down"


async def test_health_while_it_ends(target: FakeServer, tmp_path: Path) -> None:
    """For load balancers that have a connection still: the next request goes to another router."""
    file = write_topology(tmp_path / "served.yaml", {"big": target}, {"fast": {"target": "big"}})
    service = Service(Router(load_topology(file)), make_app)
    async with serve_in_background(service) as url, httpx.AsyncClient(base_url=url, timeout=60) as client:
        assert (await client.get("/health")).status_code == 200
        service.begin_shutdown()
        health = await client.get("/health")
        assert (health.status_code, health.json()["error"]["code"]) == (503, "shutting_down")
        assert health.headers["connection"] == "close"
        # What has come all the same is answered, and no more is asked for.
        answer = await client.post(PATH, json=CHAT)
        assert answer.json()["choices"][0]["message"]["content"] == ANSWER
        assert answer.headers["connection"] == "close"
        assert (await service.reload()).problems == ("the router is being stopped",)
