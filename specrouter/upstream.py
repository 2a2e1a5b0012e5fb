"""One llama-server: its state, and every call of its own API that specrouter makes."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

import anyio
import httpx

from .config.model import ServerConfig
from .connections import Connections
from .errors import (
    UpstreamError,
    UpstreamLoading,
    UpstreamRejected,
    UpstreamTimeout,
    UpstreamUnavailable,
)
from .giving_way import give_way
from .jsonedit import loads
from .llama_api import (
    Generated,
    Primed,
    TokenCounter,
    Verified,
    error_text,
    forcing_body,
    generation_body,
    is_loading,
    parsed_event,
    read_generated,
    server_info,
    tokens,
)
from .pieces import Pieces
from .runner import Runner, Use
from .sse import EventSplitter, payload
from .types import ServerInfo, ServerState, Token

PROBE_TIMEOUT = 5.0
"""Seconds after which a server that accepted a connection but does not answer a small question is given up."""

_LOADING_PAUSE = 0.25

_JSON = ((b"content-type", b"application/json"),)


class LlamaServer:
    """A llama-server named in the topology. Used by the router and by plugins alike.

    `state`, `info` and `epoch` are kept up to date by the health monitor; `epoch` counts how often the server
    came up or changed its model, so whatever was learned about it can be dropped in time. `state_since` is when
    `state` changed last, in seconds since 1970. `in_flight` counts the clients' requests that it is answering.
    `runner` runs it, where the router does; then `url`, its address, may be empty until it is started. `use` tells
    whether anything is generated on it.
    """

    def __init__(self, config: ServerConfig) -> None:
        self.config = config
        self.name = config.name
        self.url = config.url
        self.runner: Runner | None = None
        self.use = Use()
        self.state = ServerState.UNKNOWN
        self.state_reason = "not asked yet"
        self.state_since = time.time()
        self.info = ServerInfo()
        self.epoch = 0
        self.in_flight = 0
        self.pieces = Pieces(self)
        self._listeners: list[Callable[[], None]] = []
        self._connections = Connections(config, lost=self._lost)

    def __repr__(self) -> str:
        return f"<LlamaServer {self.name} {self.state.value}>"

    async def aclose(self) -> None:
        """Close all connections."""
        await self._connections.aclose()

    # -- state ---------------------------------------------------------------------------------------------

    def on_change(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` whenever `state` or `epoch` changes, until the returned function is called."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def set_state(self, state: ServerState, reason: str, info: ServerInfo | None = None) -> None:
        """Record what is known now; `info` where the server was asked about itself."""
        changed = state is not self.state
        if changed:
            self.state_since = time.time()
        self.state_reason = reason
        if info is not None and (info != self.info or (changed and state is ServerState.UP)):
            self.info = info
            self.epoch += 1
            self.pieces.clear()
            changed = True
        self.state = state
        if changed:
            for listener in tuple(self._listeners):
                listener()

    async def changed(self) -> None:
        """Return when `state` or `epoch` has changed."""
        event = anyio.Event()
        stop_listening = self.on_change(event.set)
        try:
            await event.wait()
        finally:
            stop_listening()

    def _lost(self, reason: str) -> None:
        if self.runner is None:
            self.set_state(ServerState.DOWN, reason)
        elif self.state is ServerState.UP:
            # If it has ended, its runner will know.
            self.set_state(ServerState.LOADING, reason)

    def move_to(self, url: str) -> None:
        """From now on, this is its address."""
        self.url = url
        self._connections.move_to(url)

    def wake(self) -> None:
        """Have the server started, if it is stopped and the router runs it. Returns at once."""
        if self.runner is not None:
            self.runner.wake()

    async def ready(self, seconds: float) -> None:
        """Wait, up to `seconds`, for a server that the router runs to be started; others are taken as they are.

        Raises UpstreamLoading, UpstreamUnavailable.
        """
        if self.runner is not None:
            await self.runner.ready(seconds)

    @property
    def model_name(self) -> str | None:
        """The name to send as `model`: the configured one, else the server's own, None while unknown."""
        return self.config.model or self.info.model

    # -- requests ------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def answering(self) -> Iterator[None]:
        """Count a client's request in `in_flight` while the context lasts."""
        self.in_flight += 1
        try:
            with self.use.counted():
                yield
        finally:
            self.in_flight -= 1

    def require_end_within(self, size: int) -> None:
        """Raises UpstreamUnavailable for an event that has so many bytes and more: none is that long."""
        self._connections.require_end_within(size)

    def _is_answering(self) -> bool:
        return self.in_flight > 0

    @contextlib.asynccontextmanager
    async def open(
        self,
        method: str,
        path: str,
        *,
        headers: Sequence[tuple[bytes, bytes]] = (),
        content: bytes | None = None,
        seconds: float | None = None,
    ) -> AsyncIterator[httpx.Response]:
        """Send a request and yield its response, whatever its status, with the body still to be read.

        The connection is closed when the context ends, read to the end or not. Iterate the body with
        `chunks(response)`. No pause is longer than `seconds`. Raises UpstreamUnavailable, UpstreamTimeout, and
        UpstreamRejected for headers that HTTP does not allow.
        """
        opening = self._connections.open(method, path, headers=headers, content=content, seconds=seconds)
        with self.use.counted():
            async with opening as response:
                yield response

    def chunks(self, response: httpx.Response) -> AsyncGenerator[bytes]:
        """The body as it arrives. Raises UpstreamUnavailable when it breaks off, UpstreamTimeout."""
        return self._connections.chunks(response)

    async def read(self, response: httpx.Response) -> bytes:
        """The whole body. Raises UpstreamUnavailable when it breaks off, UpstreamTimeout."""
        return await self._connections.read(response)

    async def call(self, method: str, path: str, body: object = None, *, timeout: float | None = None) -> Any:
        """One JSON question and its answer. Raises UpstreamError for anything but a 200 with JSON."""
        await give_way(self._is_answering)
        content = None if body is None else json.dumps(body).encode()
        headers = _JSON if content is not None else ()
        opening = self._connections.open(method, path, headers=headers, content=content, seconds=timeout)
        with self._connections.within(timeout):
            async with opening as response:
                answer = await self._connections.read_limited(response)
        self.raise_for_status(response, answer)
        try:
            return loads(answer)
        except ValueError as error:
            raise UpstreamUnavailable(
                f"server {self.name!r}: {path} did not answer with JSON", server=self.name
            ) from error

    def raise_for_status(self, response: httpx.Response, body: bytes) -> None:
        """Raises UpstreamLoading or UpstreamRejected for any status but 200; `body` is the whole answer."""
        if response.status_code == 200:
            return
        if is_loading(response.status_code, body):
            self.set_state(ServerState.LOADING, "loading its model")
            raise UpstreamLoading(f"server {self.name!r} is loading its model", server=self.name)
        text = error_text(body)
        raise UpstreamRejected(
            f"server {self.name!r} answered {response.status_code}: {text}",
            server=self.name,
            status=response.status_code,
            body=body,
        )

    # -- what the server says about itself -----------------------------------------------------------------

    async def probe(self) -> None:
        """Ask for health and, when it is well, for the model; sets the state. Costs no slot, never raises."""
        try:
            await self.call("GET", "/health", timeout=PROBE_TIMEOUT)
            info = await self.describe()
        except UpstreamLoading:
            return
        except UpstreamTimeout as error:
            busy = self.state is ServerState.UP and time.monotonic() - self._connections.last_answer < 2 * PROBE_TIMEOUT
            if not busy and self.state is not ServerState.DOWN:
                self._lost(str(error))
        except UpstreamError as error:
            self._lost(str(error))
        else:
            self.set_state(ServerState.UP, self.state_reason if self.state is ServerState.UP else "up", info)

    async def wait_while_loading(self, seconds: float) -> None:
        """Return when the server has loaded its model or `seconds` have passed. Raises UpstreamUnavailable."""
        with anyio.move_on_after(seconds):
            while True:
                try:
                    await self.call("GET", "/health", timeout=PROBE_TIMEOUT)
                    return
                except (UpstreamLoading, UpstreamTimeout):
                    await anyio.sleep(_LOADING_PAUSE)

    async def describe(self) -> ServerInfo:
        """Model, context, slots and build. Raises UpstreamError; servers that lack `/props` say less."""
        try:
            return await self._describe()
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            raise UpstreamUnavailable(
                f"server {self.name!r}: what it says about itself makes no sense", server=self.name
            ) from error

    async def _describe(self) -> ServerInfo:
        models = await self.call("GET", "/v1/models", timeout=PROBE_TIMEOUT)
        try:
            props = await self.call("GET", "/props", timeout=PROBE_TIMEOUT)
        except UpstreamRejected as error:
            if error.status in (401, 403):
                # `/health` and `/v1/models` need no key, everything else does.
                raise UpstreamRejected(
                    f"server {self.name!r} refuses our key (set `servers.{self.name}.api_key`)",
                    server=self.name,
                    status=error.status,
                ) from error
            props = {}
        return server_info(models, props)

    # -- text and tokens -----------------------------------------------------------------------------------

    async def tokenize(self, text: str, *, add_special: bool = False, parse_special: bool = True) -> list[Token]:
        """The tokens of a text; with `parse_special`, markup such as `<|im_start|>` becomes special tokens."""
        body = {"content": text, "add_special": add_special, "parse_special": parse_special, "with_pieces": True}
        answer = await self.call("POST", "/tokenize", body)
        with self._making_sense("/tokenize"):
            found = tokens(answer)
        self.pieces.learn(found)
        return found

    async def detokenize(self, ids: Sequence[int]) -> str:
        """The text of token ids; bytes that are not UTF-8 come back as U+FFFD."""
        answer = await self.call("POST", "/detokenize", {"tokens": list(ids)})
        with self._making_sense("/detokenize"):
            return str(answer["content"])

    async def apply_template(self, body: Mapping[str, Any]) -> str:
        """The prompt text that the chat endpoint makes of a request body."""
        answer = await self.call("POST", "/apply-template", dict(body))
        with self._making_sense("/apply-template"):
            return str(answer["prompt"])

    @contextlib.contextmanager
    def _making_sense(self, path: str) -> Iterator[None]:
        """JSON of another shape than llama-server's is the server's fault."""
        try:
            yield
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            message = f"server {self.name!r}: the answer of {path} makes no sense"
            raise UpstreamUnavailable(message, server=self.name) from error

    # -- generation ----------------------------------------------------------------------------------------

    async def complete(self, body: Mapping[str, Any], *, timeout: float | None = None) -> dict[str, Any]:
        """The last event of a `/completion` stream: timings and slot, no text. Raises UpstreamError."""
        await give_way(self._is_answering)
        # Streamed, because unstreamed some builds answer 500 to text that ends within a character.
        last: dict[str, Any] | None = None
        with self._connections.within(timeout):
            async with aclosing(self.events("/completion", {**body, "stream": True}, seconds=timeout)) as events:
                async for data in events:
                    event = parsed_event(self.name, data)
                    last = event if event.get("stop") else last
        if last is None:
            raise UpstreamUnavailable(f"server {self.name!r}: a stream without an end", server=self.name)
        return last

    async def prime(self, ids: Sequence[int], *, timeout: float | None = None) -> Primed:
        """Let the server evaluate a prompt and say nothing. What it has cached of it costs nothing.

        It chooses the slot, the idle one that knows most of the prompt. One that is asked for by number is emptied even
        while it serves somebody's answer, which then goes on without its beginning (seen with llama-server b11434).
        """
        body = {"prompt": list(ids), "n_predict": 0, "cache_prompt": True, "temperature": 0}
        answer = await self.complete(body, timeout=timeout)
        timings = answer.get("timings") or {}
        return Primed(int(timings.get("prompt_n", 0)), float(timings.get("prompt_ms", 0.0)) / 1000)

    async def force(self, ids: Sequence[int], token: int, count: int, *, timeout: float) -> Verified:
        """Make the server say `token` again and again after `ids`, about `count` times, and see what it verified."""
        said = await self.detokenize([token] * count)
        answer = await self.complete(
            forcing_body(ids, token, said),
            timeout=timeout,
        )
        timings = answer.get("timings") or {}
        return Verified(int(timings.get("draft_n") or 0), int(timings.get("draft_n_accepted") or 0))

    async def generate(self, ids: Sequence[int], max_tokens: int) -> AsyncGenerator[Generated]:
        """Greedy generation after `ids`, token by token, with probabilities. Raises UpstreamError."""
        body = generation_body(ids, max_tokens)
        counter, finished = TokenCounter(), False
        async with aclosing(self.completion_events(body)) as events:
            async for data in events:
                generated = read_generated(self.name, data, counter)
                finished = generated.finished
                yield generated
        if not finished:
            raise UpstreamUnavailable(f"server {self.name!r}: a stream without an end", server=self.name)

    def completion_events(self, body: Mapping[str, Any]) -> AsyncGenerator[bytes]:
        """The data of each event of a `/completion` stream. Raises UpstreamError."""
        return self.events("/completion", body)

    async def events(
        self, path: str, body: Mapping[str, Any], *, seconds: float | None = None
    ) -> AsyncGenerator[bytes]:
        """The data of each event of a stream, without pauses longer than `seconds`. Raises UpstreamError."""
        content = json.dumps(body).encode()
        async with self.open("POST", path, headers=_JSON, content=content, seconds=seconds) as response:
            if response.status_code != 200:
                self.raise_for_status(response, await self._connections.read_limited(response))
            splitter = EventSplitter()
            async with aclosing(self.chunks(response)) as chunks:
                async for chunk in chunks:
                    for event in splitter.feed(chunk):
                        data = payload(event)
                        if data:
                            yield data
                    self.require_end_within(splitter.pending)
