"""The HTTP connections of the router to one server.

httpx's exceptions become `UpstreamError`s here and nowhere else.
"""

from __future__ import annotations

import contextlib
import math
import ssl
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any

import anyio
import httpx

from .config.model import ServerConfig
from .errors import UpstreamBroke, UpstreamRejected, UpstreamTimeout, UpstreamUnavailable
from .sockets import keepalive_options

# llama-server closes an idle connection after 5 s; ours must be the side that lets go first.
_KEEPALIVE_SECONDS = 4.0

_LONGEST_ANSWER = 64 * 2**20
"""Bytes that are read of an answer to a question of ours; the whole vocabulary with probabilities has less."""


class Connections:
    """What goes over HTTP to one server, and what goes wrong on the way.

    `lost` is told, in words, when no connection can be made. `last_answer` is when the server last began to answer, or
    sent a part of an answer that was read in `chunks`, by the monotonic clock.
    """

    def __init__(self, config: ServerConfig, lost: Callable[[str], None]) -> None:
        self.last_answer = 0.0
        self._name = config.name
        self._connect_timeout = config.connect_timeout
        self._lost = lost
        self._client = _make_client(config)
        self._unkept = _make_client(config, kept=0)

    async def aclose(self) -> None:
        """Close all of them."""
        await self._client.aclose()
        await self._unkept.aclose()

    def move_to(self, url: str) -> None:
        """From now on, this is the server's address."""
        self._client.base_url = httpx.URL(url)

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
        """Send a request and yield its response with the body still to be read; no pause is longer than `seconds`.

        An answer that drips for ever is limited by `within`. Raises UpstreamUnavailable, UpstreamTimeout,
        UpstreamRejected.
        """
        # A host that is gone shows before it is merely late.
        connect = min(self._connect_timeout, math.inf if seconds is None else 0.9 * seconds)
        limits = httpx.Timeout(seconds, connect=connect)
        with self._mapped():
            request = self._client.build_request(method, path, headers=list(headers), content=content, timeout=limits)
        response = await self._send(request)
        try:
            yield response
        finally:
            await response.aclose()

    async def chunks(self, response: httpx.Response) -> AsyncGenerator[bytes]:
        """The body as it arrives. Raises UpstreamUnavailable when it breaks off, UpstreamTimeout."""
        with self._mapped():
            async for chunk in response.aiter_raw():
                self.last_answer = time.monotonic()
                yield chunk

    async def read(self, response: httpx.Response) -> bytes:
        """The whole body. Raises UpstreamUnavailable when it breaks off, UpstreamTimeout."""
        with self._mapped():
            return await response.aread()

    async def read_limited(self, response: httpx.Response) -> bytes:
        """The body of an answer to a question of ours. Raises UpstreamUnavailable, also for no end, UpstreamTimeout."""
        parts, size = [], 0
        with self._mapped():
            async for part in response.aiter_bytes():
                parts.append(part)
                size += len(part)
                self.require_end_within(size)
        return b"".join(parts)

    def require_end_within(self, size: int) -> None:
        """Raises UpstreamUnavailable for an answer or event that has so many bytes and more: none is that long."""
        if size > _LONGEST_ANSWER:
            message = f"server {self._name!r}: an answer of more than {_LONGEST_ANSWER // 2**20} MiB"
            raise UpstreamUnavailable(message, server=self._name)

    @contextlib.contextmanager
    def within(self, seconds: float | None) -> Iterator[None]:
        """Raises UpstreamTimeout when the context lasts longer."""
        try:
            with anyio.fail_after(seconds):
                yield
        except TimeoutError as error:
            raise self._too_late() from error

    def _too_late(self) -> UpstreamTimeout:
        return UpstreamTimeout(f"server {self._name!r} did not answer in time", server=self._name)

    @contextlib.contextmanager
    def _mapped(self) -> Iterator[None]:
        try:
            yield
        except (httpx.ConnectTimeout, httpx.ConnectError) as error:
            reason = "no connection within the time-out" if isinstance(error, httpx.ConnectTimeout) else "no connection"
            self._lost(reason)
            kind = UpstreamTimeout if isinstance(error, httpx.ConnectTimeout) else UpstreamUnavailable
            raise kind(f"server {self._name!r}: {reason}", server=self._name) from error
        except httpx.TimeoutException as error:
            raise self._too_late() from error
        except (httpx.LocalProtocolError, httpx.InvalidURL) as error:
            # It was not sent. What exactly is wrong stays untold: it quotes the header, which may hold a key.
            what = "its address" if isinstance(error, httpx.InvalidURL) else "one of its headers"
            message = f"server {self._name!r} cannot be sent this request: HTTP does not allow {what}"
            raise UpstreamRejected(message, server=self._name, status=400) from None
        except httpx.RequestError as error:
            raise UpstreamBroke(f"server {self._name!r}: the connection broke", server=self._name) from error

    async def _send(self, request: httpx.Request) -> httpx.Response:
        """The response to a request, its body unread. A connection that had gone stale is replaced by a new one."""
        connected = False

        async def trace(event: str, _: Mapping[str, Any]) -> None:
            nonlocal connected
            connected = connected or event == "connection.connect_tcp.started"

        request.extensions = {**request.extensions, "trace": trace}
        with self._mapped():
            try:
                response = await self._client.send(request, stream=True)
            except (httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError) as broken:
                # On a connection of its own, the server has seen the request and may have died of it.
                if connected:
                    raise
                try:
                    # Of the kept ones, others may be as stale.
                    response = await self._unkept.send(request, stream=True)
                except httpx.ConnectError:
                    # So it has ended just now, and not before.
                    self._lost("no connection")
                    raise broken from None
        self.last_answer = time.monotonic()
        return response


def _make_client(config: ServerConfig, *, kept: int = 64) -> httpx.AsyncClient:
    """A client that adds the server's key to each request, and nothing else that the request does not have.

    `kept` is how many idle connections it keeps for other requests.
    """
    transport = httpx.AsyncHTTPTransport(
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=kept, keepalive_expiry=_KEEPALIVE_SECONDS),
        trust_env=False,
        # Making a context reads the certificate store: half a second for ten servers that do not use it.
        verify=ssl.create_default_context() if config.url.startswith("https:") else False,
        socket_options=keepalive_options(),
    )
    client = httpx.AsyncClient(
        base_url=config.url,
        transport=transport,
        headers={"authorization": f"Bearer {config.api_key}"} if config.api_key else {},
        timeout=None,  # noqa: S113  (each request brings its own)
        # One client's cookies must not travel with another's requests.
        cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
        follow_redirects=False,
        trust_env=False,
    )
    # What httpx adds by itself would reach the server as if the client had sent it.
    for header in ("user-agent", "accept", "accept-encoding"):
        del client.headers[header]
    client.headers["accept-encoding"] = "identity"
    return client
