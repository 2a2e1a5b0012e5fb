"""Ten thousand requests, of which a third leave: nothing may be left of them.

Router, servers and clients share this process, so whatever any request left behind is seen.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import gc
import json
import logging
import os
import random
import socket
import struct
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import pytest
from http_support import CHAT, Pair, StartFake, StartRouter, until, until_decoding

from specrouter.testing import FakeServer
from specrouter.testing.fake_http import Exchange

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

PATH = "/v1/chat/completions"
AT_ONCE = 64
WARM_UP, MEASURED = 2000, 8000

# What each kind of client asks, and how its answer may end if it stays.
KINDS: dict[str, tuple[dict[str, Any] | None, set[str]]] = {
    "streamed": ({"model": "plain", "stream": True}, {"200 complete"}),
    "unstreamed": ({"model": "plain"}, {"200"}),
    "drafted": ({"model": "fast", "stream": True, "max_tokens": 12}, {"200 complete"}),
    "drafted, unstreamed": ({"model": "fast", "max_tokens": 12}, {"200"}),
    "dying": ({"model": "dying", "stream": True}, {"200 complete", "200 broken", "502"}),
    "dying, unstreamed": ({"model": "dying"}, {"200", "502"}),
    "rescued": ({"model": "rescued", "stream": True}, {"200 complete", "200 broken"}),
    "unknown": ({"model": "nothing"}, {"404"}),
    "refused": ({"model": "plain", "messages": [{"role": "user", "content": " bako" * 4096}]}, {"400"}),
    "not JSON": (None, {"400"}),
}
WEIGHTS = (24, 24, 4, 2, 8, 6, 8, 10, 6, 8)
LEAVING = ("connected", "in the head", "in the body", "when sent", "at the first byte", "in mid-stream")


@dataclass(frozen=True)
class Plan:
    """One client: what it asks, when it leaves (None: never), and whether it leaves with a reset."""

    kind: str
    leaves: str | None
    rst: bool
    share: float

    @property
    def content(self) -> bytes:
        fields = KINDS[self.kind][0]
        return b'{"model": "plain", ' if fields is None else json.dumps({**CHAT, "max_tokens": 6, **fields}).encode()


def plans(rng: random.Random, number: int) -> Iterator[Plan]:
    for kind in rng.choices(tuple(KINDS), WEIGHTS, k=number):
        leaves = rng.choice(LEAVING) if rng.random() < 1 / 3 else None
        yield Plan(kind, leaves, rng.random() < 0.5, rng.random())


class Clients:
    """Clients over raw sockets; `ends` counts what became of those that stayed, by kind."""

    def __init__(self, url: str) -> None:
        address = urlsplit(url)
        self.address = (address.hostname, address.port)
        self.ends: collections.Counter[tuple[str, str]] = collections.Counter()

    async def run(self, rng: random.Random, number: int) -> None:
        """Run that many clients, `AT_ONCE` at a time."""
        waiting = plans(rng, number)

        async def worker() -> None:
            for plan in waiting:
                with anyio.fail_after(30):
                    await self.one(plan)

        async with anyio.create_task_group() as tasks:
            for _ in range(AT_ONCE):
                tasks.start_soon(worker)

    async def one(self, plan: Plan) -> None:
        reader, writer = await asyncio.open_connection(*self.address)
        try:
            answer = await self._talk(plan, reader, writer)
        except ConnectionError:
            answer = b""
        finally:
            if plan.leaves is not None and plan.rst:
                # asyncio closes the socket without a shutdown: with this, the peer sees a reset.
                linger = struct.pack("ii", 1, 0)
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
        if plan.leaves is None:
            self.ends[plan.kind, _end(answer)] += 1

    async def _talk(self, plan: Plan, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        content = plan.content
        head = (
            f"POST {PATH} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(content)}\r\n\r\n".encode()
        )
        if plan.leaves == "connected":
            return b""
        if plan.leaves == "in the head":
            writer.write(head[: int(plan.share * len(head))])
            return b""
        if plan.leaves == "in the body":
            writer.write(head + content[: int(plan.share * len(content))])
            return b""
        writer.write(head + content)
        if plan.leaves is None:
            return await reader.read(-1)
        if plan.leaves != "when sent":
            # An event has about 200 bytes.
            await reader.read(1 if plan.leaves == "at the first byte" else 200 + int(plan.share * 1000))
        return b""


def _end(answer: bytes) -> str:
    head, _, body = answer.partition(b"\r\n\r\n")
    status = head.split(b" ", 2)[1].decode() if head else "nothing"
    if b"text/event-stream" in head:
        return f"{status} complete" if b"data: [DONE]" in body else f"{status} broken"
    return status


def dies(rng: random.Random, server: FakeServer) -> None:
    """Make a server die of half of the requests, anywhere in its answer."""

    async def before_token(exchange: Exchange, number: int) -> None:
        if rng.random() < 0.1:
            exchange.end_connection(rst=rng.random() < 0.5)

    server.before_token = before_token


def resident() -> float:
    """Megabytes of memory that this process has; 0 where the platform does not say."""
    statm = Path("/proc/self/statm")
    return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6 if statm.exists() else 0.0


@dataclass(frozen=True)
class Rest:
    """What there is when nothing is going on: blocks of memory of Python objects, megabytes, and tasks by name."""

    blocks: int
    megabytes: float
    tasks: collections.Counter[str]

    @classmethod
    async def of(cls, servers: Sequence[FakeServer]) -> Rest:
        """Wait until the servers have nothing to do and no connection but that of the last probe, and look."""
        await until(lambda: not any(server.running for server in servers), seconds=60)
        # An idle connection is let go when the next request finds it too old: at the next probe.
        await until(lambda: all(server.open_connections <= 1 for server in servers), seconds=30)
        for server in servers:
            server.requests.clear()
        # What a collection finds may be asynchronous generators, and those are closed by the loop.
        for _ in range(3):
            gc.collect()
            await anyio.sleep(0.05)
        names = (str(task.get_coro().__qualname__) for task in asyncio.all_tasks())  # type: ignore[union-attr]
        tasks = collections.Counter(name for name in names if not name.startswith("FakeServer"))
        return cls(sys.getallocatedblocks(), resident(), tasks)


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, bool]]:
    """The loop that the router has when it is served."""
    return "asyncio", {"use_uvloop": sys.platform != "win32"}


def keep_no_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """pytest keeps every record until the test ends. To be called in the test: pytest sets itself up before."""
    for name in ("specrouter", "uvicorn"):
        monkeypatch.setattr(logging.getLogger(name), "handlers", [logging.NullHandler()])
        monkeypatch.setattr(logging.getLogger(name), "propagate", False)


async def test_nothing_is_left(
    fake: StartFake, router: StartRouter, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_no_log(monkeypatch)
    rng = random.Random(20)
    dying = await fake()
    pair.target.step_seconds = 0
    dies(rng, dying)
    routes = {**pair.routes, "dying": {"target": "dying"}, "rescued": {"target": ["dying", "big"]}}
    client = await router({**pair.servers, "dying": dying}, routes)
    await until_decoding(client, "inject")
    clients = Clients(str(client.base_url))
    servers = (pair.target, pair.drafter, dying)
    await clients.run(rng, WARM_UP)
    before = await Rest.of(servers)
    await clients.run(rng, MEASURED)
    after = await Rest.of(servers)
    assert after.tasks == before.tasks
    # One small object of every fourth request would be seen, or 3 kB of each.
    assert after.blocks - before.blocks < MEASURED / 4
    assert after.megabytes - before.megabytes < MEASURED * 0.003
    wrong = {(kind, end): count for (kind, end), count in clients.ends.items() if end not in KINDS[kind][1]}
    assert not wrong
    assert {kind for kind, _ in clients.ends} == set(KINDS)
    with anyio.fail_after(30):
        assert (await client.post(PATH, json=CHAT)).status_code == 200
