"""The ASGI application and the servers that run it."""

from __future__ import annotations

import contextlib
import logging
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Route as PathRoute

from .config import LoadedTopology, load_topology
from .endpoints import Endpoint, forward, list_models, show_health, show_model
from .errors import SetupError
from .routing import Router
from .tasks import background

log = logging.getLogger(__name__)

_SHUTDOWN_SECONDS = 10


def make_app(loaded: LoadedTopology) -> Starlette:
    """The application for a topology. Its lifespan keeps the state of the servers up to date."""
    router = Router(loaded)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        try:
            async with background() as tasks:
                await router.watch(tasks)
                yield
        finally:
            await router.aclose()

    routes = [
        PathRoute("/health", Endpoint(router, show_health, needs_key=False), methods=["GET"]),
        PathRoute("/v1/models", Endpoint(router, list_models, needs_key=True), methods=["GET"]),
        PathRoute("/models", Endpoint(router, list_models, needs_key=True), methods=["GET"]),
        PathRoute("/v1/models/{model:path}", Endpoint(router, show_model, needs_key=True), methods=["GET"]),
        PathRoute("/{path:path}", Endpoint(router, forward, needs_key=True)),
    ]
    cors = Middleware(
        CORSMiddleware,
        allow_origins=loaded.topology.listen.cors_origins,
        allow_methods=["GET", "POST", "OPTIONS"],
        allow_headers=["*"],
        expose_headers=["x-specrouter-decoding"],
    )
    return Starlette(routes=routes, lifespan=lifespan, middleware=[cors] if loaded.topology.listen.cors_origins else [])


def serve(loaded: LoadedTopology, *, port: int | None = None) -> None:
    """Serve a topology until interrupted, on its own port or the one given.

    Raises SetupError where the address cannot be used.
    """
    listen = loaded.topology.listen
    server, bound = _server(loaded, listen.host, listen.port if port is None else port)
    with contextlib.closing(bound):
        log.info("serving %s on http://%s:%d", loaded.topology.path, listen.host, bound.getsockname()[1])
        # uvicorn raises the signal again after its orderly end.
        with contextlib.suppress(KeyboardInterrupt):
            server.run(sockets=[bound])


@contextlib.asynccontextmanager
async def serve_in_background(topology: Path, port: int = 0) -> AsyncIterator[str]:
    """Serve a topology file on a loopback port (0: any free one) while the context lasts; yields the base URL."""
    loaded = load_topology(topology)
    server, bound = _server(loaded, "127.0.0.1", port)
    # The signals belong to whoever runs us.
    server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign,assignment]
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


def _server(loaded: LoadedTopology, host: str, port: int) -> tuple[uvicorn.Server, socket.socket]:
    config = uvicorn.Config(
        make_app(loaded),
        access_log=False,
        log_config=None,
        server_header=False,
        timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
        lifespan="on",
        ws="none",
        proxy_headers=False,
    )
    return uvicorn.Server(config), _bind(host, port)


def _bind(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, kind, protocol)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(address)
        except OSError:
            bound.close()
            raise
    except OSError as error:
        raise SetupError(
            f"cannot listen on {host}:{port}: {error.strerror} (change `listen` in the topology)"
        ) from error
    return bound
