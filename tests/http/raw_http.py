"""A client that writes bytes as it likes: what no HTTP library would send."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import anyio
import anyio.abc
import httpx

PATIENCE = 20.0
"""Seconds after which a test gives up: nothing here may take that long."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A response as it was read."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def error(self) -> dict[str, Any]:
        """The error object; a failed test where the answer is not in OpenAI's shape."""
        assert self.headers["content-type"].startswith("application/json"), self
        error = json.loads(self.body)["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert isinstance(error["message"], str)
        return dict(error)


class RawClient:
    """One connection."""

    def __init__(self, stream: anyio.abc.ByteStream) -> None:
        self.stream = stream
        self.received = bytearray()

    async def send(self, data: bytes) -> None:
        """Write bytes."""
        await self.stream.send(data)

    async def answer(self, *, head_only: bool = False) -> Answer:
        """The next response. Raises EndOfStream where none comes."""
        with anyio.fail_after(PATIENCE):
            lines = (await self._until(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            fields = (line.partition(":") for line in lines[1:] if line)
            headers = {name.lower(): value.strip() for name, _, value in fields}
            status = int(lines[0].split(" ")[1])
            if head_only or status == 100:
                return Answer(status, headers, b"")
            if "chunked" not in headers.get("transfer-encoding", ""):
                return Answer(status, headers, await self._exactly(int(headers["content-length"])))
            body = b""
            while size := int(await self._until(b"\r\n"), 16):
                body += (await self._exactly(size + 2))[:-2]
            await self._exactly(2)
            return Answer(status, headers, body)

    async def rest(self) -> bytes:
        """All that comes until the router closes the connection, which it must."""
        with anyio.fail_after(PATIENCE):
            try:
                while True:
                    await self._more()
            except (anyio.EndOfStream, anyio.BrokenResourceError):
                return bytes(self.received)

    async def _more(self) -> None:
        self.received += await self.stream.receive()

    async def _until(self, end: bytes) -> bytes:
        while end not in self.received:
            await self._more()
        return await self._exactly(self.received.index(end) + len(end))

    async def _exactly(self, size: int) -> bytes:
        while len(self.received) < size:
            await self._more()
        data = bytes(self.received[:size])
        del self.received[:size]
        return data


@asynccontextmanager
async def connect(client: httpx.AsyncClient) -> AsyncIterator[RawClient]:
    """A connection to the router that `client` talks to."""
    async with await anyio.connect_tcp(client.base_url.host, client.base_url.port or 80) as stream:
        yield RawClient(stream)


async def ask(client: httpx.AsyncClient, data: bytes) -> Answer:
    """The only answer to some bytes on a connection of their own, which the router must then close."""
    async with connect(client) as raw:
        await raw.send(data)
        answer = await raw.answer()
        assert answer.headers.get("connection") == "close"
        assert await raw.rest() == b""
        return answer


def post(body: bytes | dict[str, Any], *, path: str = "/v1/chat/completions", more: str = "") -> bytes:
    """A well-formed POST; `more` are header lines, each with its line end."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{more}Content-Length: {len(content)}\r\n\r\n".encode() + content


HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
"""The smallest question."""
