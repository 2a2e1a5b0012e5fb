"""A network that is further away: a relay whose bytes arrive later, in order, at no less bandwidth."""

from __future__ import annotations

import contextlib
import math
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import anyio
import anyio.abc

from specrouter.errors import SetupError
from specrouter.tasks import background


@contextlib.asynccontextmanager
async def relay(url: str, rtt: float) -> AsyncIterator[str]:
    """The URL under which a server is reached with `rtt` seconds more per round trip, while the context lasts.

    Raises SetupError for an https URL: its certificate is not for a relay.
    """
    parts = urlsplit(url)
    if parts.scheme != "http" or parts.hostname is None:
        raise SetupError(f"--rtt and --rtt-target delay only http servers, not {url}")
    host, port = parts.hostname, parts.port or 80

    async def connect(client: anyio.abc.SocketStream) -> None:
        opened = anyio.current_time()
        async with client:
            # Whoever is relayed to an end that has gone sees its own connection end.
            with contextlib.suppress(OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
                async with await anyio.connect_tcp(host, port) as server, background() as tasks:
                    # Opening a connection is a round trip too.
                    tasks.start_soon(_carry, client, server, rtt / 2, opened + rtt)
                    # The server has the last word: a client may have said all it wants and still listen.
                    await _carry(server, client, rtt / 2, opened)

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1", backlog=512)
    async with listener, background() as tasks:
        tasks.start_soon(listener.serve, connect)
        here = f"127.0.0.1:{listener.extra(anyio.abc.SocketAttribute.local_port)}"  # noqa: S610
        yield parts._replace(netloc=here).geturl()


async def _carry(source: anyio.abc.SocketStream, sink: anyio.abc.SocketStream, delay: float, not_before: float) -> None:
    """Everything from source to sink, `delay` seconds later; what comes early counts as of `not_before`."""
    under_way, arriving = anyio.create_memory_object_stream[tuple[float, bytes]](math.inf)

    async def deliver() -> None:
        async with arriving:
            async for due, data in arriving:
                await anyio.sleep_until(due)
                if not data:
                    await sink.send_eof()
                    return
                await sink.send(data)

    async with anyio.create_task_group() as tasks, under_way:
        tasks.start_soon(deliver)
        data = b"more"
        while data:
            try:
                data = await source.receive()
            except anyio.EndOfStream:
                data = b""
            under_way.send_nowait((max(anyio.current_time(), not_before) + delay, data))
