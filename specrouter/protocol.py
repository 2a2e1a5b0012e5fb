"""Below ASGI: uvicorn's HTTP protocol for clients that are slow, wrong or hostile.

httptools reads HTTP and is strict about framing, uvicorn does the rest. Added here: a time and a size for what a
client sends, a time for taking what it is sent, and errors in OpenAI's shape for what is no request.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import Callable
from typing import Any

import httptools
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from .config.model import Listen
from .errors import HeadersTooLarge, InvalidRequest, RequestError, RequestTooSlow
from .openai_api import error_body
from .request_log import REQUEST_ID_HEADER, request_id

log = logging.getLogger(__name__)

_MOST_PIPELINED = 64
"""Requests that may wait on a connection for the answer to an earlier one."""

_LINGER_SECONDS = 2.0
"""How long a refused client is still listened to: closing at once would reset the connection under the answer."""

_NOTSENT_LOWAT: int | None = getattr(socket, "TCP_NOTSENT_LOWAT", None)

_TLS_HANDSHAKE = b"\x16\x03"


def protocol_class(current: Callable[[], Listen]) -> type[asyncio.Protocol]:
    """The protocol for `uvicorn.Config(http=…)`; `current` returns the limits of now.

    A client has `client_timeout` seconds for the head of a request, from its first byte or from connecting, and
    for every next piece of the body; then it is answered 408. A head over `max_headers` bytes is answered 431, what
    is not HTTP/1 400. The connection is closed then. One that takes none of its answer for `client_timeout` is cut.
    """

    class ClientProtocol(_ClientProtocol):
        limits = staticmethod(current)

    return ClientProtocol


class _Timer:
    """Calls `action` once, `seconds()` after the last `start`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: Callable[[], float], action: Callable[[], None]):
        self._loop = loop
        self._seconds = seconds
        self._action = action
        self._handle: asyncio.TimerHandle | None = None

    @property
    def is_running(self) -> bool:
        return self._handle is not None

    def start(self) -> None:
        self.stop()
        self._handle = self._loop.call_later(self._seconds(), self._fire)

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _fire(self) -> None:
        self._handle = None
        self._action()


class _ClientProtocol(HttpToolsProtocol):
    limits: Callable[[], Listen]

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._sending = _Timer(self.loop, lambda: self.limits().client_timeout, self._sends_too_slowly)
        self._taking = _Timer(self.loop, lambda: self.limits().client_timeout, self._takes_too_slowly)
        self._untaken = 0
        self._answering: RequestResponseCycle | None = None
        self._refusal: RequestError | None = None
        self._is_deaf = False
        self._in_head = False
        self._head_size = 0
        self._events = 0
        self._size_without_event = 0

    # -- life ----------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if _NOTSENT_LOWAT is not None:
            # Else the kernel takes megabytes for a client that takes nothing, and hides how slow it is.
            connection = transport.get_extra_info("socket")
            connection.setsockopt(socket.IPPROTO_TCP, _NOTSENT_LOWAT, HIGH_WATER_LIMIT)
        self._sending.start()

    def connection_lost(self, exc: Exception | None) -> None:
        self._sending.stop()
        self._taking.stop()
        # uvicorn tells the last request only, which may be one that waits for an earlier one.
        if self._answering is not None and not self._answering.response_complete:
            self._end(self._answering)
        super().connection_lost(exc)

    def _end(self, cycle: RequestResponseCycle) -> None:
        cycle.disconnected = True
        cycle.message_event.set()

    # -- what the client sends -----------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self._is_deaf:
            return
        self._unset_keepalive_if_required()
        if not self._sending.is_running and self._is_between_requests():
            self._sending.start()
        events = self._events
        try:
            self._feed(data)
            # Each header that is complete has been counted; this is one that is not, or a trailer or the like.
            self._size_without_event = self._size_without_event + len(data) if events == self._events else 0
            self._check_size(self._size_without_event)
        except RequestError as error:
            self._refuse(error)
        except httptools.HttpParserError as error:
            if self._refusal is None and isinstance(error, httptools.HttpParserCallbackError):
                log.exception("a fault of the router while it read a request")
            self._refuse(self._refusal or InvalidRequest(_not_http(data, error)))

    def _feed(self, data: bytes) -> None:
        while True:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as upgrade:
                # A wish, which some HTTP/2 clients have by default. httptools takes what follows for another
                # protocol; here it is still the request's body. So the same request again, without the wish.
                head = [self.parser.get_method(), b" ", self.url, b" HTTP/1.1\r\n"]
                for name, value in self.headers:
                    head += [name, b": ", value, b"\r\n"] if name != b"upgrade" else []
                data = b"".join([*head, b"\r\n", data[upgrade.args[0] :]])
                self.parser = httptools.HttpRequestParser(self)

    def _is_between_requests(self) -> bool:
        return self.cycle is None or not self.cycle.more_body

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = True
        self._head_size = 0
        self._events += 1
        self._sending.start()

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value) + len(": \r\n"))
        # Trailers are dropped: they would come too late to be checked, or overrule what was.
        if self._in_head:
            # White space around a value is not part of it, and httptools leaves what follows.
            super().on_header(name, value.strip(b" \t"))

    def _count(self, size: int) -> None:
        self._events += 1
        self._head_size += size
        self._check_size(self._head_size)

    def _check_size(self, size: int) -> None:
        limit = self.limits().max_headers
        if size > limit:
            self._refusal = HeadersTooLarge(
                f"the head of the request is larger than this router takes ({limit} bytes; `listen.max_headers` "
                "in the topology)"
            )
            raise self._refusal

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._events += 1
        # CONNECT and absolute URLs are for proxies: this is none that goes where a client says.
        if not self.url.startswith(b"/") or self.parser.get_method() == b"CONNECT":
            self._refusal = InvalidRequest("the request's target must be a path, like /v1/models")
            raise self._refusal
        if self.parser.should_upgrade():
            return
        if len(self.pipeline) == _MOST_PIPELINED:
            self._refusal = InvalidRequest("too many requests wait on this connection")
            raise self._refusal
        try:
            super().on_headers_complete()
        except httptools.HttpParserInvalidURLError as error:
            self._refusal = InvalidRequest("the request's target is not a path, or too long")
            raise self._refusal from error
        # Even while others wait: or nobody would notice that the client has left.
        self.flow.resume_reading()
        self._sending.start()

    def on_body(self, body: bytes) -> None:
        self._events += 1
        super().on_body(body)
        if not self.cycle.response_complete:
            self._sending.start()

    def on_message_complete(self) -> None:
        self._events += 1
        if self.parser.should_upgrade():
            return
        super().on_message_complete()
        # uvicorn forgets it where the answer came first.
        self.cycle.more_body = False
        if self.cycle.response_complete:
            self._sending.start()
        else:
            self._sending.stop()

    def _sends_too_slowly(self) -> None:
        if self.transport.is_closing():
            return
        if self._is_between_requests():
            if self._in_head:
                self._refuse(RequestTooSlow("the head of the request did not arrive in time"))
            else:
                self._close()
        elif self.cycle.response_complete:
            self._close()
        elif self.flow.read_paused or self.cycle.waiting_for_100_continue:
            # It is the router that is not reading.
            self._sending.start()
        else:
            self._refuse(RequestTooSlow("the body of the request did not arrive in time"))

    # -- what the client takes -----------------------------------------------------------------------------

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_taking()

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self.transport.is_closing():
            self._taking.stop()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing():
            self._watch_taking()
        elif self._sending.is_running:
            self._unset_keepalive_if_required()

    def timeout_keep_alive_handler(self) -> None:
        self._close()

    def _watch_taking(self) -> None:
        self._untaken = self.transport.get_write_buffer_size()
        self._taking.start()

    def _takes_too_slowly(self) -> None:
        left = self.transport.get_write_buffer_size()
        if self._untaken - left >= HIGH_WATER_LIMIT:
            self._watch_taking()
        else:
            log.info("a client that takes none of its answer is cut off")
            self.transport.abort()

    # -- refusals ------------------------------------------------------------------------------------------

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answering = cycle
        super()._start_asgi_task(cycle, app)

    def _refuse(self, error: RequestError) -> None:
        """Answer what is no request, after all earlier answers, and listen no longer."""
        self._is_deaf = True
        self._sending.stop()
        log.info("a request was refused: %s", error)
        if self.pipeline and self.pipeline[0][0].more_body:
            self.pipeline.popleft()
        last = self.pipeline[0][0] if self.pipeline else self._answering
        if last is None or not last.more_body:
            if last is None or last.response_complete:
                self._answer(error)
            else:
                # That answer is owed, and becomes the last one here.
                last.keep_alive = False
                self.flow.resume_reading()
        elif last.response_started:
            self._end(last)
            self._close()
        else:
            self._end(last)
            self._answer(error)

    def _answer(self, error: RequestError) -> None:
        content = json.dumps(error_body(error)).encode()
        identity = request_id({name.decode("latin-1"): value.decode("latin-1") for name, value in self.headers or ()})
        headers = [
            *self.server_state.default_headers,
            (b"content-type", b"application/json"),
            (b"content-length", str(len(content)).encode()),
            (REQUEST_ID_HEADER.encode(), identity.encode()),
            (b"connection", b"close"),
        ]
        lines = [name + b": " + value + b"\r\n" for name, value in headers]
        self.transport.write(b"".join([STATUS_LINE[error.status], *lines, b"\r\n", content]))
        self.transport.write_eof()
        self.flow.resume_reading()
        self.loop.call_later(_LINGER_SECONDS, self.transport.abort)

    def _close(self) -> None:
        self.transport.close()
        self._watch_taking()


def _not_http(data: bytes, error: httptools.HttpParserError) -> str:
    if data.startswith(_TLS_HANDSHAKE):
        return "this is TLS, and the router speaks plain HTTP: use http://, or a reverse proxy for https://"
    if data.startswith(b"PRI * HTTP/2"):
        return "this is HTTP/2, and the router speaks HTTP/1.1"
    return f"this is not an HTTP/1.1 request: {error}"
