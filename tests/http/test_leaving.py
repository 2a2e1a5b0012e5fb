"""A client that leaves stops all work that was done for it, and leaves nothing open."""

from __future__ import annotations

import socket
import struct
from typing import Any
from urllib.parse import urlsplit

import anyio
import httpx
import pytest
from http_support import CHAT, Pair, StartFake, StartRouter, until, until_decoding

from specrouter.testing import ToyModel

pytestmark = pytest.mark.anyio

PATH = "/v1/chat/completions"


async def leave(client: httpx.AsyncClient, when: Any, body: dict[str, Any], *, rst: bool) -> None:
    """Send a request, wait for `when()`, and close the connection."""
    address = urlsplit(str(client.base_url))
    assert address.hostname is not None
    assert address.port is not None
    async with await anyio.connect_tcp(address.hostname, address.port) as stream:
        content = httpx.Request("POST", "http://x", json=body).content
        head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(content)}\r\n\r\n"
        await stream.send(head.encode() + content)
        await until(when)
        if rst:
            raw = stream.extra(anyio.abc.SocketAttribute.raw_socket)
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            await anyio.aclose_forcefully(stream)


@pytest.mark.parametrize("rst", [True, False])
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("phase", ["prompt", "generation"])
async def test_the_target_stops(fake: StartFake, router: StartRouter, phase: str, stream: bool, rst: bool) -> None:
    target = await fake(" bako" * 3000)
    client = await router({"big": target})
    target.step_seconds = 0.01
    target.prompt_seconds = 60.0 if phase == "prompt" else 0.0
    seen = 0

    async def count(_: object, number: int) -> None:
        nonlocal seen
        seen = number

    target.before_token = count
    await leave(client, lambda: target.running and (phase == "prompt" or seen > 5), {**CHAT, "stream": stream}, rst=rst)
    await until(lambda: not target.running, seconds=2)
    assert target.received(PATH)[0].left


async def test_leaving_while_the_model_loads(fake: StartFake, router: StartRouter) -> None:
    target = await fake()
    client = await router({"big": target})
    target.loading = True
    await leave(client, lambda: target.received(PATH), CHAT, rst=True)
    asked = len(target.received(PATH))
    await anyio.sleep(0.6)
    assert len(target.received(PATH)) <= asked + 1


async def test_leaving_stops_the_companion(pair: Pair, router: StartRouter) -> None:
    client = await router(pair.servers, pair.routes)
    await until_decoding(client, "inject")
    pair.target.model = pair.drafter.model = ToyModel(" bako deli" * 2000)
    pair.drafter.step_seconds = 0.01
    for stream in (True, False):
        await leave(
            client,
            lambda: pair.drafter.running and pair.target.running,
            {**CHAT, "stream": stream},
            rst=True,
        )
        await until(lambda: not pair.target.running and not pair.drafter.running, seconds=2)


async def test_many_aborted_clients_leave_nothing(fake: StartFake, router: StartRouter) -> None:
    target = await fake()
    client = await router({"big": target})
    target.prompt_seconds = 30
    number = 200

    async def one(index: int) -> None:
        before = len(target.received(PATH))
        when = (lambda: True) if index % 2 else (lambda: len(target.received(PATH)) > before)
        await leave(client, when, {**CHAT, "stream": index % 3 == 0}, rst=True)

    async with anyio.create_task_group() as tasks:
        for index in range(number):
            tasks.start_soon(one, index)
    await until(lambda: not target.running, seconds=3)
    target.prompt_seconds = 0
    with anyio.fail_after(2):
        assert (await client.post(PATH, json=CHAT)).status_code == 200
    # One connection may be kept for the next request.
    await until(lambda: target.open_connections <= 1, seconds=2)


async def test_an_answer_that_nobody_reads_is_closed(fake: StartFake, router: StartRouter) -> None:
    """An error status whose body is never asked for must not keep its connection."""
    first, second = await fake(), await fake()
    first.loading = True
    client = await router({"first": {"url": first.url, "load_wait": 0}, "second": second}, wait=False)
    for _ in range(20):
        assert (await client.post(PATH, json=CHAT)).status_code == 200
    await until(lambda: first.open_connections <= 1)
