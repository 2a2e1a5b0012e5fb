"""The ASGI application and the servers that run it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import anyio
import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Route as PathRoute
from uvicorn.server import HANDLED_SIGNALS

from .config import LoadedTopology, load_topology
from .endpoints import Endpoint, Handler, forward, list_models, show_health, show_model
from .errors import SetupError
from .page import show_page, show_the_way
from .pools import make_forget
from .protocol import protocol_class
from .request_log import REQUEST_ID_HEADER
from .routing import Router
from .running import Announcement
from .service import Service
from .sockets import keepalive_options
from .status import show_metrics, show_status
from .tasks import background

log = logging.getLogger(__name__)


def make_app(router: Router, service: Service) -> Starlette:
    """The application that answers requests from a topology."""

    def endpoint(handler: Handler, *, needs_key: bool = True) -> Endpoint:
        return Endpoint(router, service.traffic, handler, needs_key=needs_key)

    forwarding = endpoint(forward)
    routes = [
        PathRoute("/health", endpoint(show_health, needs_key=False), methods=["GET"]),
        PathRoute("/metrics", endpoint(show_metrics(service)), methods=["GET"]),
        PathRoute("/specrouter/status", endpoint(show_status(service)), methods=["GET"]),
        PathRoute("/specrouter/forget", endpoint(make_forget()), methods=["POST"]),
        PathRoute("/", endpoint(show_the_way, needs_key=False), methods=["GET"]),
        PathRoute("/specrouter", endpoint(show_the_way, needs_key=False), methods=["GET"]),
        PathRoute("/specrouter/{name:path}", endpoint(show_page, needs_key=False), methods=["GET"]),
        PathRoute("/v1/models", endpoint(list_models), methods=["GET"]),
        PathRoute("/models", endpoint(list_models), methods=["GET"]),
        PathRoute("/v1/models/{model:path}", endpoint(show_model), methods=["GET"]),
        PathRoute("/{path:path}", forwarding),
    ]
    cors = Middleware(
        CORSMiddleware,
        allow_origins=router.topology.listen.cors_origins,
        allow_methods=["GET", "POST", "OPTIONS"],
        allow_headers=["*"],
        expose_headers=["x-specrouter-decoding", REQUEST_ID_HEADER, "retry-after"],
    )
    app = Starlette(routes=routes, middleware=[cors] if router.topology.listen.cors_origins else [])
    # Starlette's `path` matches no line break, and its own answer would be plain text.
    app.router.default = forwarding
    return app


def serve(loaded: LoadedTopology, *, port: int | None = None, log_prompts: bool = False) -> None:
    """Serve a topology until interrupted, on its own port or the one given. `log_prompts`: see `Router`.

    Raises SetupError where the address cannot be used.
    """
    listen = loaded.topology.listen
    bound = _bind(listen.host, listen.port if port is None else port)
    url = f"http://{_in_url(listen.host)}:{bound.getsockname()[1]}"
    announcement = Announcement(loaded.topology.path, url)
    service = Service(
        Router(loaded, log_prompts=log_prompts),
        make_app,
        fixed=("host", "port") if port is None else ("host",),
        report=announcement.update,
    )
    with contextlib.closing(bound):
        log.info("serving %s on %s", loaded.topology.path, url)
        log.info("to watch it: %s/specrouter/", url)
        _ForegroundServer(service, announcement).run(sockets=[bound])


@contextlib.asynccontextmanager
async def serve_in_background(topology: Path | Service, port: int = 0) -> AsyncIterator[str]:
    """Serve a topology file on a loopback port (0: any free one) while the context lasts; yields the base URL.

    With a service instead of a file, the caller can reload it.
    """
    service = topology if isinstance(topology, Service) else Service(Router(load_topology(topology)), make_app)
    bound = _bind("127.0.0.1", port)
    server = _Server(service)
    with contextlib.closing(bound):
        async with background() as tasks:
            ended = anyio.Event()

            async def run() -> None:
                try:
                    await server.serve([bound])
                finally:
                    ended.set()

            tasks.start_soon(run)
            while not server.started:
                if ended.is_set():
                    raise SetupError("the router did not start, see its log")
                await anyio.sleep(0.01)
            try:
                yield f"http://127.0.0.1:{bound.getsockname()[1]}"
            finally:
                server.should_exit = True
                # Or leaving the block would cut it short.
                await ended.wait()


class _Server(uvicorn.Server):
    """uvicorn for a service. The signals belong to whoever runs us."""

    def __init__(self, service: Service) -> None:
        config = uvicorn.Config(
            service,
            access_log=False,
            log_config=None,
            server_header=False,
            lifespan="on",
            http=protocol_class(lambda: service.listen),
            ws="none",
            proxy_headers=False,
        )
        super().__init__(config)
        self._service = service

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._service.begin_shutdown()
        # Of now, and not of when the server was made. uvicorn is content with fractions of a second.
        self.config.timeout_graceful_shutdown = self._service.listen.shutdown_wait  # type: ignore[assignment]
        await super().shutdown(sockets)


class _ForegroundServer(_Server):
    """The server of `specrouter serve`: ends on SIGINT and SIGTERM, reads its topology again on SIGHUP."""

    def __init__(self, service: Service, announcement: Announcement) -> None:
        super().__init__(service)
        self._announcement = announcement

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()

        def stop(*_: object) -> None:
            self.should_exit = True
            # In the loop: what it does may be under way at this very moment.
            loop.call_soon_threadsafe(self._service.begin_shutdown)
            # Whoever asks twice does not want to wait, not even for us.
            for number in HANDLED_SIGNALS:
                signal.signal(number, signal.SIG_DFL)

        before = {number: signal.signal(number, stop) for number in HANDLED_SIGNALS}
        if hasattr(signal, "SIGHUP"):
            loop.add_signal_handler(signal.SIGHUP, self._service.request_reload)
        try:
            # Not earlier: who reads it may send a signal at once.
            with self._announcement:
                yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _bind(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, kind, protocol)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            # Connections inherit them: a client that lost its power is noticed, whatever it was waiting for.
            for option in keepalive_options():
                bound.setsockopt(*option)
            bound.bind(address)
            # Whoever connects before the server runs is served when it does.
            bound.listen(2048)
        except OSError:
            bound.close()
            raise
    except OSError as error:
        raise SetupError(
            f"cannot listen on {host}:{port}: {error.strerror} (choose another: `listen` in the topology, or --port)"
        ) from error
    return bound
