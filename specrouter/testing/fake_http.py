"""HTTP for a fake server: requests as they came, answers byte by byte. Knows only as much as its clients here need."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import anyio
import anyio.abc
import anyio.lowlevel

Cut = Callable[[bytes], Iterable[bytes]]
"""Makes segments of bytes that are written."""


@dataclass(slots=True)
class ReceivedRequest:
    """A request as it was received. `left` is True when the client closed the connection before the answer's end."""

    method: str
    path: str
    headers: Sequence[tuple[str, str]]
    body: bytes
    left: bool = False
    answered: bool = False

    @property
    def json(self) -> Any:
        """The body, parsed."""
        return json.loads(self.body)

    @property
    def is_json(self) -> bool:
        """Whether there is no body or one that can be parsed."""
        try:
            json.loads(self.body or b"null")
        except ValueError:
            return False
        return True

    def header(self, name: str) -> str | None:
        """The first header of that (lower-case) name."""
        return next((value for key, value in self.headers if key == name), None)


class ConnectionEnded(Exception):
    """Raised by a reply to end the connection; with `rst` as a crash would."""

    def __init__(self, *, rst: bool) -> None:
        super().__init__()
        self.rst = rst


class Exchange:
    """One request and the means to answer it byte by byte."""

    def __init__(self, request: ReceivedRequest, stream: anyio.abc.ByteStream, cut: Cut) -> None:
        self.request = request
        self._stream = stream
        self._cut = cut

    async def send(self, data: bytes) -> None:
        """Write bytes as they are, in the segments that the server's `cut` makes of them."""
        for segment in self._cut(data):
            # Before and not after: a client that has all it waits for may close at once.
            await anyio.lowlevel.checkpoint()
            await self._stream.send(segment)

    async def respond(self, body: object, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        """A whole answer; anything but bytes is sent as JSON."""
        content = body if isinstance(body, bytes) else to_json(body)
        fields = {"Content-Type": "application/json; charset=utf-8", **(headers or {})}
        fields["Content-Length"] = str(len(content))
        await self.send(_head(status, fields) + content)

    async def start_stream(self) -> None:
        """The head of an event stream."""
        await self.send(_head(200, {"Content-Type": "text/event-stream", "Transfer-Encoding": "chunked"}))

    async def send_event(self, data: object) -> None:
        """One event; bytes are sent as they are, anything else as `data: JSON`."""
        content = data if isinstance(data, bytes) else b"data: " + to_json(data) + b"\n\n"
        await self.send(f"{len(content):x}\r\n".encode() + content + b"\r\n")

    async def end_stream(self) -> None:
        """The end of a complete stream."""
        await self.send(b"0\r\n\r\n")

    def end_connection(self, *, rst: bool = True) -> NoReturn:
        """Raise ConnectionEnded: the connection ends here, reset or (`rst=False`) closed."""
        raise ConnectionEnded(rst=rst)


Reply = Callable[[Exchange], Awaitable[None]]
"""What a server does with a request."""


async def hang(_: Exchange) -> None:
    """Reply: accept the request and never answer."""
    await anyio.sleep_forever()


async def reset(exchange: Exchange) -> None:
    """Reply: reset the connection before anything is said."""
    exchange.end_connection()


def respond_with(body: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Reply:
    """Reply: always this answer."""

    async def reply(exchange: Exchange) -> None:
        await exchange.respond(body, status, headers)

    return reply


async def read_request(stream: anyio.abc.ByteReceiveStream, buffer: bytearray) -> ReceivedRequest | None:
    """The next request on a connection, None when there is none; `buffer` keeps what came beyond it."""
    while (end := buffer.find(b"\r\n\r\n")) < 0:
        try:
            buffer += await stream.receive()
        except anyio.EndOfStream:
            return None
    lines = buffer[:end].decode("latin-1").split("\r\n")
    del buffer[: end + 4]
    method, path, _ = lines[0].split(" ", 2)
    headers = [(name.lower(), value.strip()) for name, _, value in (line.partition(":") for line in lines[1:])]
    length = int(next((value for name, value in headers if name == "content-length"), 0))
    while len(buffer) < length:
        buffer += await stream.receive()
    body = bytes(buffer[:length])
    del buffer[:length]
    return ReceivedRequest(method, path, headers, body)


def to_json(value: object) -> bytes:
    """JSON as llama-server writes it: no spaces, UTF-8."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _head(status: int, headers: Mapping[str, str]) -> bytes:
    fields = {"Server": "llama.cpp", "Access-Control-Allow-Origin": "", **headers}
    lines = [f"HTTP/1.1 {status} Fake", *(f"{name}: {value}" for name, value in fields.items())]
    return "\r\n".join([*lines, "", ""]).encode()
