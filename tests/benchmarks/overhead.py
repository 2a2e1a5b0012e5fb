"""What the router adds to a server that takes no time at all, as ratios within one run. Linux.

    python tests/benchmarks/overhead.py
    python tests/benchmarks/overhead.py --only burst --seconds 5

The router is a process of its own on the first core. This process, on the last core, is both the server and its
clients, over raw sockets, so it can send an event just when the one before has arrived. Each figure is measured in
turns with the clients going straight to the server, which shows what the benchmark itself can do.

- `first byte`: one streamed request at a time, until its first event has arrived.
- `one by one`: each stream's next event is sent when the last one has arrived, so the router reads every one alone.
  With one stream this is the time that the router adds to an event.
- `burst`: the server writes as many events as the sockets take.
- `answers`: small unstreamed answers, one connection for each client.

A stream has 256 events or more, and what its request costs is counted with them. `CPU` is the router's own time for an
event or a request; neighbours on a busy machine hardly change it.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httptools
import uvloop

from specrouter.cli import main as specrouter
from specrouter.demo.processes import ManagedServer

PATH = "/v1/chat/completions"
STREAMS = (1, 16, 64)
ROUNDS = 3
SHORTEST_STREAM = 256
MODEL = "SmolLM2-135M-Instruct-Q4_1.gguf"
PROMPT = "Explain in a few sentences how a router differs from a switch. " * 16
BASE = {"created": 1764437349, "id": "chatcmpl-6nVbFm2DqX0s8tRkY4cJhWpLzA1uE7gO", "model": MODEL}
BASE |= {"system_fingerprint": "b11434-1b2c3d4e", "object": "chat.completion.chunk"}


def to_json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def event(delta: object, **more: object) -> bytes:
    """One event as llama-server sends it, a chunk of its own."""
    data = b"data: " + to_json({"choices": [{"finish_reason": None, "index": 0, "delta": delta}], **BASE, **more})
    return f"{len(data) + 2:x}\r\n".encode() + data + b"\n\n\r\n"


TIMINGS = {"prompt_n": 40, "prompt_ms": 12.345678, "predicted_n": 64, "predicted_ms": 456.789123, "cache_n": 0}
EVENT = event({"content": " word"})
STREAM_HEAD = b"HTTP/1.1 200 OK\r\nServer: llama.cpp\r\nContent-Type: text/event-stream\r\n"
STREAM_HEAD += b"Transfer-Encoding: chunked\r\n\r\n"
STREAM_END = event({}, timings=TIMINGS) + b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"
OUTER_EVENTS = 2
MESSAGE = {"role": "assistant", "content": "A router connects networks, a switch connects the machines of one."}
ANSWER = to_json({"choices": [{"finish_reason": "stop", "index": 0, "message": MESSAGE}], **BASE, "timings": TIMINGS})


def whole(body: bytes) -> bytes:
    head = "HTTP/1.1 200 OK\r\nServer: llama.cpp\r\nContent-Type: application/json; charset=utf-8\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


QUESTIONS = {
    "/health": whole(b'{"status":"ok"}'),
    "/v1/models": whole(to_json({"data": [{"id": MODEL, "meta": {"n_vocab": 49152}}]})),
    "/props": whole(b'{"total_slots":64}'),
}


class Answering(asyncio.Protocol):
    """The server's side of a connection. `streams` are those under way, by what their requests call them."""

    streams: dict[str, Answering]

    def __init__(self, streams: dict[str, Answering]) -> None:
        self.streams = streams
        self.buffer = b""
        self.left = 0
        self.paused = False

    def connection_made(self, transport: Any) -> None:
        self.transport: asyncio.Transport = transport

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        head, found, body = self.buffer.partition(b"\r\n\r\n")
        length = head.lower().partition(b"content-length:")[2].split(b"\r\n", 1)[0]
        if not found or len(body) < int(length or 0):
            return
        self.buffer = b""
        path = head.split(b" ", 2)[1].decode()
        if path in QUESTIONS:
            self.transport.write(QUESTIONS[path])
            return
        request = json.loads(body)
        if not request.get("stream"):
            self.transport.write(whole(ANSWER))
            return
        self.left = request["max_tokens"]
        self.transport.write(STREAM_HEAD)
        if request["user"]:
            self.streams[request["user"]] = self
            self.send_one()
        else:
            self.send_all()

    def send_one(self) -> None:
        """The next event, or the end."""
        self.left -= 1
        self.transport.write(EVENT if self.left >= 0 else STREAM_END)

    def send_all(self) -> None:
        """As many events as the socket takes, then the end."""
        while self.left > 0 and not self.paused:
            number = min(self.left, 64)
            self.left -= number
            self.transport.write(EVENT * number)
        if not self.left:
            self.left = -1
            self.transport.write(STREAM_END)

    def pause_writing(self) -> None:
        self.paused = True

    def resume_writing(self) -> None:
        self.paused = False
        if self.left > 0:
            self.send_all()


class Asking(asyncio.Protocol):
    """A client's side of a connection."""

    def __init__(self) -> None:
        self.on_events: Callable[[int], None] | None = None
        self.done: asyncio.Future[int] | None = None

    def connection_made(self, transport: Any) -> None:
        self.transport: asyncio.Transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        if self.done is not None and not self.done.done():
            self.done.set_exception(exc or ConnectionError("closed"))

    async def ask(self, request: bytes, on_events: Callable[[int], None] | None = None) -> int:
        """Send a request; the number of events in its answer. `on_events` is told how many have just arrived."""
        self.on_events = on_events
        self.newlines = 0
        self.parser = httptools.HttpResponseParser(self)
        self.done = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        return await self.done

    def data_received(self, data: bytes) -> None:
        before = self.newlines // 2
        self.parser.feed_data(data)
        arrived = self.newlines // 2 - before
        if self.on_events is not None and arrived:
            self.on_events(arrived)

    def on_body(self, body: bytes) -> None:
        self.newlines += body.count(b"\n")

    def on_message_complete(self) -> None:
        assert self.done is not None
        if self.parser.get_status_code() != 200:
            self.done.set_exception(RuntimeError(f"status {self.parser.get_status_code()}"))
        else:
            self.done.set_result(self.newlines // 2)


@dataclass(frozen=True)
class Way:
    """A way to the server: straight, or through the router (`pid`)."""

    name: str
    port: int
    pid: int | None
    streams: dict[str, Answering]

    async def connect(self, number: int) -> list[Asking]:
        loop = asyncio.get_running_loop()
        return [(await loop.create_connection(Asking, "127.0.0.1", self.port))[1] for _ in range(number)]

    def request(self, **fields: object) -> bytes:
        body = {"model": MODEL, "messages": [{"role": "user", "content": PROMPT}], "temperature": 0, **fields}
        content = to_json(body)
        head = f"POST {PATH} HTTP/1.1\r\nHost: 127.0.0.1\r\nUser-Agent: benchmark\r\nAccept: */*\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
        return head.encode() + content

    def cpu(self) -> float:
        """Seconds of processor time that the router has used."""
        # clock_getcpuclockid(3) of another process, which Python does not have.
        return time.clock_gettime((~self.pid << 3) | 2) if self.pid is not None else 0.0


@dataclass
class Measured:
    """Of one way: how many events or requests, in how many seconds, with how much of the router's time."""

    count: int = 0
    seconds: float = 0.0
    cpu: float = 0.0

    @property
    def rate(self) -> float:
        return self.count / self.seconds


_names = map(str, itertools.count(1))


async def first_byte(way: Way, number: int) -> list[float]:
    """Seconds until the first event, request after request."""
    (client,) = await way.connect(1)
    request = way.request(stream=True, max_tokens=1, user="")
    times = []
    for _ in range(number):
        arrivals: list[float] = []
        started = time.perf_counter()
        await client.ask(request, lambda _, arrivals=arrivals: arrivals.append(time.perf_counter()))
        times.append(arrivals[0] - started)
    client.transport.close()
    return times


async def one_by_one(way: Way, client: Asking, count: int) -> int:
    name = next(_names)
    request = way.request(stream=True, max_tokens=count, user=name)
    left = count + 1

    def next_event(arrived: int) -> None:
        nonlocal left
        left -= arrived
        if left >= 0:
            way.streams[name].send_one()

    events = await client.ask(request, next_event)
    del way.streams[name]
    return events - OUTER_EVENTS


async def burst(way: Way, client: Asking, count: int) -> int:
    return await client.ask(way.request(stream=True, max_tokens=count, user="")) - OUTER_EVENTS


async def answers(way: Way, client: Asking, count: int) -> int:
    request = way.request(max_tokens=count)
    for _ in range(count):
        await client.ask(request)
    return count


async def throughput(
    way: Way, task: Callable[[Way, Asking, int], Awaitable[int]], clients: int, count: int, into: Measured
) -> None:
    """Let that many clients do a task at once, with `count` events or requests in all."""
    connected = await way.connect(clients)
    cpu, started = way.cpu(), time.perf_counter()
    into.count += sum(await asyncio.gather(*(task(way, client, count // clients) for client in connected)))
    into.seconds += time.perf_counter() - started
    into.cpu += way.cpu() - cpu
    for client in connected:
        client.transport.close()


async def compare_first_byte(direct: Way, router: Way) -> None:
    times: dict[str, list[float]] = {"direct": [], "router": []}
    for _ in range(10):
        for way in (direct, router):
            times[way.name] += await first_byte(way, 40)
    print(f"{'first byte, ms':24}{'direct':>12}{'router':>12}{'added':>12}")
    for label, point in (("median", 50), ("p95", 95)):
        one, other = (1000 * statistics.quantiles(times[name], n=100)[point - 1] for name in ("direct", "router"))
        print(f"{label:24}{one:12.2f}{other:12.2f}{other - one:12.2f}", flush=True)


async def compare(direct: Way, router: Way, name: str, unit: str, seconds: float) -> None:
    task = {"one by one": one_by_one, "burst": burst, "answers": answers}[name]
    columns = "".join(f"{column:>12}" for column in ("direct", "router", "ratio", "CPU, µs", "added, µs"))
    print(f"\n{name + ', ' + unit + ' per s':24}{columns}")
    for clients in STREAMS:
        measured = {"direct": Measured(), "router": Measured()}
        counts = {"direct": 40 * clients, "router": 40 * clients}
        for step in range(-1, ROUNDS):
            for way in (direct, router):
                # The first one warms up and tells how many make a measurement of the wanted length.
                into = measured[way.name] if step >= 0 else Measured()
                await throughput(way, task, clients, counts[way.name], into)
                if step < 0:
                    shortest = 1 if task is answers else SHORTEST_STREAM
                    counts[way.name] = max(shortest * clients, int(into.rate * seconds / ROUNDS))
        one, other = measured["direct"], measured["router"]
        added = f"{1e6 * (1 / other.rate - 1 / one.rate):12.0f}" if clients == 1 else f"{'':12}"
        cpu = 1e6 * other.cpu / other.count
        line = f"{one.rate:12,.0f}{other.rate:12,.0f}{other.rate / one.rate:12.2f}{cpu:12.1f}{added}"
        print(f"{clients:6} at once{'':10}{line}", flush=True)


async def run(arguments: argparse.Namespace, folder: Path, cores: list[int]) -> None:
    streams: dict[str, Answering] = {}
    server = await asyncio.get_running_loop().create_server(lambda: Answering(streams), "127.0.0.1", 0, backlog=512)
    port = server.sockets[0].getsockname()[1]
    topology = folder / "topology.yaml"
    servers = {"big": {"url": f"http://127.0.0.1:{port}"}}
    topology.write_text(json.dumps({"version": 1, "servers": servers, "routes": {MODEL: {"target": "big"}}}))
    command = [sys.executable, __file__, "--router", str(topology)]
    async with ManagedServer(command, name="router", log=folder / "router.log", cores=cores[:1]) as process:
        direct, router = Way("direct", port, None, streams), Way("router", process.port, process.pid, streams)
        if arguments.only in (None, "first byte"):
            await compare_first_byte(direct, router)
        for name, unit in (("one by one", "events"), ("burst", "events"), ("answers", "requests")):
            if arguments.only in (None, name):
                await compare(direct, router, name, unit, arguments.seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0, help="length of a measurement (default: 3)")
    parser.add_argument("--only", choices=("first byte", "one by one", "burst", "answers"))
    parser.add_argument("--router", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--host", help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.router is not None:
        specrouter(["serve", str(arguments.router), "--port", str(arguments.port)])
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores[-1:])
    with tempfile.TemporaryDirectory() as folder, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run(arguments, Path(folder), cores))


main()
