"""What a router's process serves: the topology of now, and those of before until their last request has ended."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, replace

import anyio
import anyio.abc
import anyio.to_thread
from starlette.routing import Router as PathRouter
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .config import Listen, load_topology
from .config.changes import listen_changes, topology_changes
from .endpoints import error_response
from .errors import ShuttingDown, SpecrouterError, TopologyError
from .routing import Router
from .running import ReloadOutcome, RunServer, Status
from .tasks import background
from .traffic import Traffic
from .upstream import LlamaServer

log = logging.getLogger(__name__)

_LAST_WORDS_SECONDS = 2.0
"""How long requests that are cut at the end of a shutdown may take to tell their clients."""

_TELL_SECONDS = 0.5
"""How late other processes may learn of a change to a server that the router runs."""


@dataclass(eq=False, slots=True)
class _Revision:
    """A topology that is or was served, and how many requests it is answering."""

    router: Router
    app: ASGIApp
    running: int = 0


class Service:
    """The ASGI application of a router's process.

    A request is answered to its end by the topology that was served when it came. `make_app` makes the application
    for each; `fixed` are the keys of `listen` that need a restart to change; `report` is told whenever the status has
    changed. `status` says what is served, `traffic` what became of all requests.
    """

    def __init__(
        self,
        router: Router,
        make_app: Callable[[Router, Service], ASGIApp],
        *,
        fixed: tuple[str, ...] = ("host", "port"),
        report: Callable[[Status], None] = lambda _: None,
    ) -> None:
        self.status = Status()
        self.traffic = Traffic()
        self.stopping = False
        self._make_app = make_app
        self._fixed = fixed
        self._report = report
        self._bound = router.topology.listen
        self._current = _Revision(router, make_app(router, self))
        self._revisions = [self._current]
        self._watching: dict[int, anyio.CancelScope] = {}
        self._reloading = anyio.Lock()
        self._reload_wanted: anyio.Event | None = None
        self._tasks: anyio.abc.TaskGroup | None = None
        self._lifespan = PathRouter(lifespan=lambda _: self._life())

    @property
    def router(self) -> Router:
        """What answers new requests."""
        return self._current.router

    @property
    def listen(self) -> Listen:
        """Whom the router answers, as the topology of now has it."""
        return self.router.topology.listen

    @property
    def running(self) -> int:
        """How many requests are being answered."""
        return sum(revision.running for revision in self._revisions)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(scope, receive, send)
            return
        with self._running(self._current) as revision:
            if not self.stopping:
                await revision.app(scope, receive, send)
            elif scope["path"] == "/health":
                await error_response(ShuttingDown("the router is being stopped"))(scope, receive, _last(send))
            else:
                # It came before the end was known: there is as much time for it as for the others.
                await revision.app(scope, receive, _last(send))

    @contextlib.contextmanager
    def _running(self, revision: _Revision) -> Iterator[_Revision]:
        revision.running += 1
        try:
            yield revision
        finally:
            revision.running -= 1
            if not revision.running and revision is not self._current:
                self._retire(revision)

    @contextlib.asynccontextmanager
    async def _life(self) -> AsyncIterator[None]:
        try:
            async with background() as tasks:
                self._tasks = tasks
                self._watch()
                tasks.start_soon(self._reload_when_wanted)
                tasks.start_soon(self._tell_of_servers)
                yield
                self.begin_shutdown()
                with anyio.move_on_after(_LAST_WORDS_SECONDS):
                    while self.running:
                        await anyio.sleep(0.01)
        finally:
            self._tasks = None
            for server in _servers(self._revisions):
                await _close(server)

    def begin_shutdown(self) -> None:
        """From now on `/health` says that the router is going, and no topology is taken any more."""
        if not self.stopping:
            self.stopping = True
            log.info("stopping; running requests (%d) have %g s to end", self.running, self.listen.shutdown_wait)

    # -- reload --------------------------------------------------------------------------------------------

    def request_reload(self) -> None:
        """Have the topology file read again, soon, and once more if it is being read at this moment."""
        if self._reload_wanted is not None:
            self._reload_wanted.set()

    async def _reload_when_wanted(self) -> None:
        self._reload_wanted = anyio.Event()
        while True:
            await self._reload_wanted.wait()
            # Before the file is read: what is wanted from now on may be about a later change.
            self._reload_wanted = anyio.Event()
            await self.reload()

    async def reload(self) -> ReloadOutcome:
        """Read the topology file again and serve what it says now; with any problem in it, all stays as it was."""
        async with self._reloading:
            self._set_status(replace(self.status, begun=self.status.begun + 1))
            try:
                outcome = ReloadOutcome(changed=await self._take())
                log.info("revision %d of the topology: %s", self.status.revision, outcome.changed)
            except TopologyError as error:
                outcome = ReloadOutcome(problems=error.problems)
            except SpecrouterError as error:
                outcome = ReloadOutcome(problems=(str(error),))
            except Exception:
                log.exception("reading %s again", self.router.topology.path)
                outcome = ReloadOutcome(problems=("an error in specrouter, see its log",))
            self.traffic.metrics.reloaded(taken=not outcome.problems)
            for problem in outcome.problems:
                log.error("the topology stays as it was: %s", problem)
            self._set_status(replace(self.status, ended=self.status.ended + 1, outcome=outcome))
            return outcome

    async def _take(self) -> str:
        # In a thread: plugins run code and certificates are read while answers stream. A plugin cannot have counted on
        # the event loop anyway, there is none yet when a router starts.
        new, warnings = await anyio.to_thread.run_sync(_load, self.router, abandon_on_cancel=True)
        if self.stopping:
            raise ShuttingDown("the router is being stopped")
        for warning in warnings:
            log.warning("%s", warning)
        changed = self._changes(new)
        previous, self._current = self._current, _Revision(new, self._make_app(new, self))
        new.take_over()
        self._revisions.append(self._current)
        self._watch()
        if not previous.running:
            self._retire(previous)
        self._set_status(replace(self.status, revision=self.status.revision + 1))
        return changed

    def _changes(self, new: Router) -> str:
        old, listen = self.router, new.topology.listen
        stuck = [key for key in self._fixed if getattr(self._bound, key) != getattr(listen, key)]
        parts = [
            *(f"listen.{key} changed" for key in listen_changes(self.listen, listen) if key not in self._fixed),
            *topology_changes(old.topology, new.topology),
            *(f"route {name} made anew" for name in new.made_anew(old)),
            *(f"listen.{key} waits for a restart" for key in stuck),
        ]
        return ", ".join(parts) or "nothing changed"

    def _set_status(self, status: Status) -> None:
        self.status = status
        self._report(status)

    async def _tell_of_servers(self) -> None:
        """Keep the status of the servers that the router runs itself current."""
        while True:
            servers = {
                name: RunServer(one.server.state.value, one.state_reason, one.server.url)
                for name, one in self.router.supervisors.items()
            }
            if servers != self.status.servers:
                self._set_status(replace(self.status, servers=servers))
            await anyio.sleep(_TELL_SECONDS)

    # -- what belongs to the topologies ----------------------------------------------------------------------

    def _watch(self) -> None:
        """Watch the servers and pairs of the topology of now: those that were, undisturbed, and no others.

        A server that the router runs goes on running for as long as requests of earlier topologies can use it.
        """
        if self._tasks is None:
            return
        wanted = {id(watched): watch for watched, watch in self.router.watches()}
        needed = {id(one) for revision in self._revisions for one in revision.router.supervisors.values()}
        for key in self._watching.keys() - wanted.keys() - needed:
            self._watching.pop(key).cancel()
        for key in wanted.keys() - self._watching.keys():
            scope = self._watching[key] = anyio.CancelScope()
            self._tasks.start_soon(_run_in, scope, wanted[key])

    def _retire(self, revision: _Revision) -> None:
        """Its last request has ended: close the servers that are left to nobody."""
        self._revisions.remove(revision)
        self._watch()
        for server in _servers([revision]) - _servers(self._revisions):
            if self._tasks is not None:
                self._tasks.start_soon(_close, server)


def _load(previous: Router) -> tuple[Router, tuple[str, ...]]:
    loaded = load_topology(previous.topology.path)
    return Router(loaded, previous), loaded.warnings


async def _run_in(scope: anyio.CancelScope, watch: Callable[[], Awaitable[None]]) -> None:
    with scope:
        await watch()


def _servers(revisions: list[_Revision]) -> set[LlamaServer]:
    return {server for revision in revisions for server in revision.router.servers.values()}


async def _close(server: LlamaServer) -> None:
    try:
        await server.aclose()
    except Exception:
        # Nothing depends on it any more, and the others must go on.
        log.exception("closing the connections to server %s", server.name)


def _last(send: Send) -> Send:
    """A `send` that asks the client for no more requests on its connection."""

    async def closing(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), (b"connection", b"close")]
        await send(message)

    return closing
