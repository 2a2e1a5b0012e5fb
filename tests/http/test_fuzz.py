"""Thousands of wrong requests, the same ones every time: each is answered, none with a fault of the router."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import anyio
import httpx
import pytest
from http_support import CHAT, Pair, StartRouter, until, until_decoding
from raw_http import PATIENCE, Answer, RawClient, connect, post

from specrouter.testing import Exchange, FakeServer

pytestmark = pytest.mark.anyio

KEY = "fuzz-key-0123456789"

PATHS = ("/v1/chat/completions", "/v1/completions", "/completion", "/v1/embeddings", "/tokenize")

BASES: tuple[dict[str, Any], ...] = (
    {**CHAT, "max_tokens": 20},
    {**CHAT, "max_tokens": 20, "stream": True, "stream_options": {"include_usage": True}},
    {"model": "fast", "prompt": "ba ko", "temperature": 0, "n_predict": 20},
    {"model": "plain", "prompt": [1, 2, 3], "stream": True},
    {**CHAT, "model": "plain", "max_tokens": 20},
    {**CHAT, "model": "plain", "stream": True},
)

FIELDS = (
    "model", "stream", "messages", "prompt", "max_tokens", "max_completion_tokens", "n_predict", "n", "n_cmpl",
    "stop", "stream_options", "temperature", "top_k", "top_p", "min_p", "seed", "logprobs", "n_probs",
    "response_format", "tools", "reasoning_format", "cache_prompt", "logit_bias", "\\u006dodel", "mod\\u0065l",
    "MODEL", "",
)  # fmt: skip

VALUES = (
    "null", "true", "false", "0", "-1", "1", "1.5", "-0.0", "1e400", "-1e400", "1e-400", "NaN", "Infinity",
    "-Infinity", "9" * 30, "9" * 400, "9" * 5000, '""', '"fast"', '"plain"', '"nobody"', r'"\ud800"',
    r'"\udfff\ud800 x"', r'"\u0000"', '"\u2028\U0001f600"', r'"a\"}, {\"model\": \"nobody\""', "[]", "{}", "[null]",
    "[1, 2]", "[-1]", "[" * 200 + "]" * 200, "[" * 100_000 + "]" * 100_000, '{"a": ' * 3000 + "1" + "}" * 3000,
    "[[]]", '[{"role": 5, "content": {}}]', r'[{"role": "user", "content": "\ud83d"}]',
    '[{"role": "user", "content": [{"type": "image_url"}]}]', '[{"role": "user", "content": [5, null]}]',
    '[{"content": "x"}]', '["x"]', '{"include_usage": "x"}', '{"type": []}', '"' + "x" * 10_000 + '"', "01", "+1",
    ".5", "tru", "'x'", "", "\t", '"\t"', '"\\x"', "/* */ 1", "1,", ",1",
)  # fmt: skip

HEADERS = (
    "Content-Type: text/plain", "Content-Type: multipart/form-data; boundary=x", "Content-Type: multipart/form-data",
    "Content-Type: application/json; charset=utf-16", "Content-Type: \xff",
    "Accept: \xe4\xf6", "Content-Encoding: gzip", "Accept-Encoding: br", "X-Request-Id: \xff\xfe",
    "X-Request-Id: " + "x" * 3000, "X-Request-Id:", "Cookie: a=b", "Range: bytes=0-1", "Expect: 100-continue",
    "Expect: nonsense", "Connection: x-api-key", "TE: trailers", "Upgrade: h2c", "X-Forwarded-For: 1.2.3.4",
    "X-Api-Key: wrong", "Authorization: Basic \xe4", "Authorization: Bearer", "Authorization:",
    "Authorization: Bearer \xff", "If-None-Match: *", "Origin: null",
)  # fmt: skip

QUERIES = (
    "",
    "?",
    "??",
    "?a",
    "?a=%",
    "?a=%00",
    "?a=%ff",
    "?model=nobody",
    "?" + "a" * 5000,
    "?a#b",
    "?/../..",
    "?a=b&a=c",
)


def changed(base: dict[str, Any], changes: Sequence[tuple[str, str]], rng: random.Random) -> bytes:
    """A body with more members, as JSON text; some of them in the place of its own, some besides."""
    members = [(json.dumps(key)[1:-1], json.dumps(value)) for key, value in base.items()]
    for name, text in changes:
        if rng.random() < 0.5:
            members = [(key, value) for key, value in members if key != name]
        members.insert(rng.randrange(len(members) + 1), (name, text))
    space = rng.choice(("", " ", "\n\t"))
    return ("{" + ",".join(f'{space}"{key}"{space}:{space}{value}' for key, value in members) + space + "}").encode()


def each_field_with_each_value() -> Iterator[bytes]:
    """All of them once."""
    rng = random.Random(0)
    for field in FIELDS:
        for value in VALUES:
            yield changed(rng.choice(BASES), [(field, value)], rng)


def damaged(seed: int, count: int) -> Iterator[bytes]:
    """Bodies with several things wrong in them, in half of the cases bytes too."""
    rng = random.Random(seed)
    for _ in range(count):
        changes = [(rng.choice(FIELDS), rng.choice(VALUES)) for _ in range(rng.randrange(4))]
        yield broken(rng, changed(rng.choice(BASES), changes, rng))


def broken(rng: random.Random, data: bytes) -> bytes:
    """The bytes, in half of the cases damaged."""
    place = rng.randrange(len(data) + 1)
    damages: list[Callable[[], bytes]] = [
        lambda: data[:place],
        lambda: data[place:],
        lambda: data[:place] + rng.randbytes(rng.randrange(1, 5)) + data[place:],
        lambda: data[:place] + data[place + rng.randrange(1, 5) :],
        lambda: b"\xef\xbb\xbf" + data,
        lambda: data + data,
        lambda: data + b" x",
        lambda: data.decode("utf-8", "replace").encode("utf-16"),
        lambda: b"",
    ]
    return data if rng.random() < 0.5 else rng.choice(damages)()


class Target:
    """What a target may see, and short answers of the right shape, whatever it was asked."""

    def __init__(self, server: FakeServer) -> None:
        self.name = server.name
        for path in PATHS:
            server.replies[path] = self.answer
        server.replies["/apply-template"] = self.template
        server.replies["/tokenize"] = self.tokenize

    async def answer(self, exchange: Exchange) -> None:
        def members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
            return {**dict(pairs), "pairs": pairs}

        body = json.loads(exchange.request.body.decode("utf-8-sig"), object_pairs_hook=members)
        models = [value for key, value in body["pairs"] if key == "model"]
        # However many there were: they all say what the router decided.
        assert models, exchange.request.body
        assert set(models) == {self.name}, exchange.request.body
        base = {"model": self.name, "object": "x"}
        if not body.get("stream"):
            await exchange.respond({**base, "choices": [], "content": "", "stop": True})
            return
        await exchange.start_stream()
        await exchange.send_event({**base, "choices": [{"index": 0, "delta": {"content": "x"}, "text": "x"}]})
        await exchange.send_event(
            {**base, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "stop": True}
        )
        if exchange.request.path.startswith("/v1/"):
            await exchange.send_event(b"data: [DONE]\n\n")
        await exchange.end_stream()

    async def template(self, exchange: Exchange) -> None:
        await exchange.respond({"prompt": " ba ko"})

    async def tokenize(self, exchange: Exchange) -> None:
        await exchange.respond({"tokens": [{"id": 256, "piece": ""}, {"id": 98, "piece": "b"}]})


class Fuzzed:
    """A router before a target and a draft server, and what must be true when the storm is over."""

    def __init__(self, pair: Pair, client: httpx.AsyncClient, caplog: pytest.LogCaptureFixture) -> None:
        self.pair = pair
        self.client = client
        self.caplog = caplog
        Target(pair.target)
        self.tasks = len(asyncio.all_tasks())

    def check(self, answer: Answer, sent: bytes) -> None:
        """The target's own answer, or an error of the client's in OpenAI's shape."""
        if "x-specrouter-decoding" in answer.headers:
            # The fake knows some paths only.
            assert answer.status in (200, 404), sent
        else:
            assert 400 <= answer.status < 500, (answer, sent)
            assert answer.error["message"], sent

    async def settle(self) -> None:
        """Nothing goes on, nothing was said that must not be."""
        await until(lambda: not self.pair.target.running and not self.pair.drafter.running, seconds=PATIENCE)
        await until(lambda: len(asyncio.all_tasks()) <= self.tasks, seconds=PATIENCE)
        assert (await self.client.get("/health")).status_code == 200
        records = [*self.caplog.records]
        assert not [record.getMessage() for record in records if record.levelno >= logging.ERROR or record.exc_info]
        assert KEY not in self.caplog.text


@pytest.fixture
async def fuzzed(pair: Pair, router: StartRouter, caplog: pytest.LogCaptureFixture) -> Fuzzed:
    """See Fuzzed. The companion works when the storm begins."""
    client = await router(pair.servers, pair.routes, api_keys=[KEY], client_timeout=0.5, max_headers="16KiB")
    await until_decoding(client, "inject")
    caplog.set_level(logging.INFO)
    return Fuzzed(pair, client, caplog)


async def in_turn(raw: RawClient, fuzzed: Fuzzed, messages: Iterator[bytes]) -> None:
    """Ask one after the other on a connection, which well-framed requests keep."""
    for message in messages:
        await raw.send(message)
        answer = await raw.answer()
        while answer.status == 100:
            answer = await raw.answer()
        fuzzed.check(answer, message)


BODIES = {
    "fields": each_field_with_each_value,
    "damaged-1": lambda: damaged(1, 300),
    "damaged-2": lambda: damaged(2, 300),
}


@pytest.mark.parametrize("name", BODIES)
async def test_bodies(fuzzed: Fuzzed, name: str) -> None:
    key = f"X-Api-Key: {KEY}\r\n"
    paths = itertools.cycle(PATHS)
    async with connect(fuzzed.client) as raw:
        await in_turn(raw, fuzzed, (post(body, path=next(paths), more=key) for body in BODIES[name]()))
    await fuzzed.settle()


async def test_headers_and_queries(fuzzed: Fuzzed) -> None:
    rng = random.Random(0)

    def messages() -> Iterator[bytes]:
        for _ in range(300):
            chosen = rng.sample(HEADERS, rng.randrange(1, 4))
            more = "".join(f"{line}\r\n" for line in [*chosen, f"Authorization: Bearer {KEY}"])
            path = rng.choice(PATHS) + rng.choice(QUERIES)
            body = json.dumps(rng.choice(BASES)).encode()
            head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{more}Content-Length: {len(body)}\r\n\r\n"
            yield head.encode("latin-1") + body

    async with connect(fuzzed.client) as raw:
        await in_turn(raw, fuzzed, messages())
    await fuzzed.settle()


async def test_bytes(fuzzed: Fuzzed) -> None:
    """Damage anywhere, framing included: an answer or the end of the connection, and soon."""
    rng = random.Random(0)
    places = anyio.Semaphore(50)

    async def try_once(data: bytes) -> None:
        async with places, connect(fuzzed.client) as raw:
            try:
                await raw.send(data)
                answer = await raw.answer()
            except (anyio.EndOfStream, anyio.BrokenResourceError):
                return
            if answer.status != 100 and not data.startswith(b"GET"):
                fuzzed.check(answer, data)

    async with anyio.create_task_group() as tasks:
        for number in range(500):
            whole = post(rng.choice(BASES), more=f"X-Api-Key: {KEY}\r\nX: y\r\n")
            data = rng.randbytes(rng.randrange(1, 400)) if number % 10 == 0 else whole
            for _ in range(rng.randrange(1, 4)):
                place = rng.randrange(len(data) + 1)
                piece = rng.choice((b"\r\n", b"\n", b"\r", b" ", b"\x00", b":", b"\xff", b"0", data[place : place + 9]))
                data = data[:place] + piece + data[place + rng.randrange(3) :]
            tasks.start_soon(try_once, data)
    await fuzzed.settle()
