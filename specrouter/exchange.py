"""One attempt to have a request answered by one target: its bytes passed on, or an answer written step by step."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from typing import NoReturn

import anyio
import httpx
from starlette.types import Send

from .accounting import is_accounting
from .answers import AnswerWriter, Said, as_json
from .balance import PromptKeys
from .continuing import Spoken
from .engine import Accompanied, DeltaFeed, accompany
from .errors import PluginError, UpstreamBroke, UpstreamLoading, UpstreamRejected, UpstreamUnavailable
from .formats import FORMATS, Format, cut_short, is_error, joined_answer
from .jsonedit import ModelRenamer, rename_model, set_members
from .llama_api import is_loading
from .patience import first_byte_limit, idle_limit, in_time
from .proxied import DECODING_HEADER, NOT_RETURNED, NOT_SENT, ProxyRequest, Result
from .route import Route
from .sse import DONE, EventSplitter, encoded, payload
from .stepwise import StepwiseAnswer
from .types import Decoding, ServerState
from .upstream import LlamaServer
from .writing import answer_writer, said_to, stepwise_answer

log = logging.getLogger(__name__)


class Exchange:
    """One attempt to have a request answered by one target."""

    def __init__(
        self,
        request: ProxyRequest,
        route: Route,
        target: LlamaServer,
        send: Send,
        result: Result,
        *,
        keys: PromptKeys | None,
        load_wait: float,
        spoken: Spoken | None,
    ) -> None:
        self.request = request
        self.route = route
        self.target = target
        self.send = send
        self.result = result
        self.keys = keys
        self.load_wait = load_wait
        self.spoken = spoken
        self.name = json.dumps(request.model).encode()
        self.renamer = ModelRenamer(self.name)
        self.format: Format | None = None

    @property
    def started(self) -> bool:
        """Whether the client has got anything."""
        return self.result.first_byte is not None

    async def run(self) -> None:
        """Answer, or go on with what was spoken before. Raises UpstreamError."""
        await self.target.ready(self.load_wait)
        if self.spoken is not None and self.spoken.has_begun:
            await self._go_on(self.spoken)
            return
        if self.request.drafts:
            decoding = self.route.decide(self.target, self.request.path, self.request.body)
        else:
            decoding = self.route.decide_alone(self.target)
        self.result.decoding, self.result.accompanied = decoding, None
        # Another target's, of which nothing was sent, says nothing about this one's.
        self.result.is_stream = self.result.is_stream and self.started
        if self.route.is_accompanied(self.target, decoding):
            self.format = FORMATS[self.request.path]
        if not self.route.is_stepwise(self.target, decoding) or not await self._write():
            await self._pass_on()

    async def _go_on(self, spoken: Spoken) -> None:
        if self.result.decoding.verifier is not None:
            self.result.decoding = Decoding(reason="took over within the answer")
        async with aclosing(spoken.go_on(self.target, self.request.model)) as rest:
            async for written, is_last in rest:
                if written:
                    await self._send(written, more=not is_last)
        self.result.accounting = spoken.accounting

    async def _write(self) -> bool:
        """Answer stepwise; False where that is left to the target after all."""
        async with stepwise_answer(self.route, self.target, self.request.path, self.request.body) as answer:
            reason = answer if isinstance(answer, str) else await self._write_answer(answer)
        if reason is not None:
            self.result.decoding, self.result.accompanied, self.result.is_stream = Decoding(reason=reason), None, False
        return reason is None

    async def _write_answer(self, answer: StepwiseAnswer) -> str | None:
        """Write it; or the reason why it is left to the target, before anything was sent."""
        request = self.request
        accompanied = self.result.accompanied = Accompanied()
        accompanied.counts = answer.counts
        self.result.is_stream = request.streams
        try:
            writer = answer_writer(self.route, answer, request.path, request.body, request.model)
            async with (
                aclosing(said_to(writer, answer, request.path)) as said,
                aclosing(in_time(self.target.config, said)) as limited,
            ):
                write = self._write_stream if request.streams else self._write_whole
                await write(answer, limited, writer)
        except (PluginError, UpstreamLoading, UpstreamRejected) as error:
            if self.started:
                raise
            if isinstance(error, PluginError):
                log.exception("%s", error)
            # The target has its own words for what is wrong with a request, and is waited for while it loads.
            return str(error)
        finally:
            accompanied.reason = answer.reason
        return None

    async def _write_stream(self, answer: StepwiseAnswer, said: AsyncIterator[Said], writer: AnswerWriter) -> None:
        async for token in said:
            events = []
            if not self.started:
                await self._begin(200, [(b"content-type", b"text/event-stream")])
                events += writer.begin()
            events += writer.said(token, answer.totals)
            written = [as_json(event) for event in events]
            body = b"".join(map(encoded, written))
            if token.ending is not None:
                self.result.accounting = written[-1]
                body += encoded(DONE) if writer.ends_with_done else b""
            if body:
                await self._send(body, more=token.ending is None)
            if self.spoken is not None:
                self.spoken.add(written, self.target.info)

    async def _write_whole(self, answer: StepwiseAnswer, said: AsyncIterator[Said], writer: AnswerWriter) -> None:
        text = ""
        async for token in said:
            text += token.text
            if token.ending is not None:
                body = as_json(writer.whole(text + token.ending.unshown, token.ending, answer.totals))
                self.result.accounting = body
                await self._begin(200, [(b"content-type", b"application/json; charset=utf-8")], len(body))
                await self._send(body)

    async def _pass_on(self) -> None:
        """The request goes to the target as it is, its answer to the client."""
        async with AsyncExitStack() as stack:
            feed = None
            if self.format is not None:
                feed = DeltaFeed(self.format.new_reader())
                self.result.accompanied = await stack.enter_async_context(
                    accompany(self.route, self.target, self.format, self.request.body, feed)
                )
            response = await stack.enter_async_context(self._open())
            if self._is_event_stream(response):
                if feed is not None and not self.request.streams:
                    await self._join(response, feed)
                else:
                    await self._stream(response, feed)
            elif self.started:
                await self._refuse(response)
            elif "json" in response.headers.get("content-type", ""):
                await self._whole(response)
            else:
                await self._raw(response)

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[httpx.Response]:
        """The target's response; a target that is loading its model is waited for."""
        deadline = anyio.current_time() + self.load_wait
        named = {
            name.strip().lower()
            for key, value in self.request.headers
            if key == b"connection"
            for name in value.split(b",")
        }
        headers = [(name, value) for name, value in self.request.headers if name not in NOT_SENT | named]
        headers.append((b"content-type", self._content_type()))
        while True:
            opening = self.target.open(self.request.method, self._path(), headers=headers, content=self._content())
            async with AsyncExitStack() as stack:
                try:
                    with first_byte_limit(self.target.config):
                        response = await stack.enter_async_context(opening)
                        body = await self._read(response) if response.status_code == 503 else b""
                except UpstreamUnavailable as error:
                    # Whoever may have died of the request does not get it once more.
                    if isinstance(error, UpstreamBroke) or self.target.state is not ServerState.LOADING:
                        raise
                    # The router runs it, and it has ended: it is started again.
                    await self.target.ready(deadline - anyio.current_time())
                    continue
                if not is_loading(response.status_code, body):
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

    def _content_type(self) -> bytes:
        if self.request.form is not None:
            return next(value for name, value in self.request.headers if name == b"content-type")
        # The body was read as JSON; llama-server takes only 1 MiB of what calls itself a form, as curl does.
        return b"application/json"

    def _content(self) -> bytes:
        if self.request.form is not None and self.target.model_name is not None:
            return self.request.form.with_model(self.target.model_name)
        if not self.request.body:
            return self.request.content
        members: dict[str, bytes] = {}
        if self.target.model_name is not None:
            members["model"] = json.dumps(self.target.model_name).encode()
        if self.format is not None and not self.request.streams:
            members.update(self.format.streaming_members)
        return set_members(self.request.content, members)

    async def _refuse(self, response: httpx.Response) -> NoReturn:
        """A stream has begun, say with a comment, and this is none to go on with."""
        self.target.raise_for_status(response, await self._read(response))
        raise UpstreamUnavailable(f"server {self.target.name!r} did not answer with a stream", server=self.target.name)

    async def _read(self, response: httpx.Response) -> bytes:
        with idle_limit(self.target.config):
            return await self.target.read(response)

    def _is_event_stream(self, response: httpx.Response) -> bool:
        return response.status_code == 200 and response.headers.get("content-type", "").startswith("text/event-stream")

    async def _start(
        self, response: httpx.Response, length: int | None = None, content_type: bytes | None = None
    ) -> None:
        # Bytes as they came: not every header is the ASCII it should be.
        headers = [
            (name.lower(), value)
            for name, value in response.headers.raw
            if name.lower() not in NOT_RETURNED and not name.lower().startswith(b"access-control-")
        ]
        if content_type is not None:
            headers = [(name, value) for name, value in headers if name != b"content-type"]
            headers.append((b"content-type", content_type))
        await self._begin(response.status_code, headers, length)

    async def _begin(self, status: int, headers: list[tuple[bytes, bytes]], length: int | None = None) -> None:
        headers = [*headers, (DECODING_HEADER, str(self.result.decoding).encode())]
        if length is not None:
            headers.append((b"content-length", str(length).encode()))
        self.result.first_byte = time.monotonic()
        if status == 200:
            self.route.answered(self.keys, self.target)
        await self.send({"type": "http.response.start", "status": status, "headers": headers})

    async def _send(self, body: bytes, *, more: bool = False) -> None:
        # Noted before: with the last byte the server ends the request, and this task with it.
        self.result.is_complete = not more
        await self.send({"type": "http.response.body", "body": body, "more_body": more})

    async def _stream(self, response: httpx.Response, feed: DeltaFeed | None) -> None:
        self.result.is_stream = True
        async with aclosing(self._events(response, feed)) as batches:
            async for events in batches:
                if not self.started:
                    await self._start(response)
                await self._send(b"".join(self._renamed(event, data) for event, data in events), more=True)
        if not self.started:
            await self._start(response)
        await self._send(b"")

    async def _join(self, response: httpx.Response, feed: DeltaFeed) -> None:
        """The client does not stream, the companion needs a stream: put it together."""
        assert self.format is not None
        async with aclosing(self._events(response, feed)) as batches:
            collected = [data async for events in batches for _, data in events if data and data != DONE]
        body = rename_model(joined_answer(self.format, collected, self.target.name), self.name)
        if self.result.accompanied is not None and self.result.accompanied.counts is None:
            # Known only now: no companion came to run.
            self.result.decoding = Decoding(reason=self.result.accompanied.reason or "the answer was over first")
        await self._start(response, len(body), b"application/json; charset=utf-8")
        await self._send(body)

    async def _events(
        self, response: httpx.Response, feed: DeltaFeed | None
    ) -> AsyncGenerator[list[tuple[bytes, bytes | None]]]:
        """The events of a stream with their data, as many at once as arrived at once.

        Raises UpstreamUnavailable for a stream that ends before its end.
        """
        splitter = EventSplitter()
        form, last, said = FORMATS.get(self.request.path), b"", b""
        async with aclosing(self._chunks(response)) as chunks:
            async for chunk in chunks:
                received = time.monotonic()
                events = [(event, payload(event)) for event in splitter.feed(chunk)]
                if not events:
                    self.target.require_end_within(splitter.pending)
                    continue
                # The client first, then whoever looks at what it got.
                yield events
                for _, data in events:
                    if not data:
                        continue
                    last = data
                    if data == DONE:
                        continue
                    said = data
                    if feed is not None:
                        feed.put(data, received)
                    if self.spoken is not None:
                        self.spoken.add([data], self.target.info)
                    if is_accounting(data):
                        self.result.accounting = data
        if form is not None and not form.is_end(last):
            raise cut_short(self.target.name)
        if is_error(said):
            self.result.error = UpstreamRejected.code
        rest = splitter.flush()
        if rest:
            yield [(rest, None)]

    def _renamed(self, event: bytes, data: bytes | None) -> bytes:
        if data is None or data not in event:
            return event
        renamed = self.renamer.rename(data)
        return event if renamed is data else event.replace(data, renamed, 1)

    async def _whole(self, response: httpx.Response) -> None:
        async with aclosing(self._chunks(response)) as chunks:
            body = rename_model(b"".join([chunk async for chunk in chunks]), self.name)
        if is_accounting(body):
            self.result.accounting = body
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
        """The body as it arrives, or at once where it had to be looked at. Raises UpstreamTimeout for a long pause."""
        if response.is_stream_consumed:
            yield response.content
            return
        async with aclosing(self.target.chunks(response)) as chunks:
            # A limit costs something with every chunk, and usually there is none.
            patient = self.target.config.idle_timeout is None
            limited = chunks if patient else in_time(self.target.config, chunks, has_begun=True)
            async with aclosing(limited):
                async for chunk in limited:
                    yield chunk
