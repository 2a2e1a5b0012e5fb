"""The plain proxied request: the client's body goes to a target, the target's bytes come back.

Everything is one of these. A companion (`engine`) may run beside it and is never in its way.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import httpx
from starlette.types import Send

from .engine import Accompanied, DeltaFeed, accompany
from .errors import UpstreamError, UpstreamLoading, UpstreamTimeout, UpstreamUnavailable
from .formats import FORMATS, Format, cut_short, joined_answer
from .jsonedit import rename_model, set_members
from .llama_api import is_loading
from .openai_api import error_event
from .routing import Route
from .sse import DONE, EventSplitter, payload
from .types import Decoding, ServerState
from .upstream import LlamaServer

log = logging.getLogger(__name__)

DECODING_HEADER = b"x-specrouter-decoding"

_HOP_BY_HOP = {
    b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te", b"trailer",
    b"transfer-encoding", b"upgrade",
}  # fmt: skip

# Ours to say (keys, framing, CORS), or harmful upstream: with X-Conversation-Id a generation outlives its client.
_NOT_SENT = _HOP_BY_HOP | {
    b"host", b"content-length", b"content-type", b"authorization", b"x-api-key", b"cookie", b"accept-encoding",
    b"expect", b"origin", b"referer", b"x-conversation-id",
}  # fmt: skip
_NOT_RETURNED = _HOP_BY_HOP | {b"content-length", b"server", b"date", b"set-cookie", b"vary"}

_WORTH_TRYING = (ServerState.UP, ServerState.UNKNOWN)


@dataclass(frozen=True, slots=True)
class ProxyRequest:
    """A client's request for a route. `body` is the parsed form of `content`, `headers` have lower-case names."""

    method: str
    path: str
    query: bytes
    headers: Sequence[tuple[bytes, bytes]]
    content: bytes
    body: Mapping[str, Any]
    model: str

    @property
    def streams(self) -> bool:
        """Whether the client wants a stream."""
        return bool(self.body.get("stream"))


@dataclass(slots=True)
class Result:
    """How a request went, for the log and the metrics."""

    server: str | None = None
    decoding: Decoding = field(default_factory=Decoding)
    status: int | None = None
    accompanied: Accompanied | None = None
    first_byte: float | None = None
    is_complete: bool = False
    is_stream: bool = False


async def proxy(request: ProxyRequest, route: Route, send: Send, result: Result) -> None:
    """Answer a request from the route's targets. Raises RequestError as long as nothing has been sent."""
    last_error: UpstreamError | None = None
    candidates = route.candidates()
    for index, target in enumerate(candidates):
        result.server = target.name
        result.decoding = route.decide(target, request.path, request.body)
        result.accompanied = None
        others = any(other.state in _WORTH_TRYING for other in candidates[index + 1 :])
        exchange = _Exchange(request, route, target, send, result, load_wait=0 if others else target.config.load_wait)
        try:
            await exchange.run()
            return
        except (UpstreamUnavailable, UpstreamTimeout, UpstreamLoading) as error:
            if exchange.started:
                await exchange.end_broken(error)
                return
            log.warning("%s", error)
            last_error = error
    assert last_error is not None, "a route has at least one target"
    raise last_error


class _Exchange:
    """One attempt to have a request answered by one target."""

    def __init__(
        self,
        request: ProxyRequest,
        route: Route,
        target: LlamaServer,
        send: Send,
        result: Result,
        *,
        load_wait: float,
    ) -> None:
        self.request = request
        self.route = route
        self.target = target
        self.send = send
        self.result = result
        self.load_wait = load_wait
        self.started = False
        self.name = json.dumps(request.model).encode()
        self.form: Format | None = FORMATS[request.path] if result.decoding.verifier else None

    async def run(self) -> None:
        async with AsyncExitStack() as stack:
            feed = None
            if self.form is not None:
                feed = DeltaFeed(self.form.new_reader())
                self.result.accompanied = await stack.enter_async_context(
                    accompany(self.route, self.target, self.form, self.request.body, feed)
                )
            response = await stack.enter_async_context(self._open())
            if self._is_event_stream(response):
                if feed is not None and not self.request.streams:
                    await self._join(response, feed)
                else:
                    await self._stream(response, feed)
            elif "json" in response.headers.get("content-type", ""):
                await self._whole(response)
            else:
                await self._raw(response)

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[httpx.Response]:
        """The target's response; a target that is loading its model is waited for."""
        deadline = anyio.current_time() + self.load_wait
        headers = [(name, value) for name, value in self.request.headers if name not in _NOT_SENT]
        # The body was read as JSON; llama-server takes only 1 MiB of what calls itself a form, as curl does.
        headers.append((b"content-type", b"application/json"))
        while True:
            opening = self.target.open(self.request.method, self._path(), headers=headers, content=self._content())
            async with opening as response:
                if response.status_code != 503:
                    yield response
                    return
                body = await response.aread()
                if not is_loading(503, body):
                    yield response
                    return
            self.target.set_state(ServerState.LOADING, "loading its model")
            left = deadline - anyio.current_time()
            if left <= 0:
                raise UpstreamLoading(f"server {self.target.name!r} is loading its model", server=self.target.name)
            await self.target.wait_while_loading(left)

    def _path(self) -> str:
        query = self.request.query.decode("latin-1")
        return f"{self.request.path}?{query}" if query else self.request.path

    def _content(self) -> bytes:
        if not self.request.body:
            return self.request.content
        members: dict[str, bytes] = {}
        if self.target.model_name is not None:
            members["model"] = json.dumps(self.target.model_name).encode()
        if self.form is not None and not self.request.streams:
            members.update(self.form.streaming_members)
        return set_members(self.request.content, members)

    def _is_event_stream(self, response: httpx.Response) -> bool:
        return response.status_code == 200 and response.headers.get("content-type", "").startswith("text/event-stream")

    async def _start(
        self, response: httpx.Response, length: int | None = None, content_type: bytes | None = None
    ) -> None:
        # Bytes as they came: not every header is the ASCII it should be.
        headers = [
            (name.lower(), value)
            for name, value in response.headers.raw
            if name.lower() not in _NOT_RETURNED and not name.lower().startswith(b"access-control-")
        ]
        if content_type is not None:
            headers = [(name, value) for name, value in headers if name != b"content-type"]
            headers.append((b"content-type", content_type))
        headers.append((DECODING_HEADER, str(self.result.decoding).encode()))
        if length is not None:
            headers.append((b"content-length", str(length).encode()))
        self.result.status = response.status_code
        self.result.first_byte = time.monotonic()
        self.started = True
        await self.send(
            {
                "type": "http.response.start",
                "status": response.status_code,
                "headers": headers,
            }
        )

    async def _send(self, body: bytes, *, more: bool = False) -> None:
        # Noted before: with the last byte the server ends the request, and this task with it.
        self.result.is_complete = not more
        await self.send({"type": "http.response.body", "body": body, "more_body": more})

    async def _stream(self, response: httpx.Response, feed: DeltaFeed | None) -> None:
        self.result.is_stream = True
        splitter = EventSplitter()
        form, last = FORMATS.get(self.request.path), b""
        async with aclosing(self.target.chunks(response)) as chunks:
            async for chunk in chunks:
                received = time.monotonic()
                events = splitter.feed(chunk)
                if not events:
                    continue
                if not self.started:
                    await self._start(response)
                await self._send(b"".join(self._renamed(event) for event in events), more=True)
                for event in events:
                    data = payload(event)
                    if data:
                        last = data
                        if feed is not None and data != DONE:
                            feed.put(data, received)
        if form is not None and not form.is_end(last):
            raise cut_short(self.target.name)
        if not self.started:
            await self._start(response)
        await self._send(splitter.flush())

    def _renamed(self, event: bytes) -> bytes:
        if b'"model"' not in event:
            return event
        data = payload(event)
        if data is None or data not in event:
            return event
        return event.replace(data, rename_model(data, self.name), 1)

    async def _join(self, response: httpx.Response, feed: DeltaFeed) -> None:
        """The client does not stream, the companion needs a stream: put it together."""
        assert self.form is not None
        splitter = EventSplitter()
        collected: list[bytes] = []
        last = b""
        async with aclosing(self.target.chunks(response)) as chunks:
            async for chunk in chunks:
                received = time.monotonic()
                for event in splitter.feed(chunk):
                    data = payload(event)
                    if data:
                        last = data
                        if data != DONE:
                            collected.append(data)
                            feed.put(data, received)
        if not self.form.is_end(last):
            raise cut_short(self.target.name)
        body = rename_model(joined_answer(self.form, collected, self.target.name), self.name)
        if self.result.accompanied is not None and self.result.accompanied.counts is None:
            # Known only now: no companion came to run.
            self.result.decoding = Decoding(reason=self.result.accompanied.reason or "the answer was over first")
        await self._start(response, len(body), b"application/json; charset=utf-8")
        await self._send(body)

    async def _whole(self, response: httpx.Response) -> None:
        async with aclosing(self._chunks(response)) as chunks:
            body = rename_model(b"".join([chunk async for chunk in chunks]), self.name)
        await self._start(response, len(body))
        await self._send(body)

    async def _raw(self, response: httpx.Response) -> None:
        async with aclosing(self._chunks(response)) as chunks:
            async for chunk in chunks:
                if not self.started:
                    await self._start(response)
                await self._send(chunk, more=True)
        if not self.started:
            await self._start(response)
        await self._send(b"")

    async def _chunks(self, response: httpx.Response) -> AsyncGenerator[bytes]:
        """The body as it arrives, or at once where it had to be looked at."""
        if response.is_stream_consumed:
            yield response.content
            return
        async with aclosing(self.target.chunks(response)) as chunks:
            async for chunk in chunks:
                yield chunk

    async def end_broken(self, error: UpstreamError) -> None:
        """The target died within its answer: say so where the protocol can, and never pretend it was complete."""
        if not self.result.is_stream:
            raise error
        await self._send(error_event(error))
        self.result.is_complete = False
