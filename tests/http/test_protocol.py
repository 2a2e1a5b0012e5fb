"""Clients that are slow, send too much or take nothing: times and sizes, and that everybody else is served."""

from __future__ import annotations

import contextlib
import json
import socket
from pathlib import Path

import anyio
import httpx
import pytest
from http_support import ANSWER, CHAT, StartFake, StartRouter, until
from raw_http import HEALTH, PATIENCE, connect, post

from specrouter.testing import Exchange, FakeServer

pytestmark = pytest.mark.anyio

SOON = 0.3
"""`client_timeout` where it is to pass."""

PATH = "/v1/chat/completions"


# -- slow clients ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "begun",
    [
        b"G",
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: loc",
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\n{",
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n",
        HEALTH + b"GET /hea",
    ],
)
async def test_a_request_that_stays_incomplete_is_answered_408(
    fake: StartFake, router: StartRouter, begun: bytes
) -> None:
    client = await router({"big": await fake()}, client_timeout=SOON)
    async with connect(client) as raw:
        await raw.send(begun)
        if begun.startswith(HEALTH):
            assert (await raw.answer()).status == 200
        answer = await raw.answer()
        assert (answer.status, answer.error["code"]) == (408, "request_timeout")
        assert await raw.rest() == b""


@pytest.mark.parametrize("begun", [b"", b"\r\n", HEALTH])
async def test_a_connection_that_asks_nothing_is_closed_without_a_word(
    fake: StartFake, router: StartRouter, begun: bytes
) -> None:
    client = await router({"big": await fake()}, client_timeout=SOON)
    async with connect(client) as raw:
        await raw.send(begun)
        if begun == HEALTH:
            assert (await raw.answer()).status == 200
            # Keeps uvicorn from counting by itself.
            await raw.send(b"\r\n")
        assert await raw.rest() == b""


@pytest.mark.parametrize("data", [b"X: y\r\n", b"z", b"\r\n"])
async def test_drips_do_not_extend_the_time_for_the_head(fake: StartFake, router: StartRouter, data: bytes) -> None:
    client = await router({"big": await fake()}, client_timeout=SOON)
    async with connect(client) as raw, anyio.create_task_group() as tasks:
        if data != b"\r\n":
            await raw.send(b"GET /health HTTP/1.1\r\nHost: localhost\r\n")

        async def dripping() -> None:
            with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                while True:
                    await raw.send(data)
                    await anyio.sleep(SOON / 10)

        tasks.start_soon(dripping)
        said = await raw.rest()
        tasks.cancel_scope.cancel()
    assert said == b"" if data == b"\r\n" else b"request_timeout" in said


async def test_a_slow_body_that_goes_on_is_waited_for(fake: StartFake, router: StartRouter) -> None:
    client = await router({"big": await fake()}, client_timeout=3)
    message = post({**CHAT, "messages": [{"role": "user", "content": "x" * 50}]})
    head, body = message.split(b"\r\n\r\n", 1)
    async with connect(client) as raw:
        await raw.send(head + b"\r\n\r\n")
        for start in range(0, len(body), 20):
            await anyio.sleep(0.5)
            await raw.send(body[start : start + 20])
        assert (await raw.answer()).status == 200


async def test_a_slow_target_is_not_a_slow_client(fake: StartFake, router: StartRouter) -> None:
    target = await fake()
    client = await router({"big": target}, client_timeout=SOON)
    target.prompt_seconds = 4 * SOON
    answer = await client.post(PATH, json=CHAT)
    assert answer.json()["choices"][0]["message"]["content"] == ANSWER


# -- large heads -------------------------------------------------------------------------------------------


def endless(*, start: bytes, piece: bytes) -> list[bytes]:
    """Much more than any head may have, in writes."""
    return [start, *[piece] * 400]


CHUNKED = b"POST /a HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"

TOO_LARGE = [
    [b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"y" * 9000 + b"\r\n\r\n"],
    [b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * 2000 + b"\r\n"],
    [b"GET /" + b"y" * 9000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n"],
    endless(start=b"GET /", piece=b"y" * 1000),
    endless(start=b"GET /health HTTP/1.1\r\nX: ", piece=b"y" * 1000),
    endless(start=b"GET /health HTTP/1.1\r\n", piece=b"y" * 1000),
    endless(start=b"GET /health HTTP/1.1\r\n", piece=b"X: y\r\n" * 100),
    endless(start=b"", piece=b"\r\n" * 500),
    endless(start=CHUNKED + b"2\r\n{}\r\n0\r\nX: ", piece=b"y" * 1000),
    endless(start=CHUNKED + b"0\r\n", piece=b"X: y\r\n" * 100),
    endless(start=CHUNKED + b"2;", piece=b"y" * 1000),
]


async def test_a_head_over_the_limit_is_answered_431(fake: StartFake, router: StartRouter) -> None:
    client = await router({"big": await fake()}, max_headers="8KiB")
    for writes in TOO_LARGE:
        async with connect(client) as raw:
            for data in writes:
                await raw.send(data)
            answer = await raw.answer()
            assert (answer.status, answer.error["code"]) == (431, "headers_too_large"), writes[:2]
            assert await raw.rest() == b""


async def test_a_head_below_the_limit_is_taken(fake: StartFake, router: StartRouter) -> None:
    client = await router({"big": await fake()}, max_headers="8KiB")
    for more in ("X: " + "y" * 7500 + "\r\n", "X: y\r\n" * 1000):
        async with connect(client) as raw:
            await raw.send(post(CHAT, more=more))
            assert (await raw.answer()).status == 200


# -- clients that take nothing -----------------------------------------------------------------------------

EVENT = b"data: " + json.dumps({"model": "toy-model.gguf", "choices": [], "x": "y" * 30_000}).encode() + b"\n\n"


class Flood:
    """A target's reply: events without end, as fast as they are taken."""

    def __init__(self) -> None:
        self.sent = 0

    async def __call__(self, exchange: Exchange) -> None:
        await exchange.start_stream()
        while True:
            await exchange.send_event(EVENT)
            self.sent += len(EVENT)


@pytest.fixture
async def flooding(fake: StartFake) -> tuple[FakeServer, Flood]:
    target = await fake()
    flood = Flood()
    target.replies[PATH] = flood
    return target, flood


def resident() -> int:
    """Bytes of memory this process has, the router and its fakes included."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * 4096


async def connect_narrow(client: httpx.AsyncClient) -> socket.socket:
    """A connection whose kernel takes little by itself."""
    narrow = socket.socket()
    narrow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    await anyio.to_thread.run_sync(narrow.connect, (client.base_url.host, client.base_url.port))
    return narrow


async def test_a_client_that_never_reads_is_cut_and_costs_little(
    flooding: tuple[FakeServer, Flood], router: StartRouter
) -> None:
    target, flood = flooding
    client = await router({"big": target}, client_timeout=2.0)
    idle = target.open_connections
    before = resident()
    with await connect_narrow(client) as narrow:
        narrow.sendall(post({**CHAT, "stream": True}))
        await until(lambda: flood.sent > 0, seconds=PATIENCE)
        # It goes on until all buffers between are full, then it stands still.
        seen = -1
        while seen != flood.sent:
            seen = flood.sent
            await anyio.sleep(0.3)
        # Most of it lies in the kernel's buffers: unread, the target would have sent gigabytes.
        assert seen < 64 * 1024 * 1024
        assert resident() - before < 32 * 1024 * 1024
        await until(lambda: target.received(PATH)[0].left, seconds=PATIENCE)
        await until(lambda: target.open_connections <= idle, seconds=PATIENCE)


async def test_a_client_that_reads_slowly_is_not_cut(flooding: tuple[FakeServer, Flood], router: StartRouter) -> None:
    target, _ = flooding
    client = await router({"big": target}, client_timeout=1.0)
    with await connect_narrow(client) as narrow:
        narrow.sendall(post({**CHAT, "stream": True}))
        end = anyio.current_time() + 3
        while anyio.current_time() < end:
            assert await anyio.to_thread.run_sync(narrow.recv, 65536)
            await anyio.sleep(0.005)
        assert not target.received(PATH)[0].left


async def test_a_finished_answer_that_nobody_takes_does_not_stay(
    fake: StartFake, router: StartRouter, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    target = await fake()

    async def large(exchange: Exchange) -> None:
        await exchange.respond({"model": "m", "x": "y" * SIZE})

    target.replies[PATH] = large
    client = await router({"big": target}, client_timeout=SOON)
    with await connect_narrow(client) as narrow:
        narrow.sendall(post(CHAT, more="Connection: close\r\n"))
        await until(lambda: "is cut off" in caplog.text, seconds=PATIENCE)
        # What lay in the kernel's buffers is all there is.
        assert await anyio.to_thread.run_sync(size_of_rest, narrow) < SIZE


SIZE = 20_000_000


def size_of_rest(narrow: socket.socket) -> int:
    """Read to the end."""
    size = 0
    while data := narrow.recv(1 << 20):
        size += len(data)
    return size


# -- many requests on a connection -------------------------------------------------------------------------


async def test_pipelined_requests_are_answered_in_order(fake: StartFake, router: StartRouter) -> None:
    target = await fake()
    client = await router({"big": target})
    async with connect(client) as raw:
        await raw.send(
            post(CHAT) + HEALTH + post({**CHAT, "model": "nobody"}) + post({**CHAT, "stream": True}) + HEALTH
        )
        answers = [await raw.answer() for _ in range(5)]
    assert [answer.status for answer in answers] == [200, 200, 404, 200, 200]
    assert json.loads(answers[0].body)["choices"][0]["message"]["content"] == ANSWER
    assert answers[1].body == answers[4].body == b'{"status":"ok"}'
    assert answers[3].body.endswith(b"data: [DONE]\n\n")


async def test_a_pipelining_client_that_leaves_ends_its_first_request(fake: StartFake, router: StartRouter) -> None:
    target = await fake()
    target.prompt_seconds = 60
    client = await router({"big": target})
    async with connect(client) as raw:
        await raw.send(post(CHAT) + HEALTH)
        await until(lambda: target.received(PATH), seconds=PATIENCE)
    await until(lambda: target.received(PATH)[0].left, seconds=PATIENCE)


async def test_not_endlessly_many_requests_wait(fake: StartFake, router: StartRouter) -> None:
    target = await fake()
    target.prompt_seconds = 0.5
    client = await router({"big": target})
    async with connect(client) as raw:
        await raw.send(post(CHAT) + HEALTH * 3000)
        said = await raw.rest()
    assert said.count(b"HTTP/1.1 200") == 65


async def test_what_follows_garbage_is_not_answered(fake: StartFake, router: StartRouter) -> None:
    target = await fake()
    target.step_seconds = 0.01
    client = await router({"big": target})
    async with connect(client) as raw:
        await raw.send(post({**CHAT, "stream": True}) + HEALTH + b"\x00\x01 garbage\r\n\r\n" + HEALTH)
        answers = [await raw.answer(), await raw.answer()]
        assert answers[0].body.endswith(b"data: [DONE]\n\n")
        assert answers[1].headers["connection"] == "close"
        assert await raw.rest() == b""


# -- the ordinary ------------------------------------------------------------------------------------------


async def test_a_large_body_is_asked_for(fake: StartFake, router: StartRouter) -> None:
    client = await router({"big": await fake()})
    body = json.dumps({**CHAT, "x": "y" * 3_000_000}).encode()
    head = post(body, more="Expect: 100-continue\r\n")[: -len(body)]
    async with connect(client) as raw:
        await raw.send(head)
        assert (await raw.answer()).status == 100
        await raw.send(body)
        assert (await raw.answer()).status == 200


async def test_a_body_over_the_limit_is_refused_before_it_is_asked_for(fake: StartFake, router: StartRouter) -> None:
    client = await router({"big": await fake()}, max_body=10_000)
    async with connect(client) as raw:
        await raw.send(post(b"y" * 20_000, more="Expect: 100-continue\r\n")[:-20_000])
        answer = await raw.answer()
        assert (answer.status, answer.error["code"]) == (413, "request_too_large")


async def test_a_refused_body_need_not_be_read(fake: StartFake, router: StartRouter) -> None:
    """The client may go on sending, for a while."""
    client = await router({"big": await fake()}, max_body=10_000, client_timeout=SOON)
    async with connect(client) as raw:
        await raw.send(b"POST /a HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000000\r\n\r\n")
        assert (await raw.answer()).error["code"] == "request_too_large"
        with anyio.fail_after(PATIENCE), contextlib.suppress(anyio.BrokenResourceError):
            while True:
                await raw.send(b"y" * 1000)
                await anyio.sleep(SOON / 10)


@pytest.mark.parametrize("protocol", ["h2c", "websocket"])
async def test_an_upgrade_is_declined(fake: StartFake, router: StartRouter, protocol: str) -> None:
    """Some HTTP/2 clients ask for it with every request, those with a body included."""
    target = await fake()
    client = await router({"big": target})
    wish = f"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: {protocol}\r\nHTTP2-Settings: AAMAAABk\r\n"
    message = post(CHAT, more=wish)
    for pieces in ([message + HEALTH], [message[:-20], message[-20:] + HEALTH], [bytes([b]) for b in message + HEALTH]):
        async with connect(client) as raw:
            for piece in pieces:
                await raw.send(piece)
            assert json.loads((await raw.answer()).body)["choices"][0]["message"]["content"] == ANSWER
            assert (await raw.answer()).body == b'{"status":"ok"}'
    assert {request.header("upgrade") for request in target.requests} == {None}


async def test_a_websocket_gets_a_plain_answer(fake: StartFake, router: StartRouter) -> None:
    client = await router({"big": await fake()})
    head = b"GET /v1/realtime HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
    async with connect(client) as raw:
        await raw.send(head + HEALTH)
        answer = await raw.answer()
        assert (answer.status, answer.error["code"]) == (404, "unknown_url")
        assert (await raw.answer()).status == 200


async def test_head_and_options(fake: StartFake, router: StartRouter) -> None:
    client = await router({"big": await fake()})
    async with connect(client) as raw:
        await raw.send(HEALTH.replace(b"GET", b"HEAD"))
        answer = await raw.answer(head_only=True)
        assert (answer.status, answer.headers["content-length"]) == (200, "15")
        await raw.send(HEALTH.replace(b"GET", b"OPTIONS"))
        assert (await raw.answer()).error["code"] == "unknown_url"
        await raw.send(HEALTH)
        assert (await raw.answer()).status == 200


async def test_http_1_0(fake: StartFake, router: StartRouter) -> None:
    client = await router({"big": await fake()})
    async with connect(client) as raw:
        await raw.send(b"GET /health HTTP/1.0\r\n\r\n")
        assert (await raw.answer()).body == b'{"status":"ok"}'
        assert await raw.rest() == b""
