"""Runs a server of the topology as its `run` says: started, watched, restarted, stopped."""

from __future__ import annotations

import contextlib
import logging
import os
import time
import urllib.parse
from collections.abc import Sequence
from functools import partial
from itertools import pairwise

import anyio
import anyio.to_thread

from specrouter import health
from specrouter.config.model import PORT_VARIABLE, RunConfig
from specrouter.errors import SetupError, UpstreamError, UpstreamLoading, UpstreamUnavailable
from specrouter.tasks import background, run_until
from specrouter.types import ServerState
from specrouter.upstream import PROBE_TIMEOUT, LlamaServer
from specrouter.workers import SETTLE_SECONDS, Workers, WorkersState

from .failures import Failure, require_program, why_it_ended, without_secrets
from .folders import log_file
from .leftovers import end_leftovers
from .logs import ServerLog
from .processes import HOST, Process, free_port, port_is_free

log = logging.getLogger(__name__)

GRACE_SECONDS = 10.0
"""How long a server may take to end before it is ended by force."""

SWITCH_SECONDS = 5.0
"""How long nobody must have used a server before it is stopped to be run with its workers again."""

_POLL_SECONDS = 0.1
_KEEP_SMALL_SECONDS = 5.0
_SHOWN_LINES = 12
_SHORTEST_SECRET = 6
_SECRET_FLAGS = ("--api-key", "--hf-token", "-hft")


class Supervisor:
    """Keeps the process of a server. `watch()` does the work; cancelled, it ends the process.

    It sets the state of the server: STOPPED until somebody needs it, LOADING while it starts, DOWN when it does not
    start. After a failure it waits, longer each time, until the server has been up for the longest such pause.
    `predecessors` ran a server of that name or address before a reload: they have to be gone first.
    """

    def __init__(self, server: LlamaServer, run: RunConfig, predecessors: Sequence[Supervisor] = ()) -> None:
        self.name = server.name
        self.log = ServerLog(log_file(run.topology, server.name))
        self._run_config = run
        # The newest one, and those from before a reload that may still be answering.
        self._servers = [server]
        # Those of a predecessor too: it may have to go before it has waited for them.
        self._predecessors: list[Supervisor] = [one for given in predecessors for one in (given, *given._predecessors)]
        self._gone = anyio.Event()
        self._needed = anyio.Event()
        self._port: int | None = None
        self._process: Process | None = None
        self._failures = 0
        self._failed = ""
        self._failed_in_full = ""
        self._uses_workers = False
        self._workers: Workers | None = None
        if run.workers:
            self._workers = Workers(
                run.workers,
                in_use=lambda: self._uses_workers and self._process is not None,
                settle_seconds=SETTLE_SECONDS,
            )
        server.set_state(ServerState.STOPPED, "not started yet")

    @property
    def server(self) -> LlamaServer:
        """The server as the topology of now has it."""
        return self._servers[0]

    @property
    def state_reason(self) -> str:
        """Why the server is in its state, for whoever runs the router: with all that its last failure told."""
        reason = self.server.state_reason
        if self._workers is not None:
            reason = reason.replace(self._workers.state_reason, self._workers.detail)
        return reason.replace(self._failed, self._failed_in_full) if self._failed else reason

    def fits(self, run: RunConfig | None, url: str) -> bool:
        """Whether its process is the one that a server with this configuration wants."""
        return self._run_config == run and self.server.config.url == url

    def move_to(self, server: LlamaServer) -> None:
        """From now on the process is that of this server; requests to the one before may still be running."""
        before = self.server
        if server is not before:
            if before.url:
                server.move_to(before.url)
            self._servers.insert(0, server)
            server.set_state(before.state, before.state_reason, before.info)

    def prospect(self) -> tuple[ServerState, str]:
        """What to expect of a server that no router runs now, without starting it."""
        run = self._run_config
        env = {**os.environ, **run.env}
        try:
            for command in filter(None, (run.command, run.without_workers)):
                require_program(command, run.topology.parent, env)
        except SetupError as error:
            return ServerState.DOWN, str(error)
        when = "when it is needed" if run.start == "on_demand" else "at once"
        return ServerState.STOPPED, f"no router runs it now; it is started {when}"

    def wake(self) -> None:
        """Have the server started, if it is stopped."""
        self._needed.set()

    async def ready(self, seconds: float) -> None:
        """Wake the server and return when it takes requests. Waits up to `seconds`.

        Raises UpstreamLoading when it still starts then, UpstreamUnavailable when it does not start.
        """
        self.wake()
        server = self.server
        if server.state is ServerState.UP and self._process is not None and self._process.poll() is not None:
            self._set(ServerState.LOADING, "it has ended")
        with anyio.move_on_after(seconds):
            while server.state in (ServerState.STOPPED, ServerState.LOADING):
                await server.changed()
        if server.state in (ServerState.STOPPED, ServerState.LOADING):
            raise UpstreamLoading(f"server {self.name!r} is being started", server=self.name)
        if self._process is None:
            raise UpstreamUnavailable(f"server {self.name!r} does not run: {server.state_reason}", server=self.name)

    async def watch(self) -> None:
        """Do what has to be done until cancelled, then end the process."""
        if self._run_config.start == "at_once":
            self.wake()
        try:
            await anyio.to_thread.run_sync(end_leftovers, GRACE_SECONDS)
            while self._predecessors:
                await self._predecessors[0]._gone.wait()
                self._predecessors = self._predecessors[1:]
            async with background() as tasks:
                if self._workers is not None:
                    tasks.start_soon(self._workers.watch)
                while True:
                    await self._needed.wait()
                    await self._run()
        finally:
            self._gone.set()

    async def _run(self) -> None:
        """From a start to the end of the process, and the pause after a failure."""
        up_since: float | None = None
        try:
            self._set(ServerState.LOADING, f"being started; {self._failed}" if self._failed else "being started")
            process = self._process = await self._spawn()
            try:
                await self._until_ready(process)
                up_since = time.monotonic()
                async with background() as tasks:
                    tasks.start_soon(self._keep_state)
                    await self._until_over(process)
            finally:
                with anyio.CancelScope(shield=True):
                    await process.astop(GRACE_SECONDS)
                self._process = None
        except Failure as error:
            await self._pause(error, up_since)
        except Exception:
            # One server that cannot be run must not end the router.
            log.exception("running server %s", self.name)
            await self._pause(Failure("an error in specrouter, see its log"), up_since)

    # -- start ---------------------------------------------------------------------------------------------

    async def _spawn(self) -> Process:
        run = self._run_config
        command = run.command
        if self._workers is not None and run.without_workers is not None:
            await self._workers.ask()
            self._uses_workers = self._workers.state is WorkersState.HEALTHY
            command = run.command if self._uses_workers else run.without_workers
        port = self._choose_port()
        env = {**os.environ, **{key: _with_port(value, port) for key, value in run.env.items()}}
        directory = run.topology.parent
        require_program(command, directory, env)
        variant = "" if self._uses_workers or self._workers is None else " without its RPC workers"
        try:
            stream = self.log.open(f"specrouter starts the server{variant} on port {port}")
        except OSError as error:
            raise Failure("its log cannot be written", f"cannot write its log: {error}") from error
        with stream:
            try:
                process = Process(
                    [_with_port(argument, port) for argument in command],
                    name=f"the server {self.name} of {run.topology}",
                    output=stream,
                    env=env,
                    directory=directory,
                )
            except SetupError as error:
                raise Failure("it cannot be started", str(error)) from error
        log.info("server %s: started%s as process %d on port %d", self.name, variant, process.pid, port)
        return process

    def _choose_port(self) -> int:
        """The port of the server's url, or a free one that is kept. Raises Failure where it is taken."""
        url = self.server.config.url
        if not url:
            if self._port is None or not port_is_free(self._port):
                self._port = free_port()
            for server in self._servers:
                server.move_to(f"http://{HOST}:{self._port}")
            return self._port
        parts = urllib.parse.urlsplit(url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        host = parts.hostname or HOST
        if not port_is_free(port, HOST if host == "localhost" else host):
            raise Failure("its port is in use by another process", f"port {port} is in use by another process")
        return port

    async def _until_ready(self, process: Process) -> None:
        """Raises Failure when the process ends, or takes too long."""
        seconds = self._run_config.ready_timeout
        try:
            with anyio.fail_after(seconds):
                while self.server.state is not ServerState.UP:
                    await anyio.sleep(_POLL_SECONDS)
                    self._require_running(process)
                    await self.server.probe()
                self._require_running(process)
        except TimeoutError:
            late = f"it is not ready after {seconds:g} s"
            raise Failure(late, f"{late} ({await self._problem()})") from None
        if self._workers is not None and not self._uses_workers:
            self._set(ServerState.UP, f"up without its RPC workers ({self._workers.state_reason})")
        else:
            self._set(ServerState.UP, "up")

    async def _problem(self) -> str:
        """Why it is not up although its process runs."""
        try:
            await self.server.call("GET", "/health", timeout=PROBE_TIMEOUT)
            await self.server.describe()
        except UpstreamError as error:
            return str(error)
        return "a moment later it is"

    def _require_running(self, process: Process) -> None:
        code = process.poll()
        if code is not None:
            raise why_it_ended(code, self.log.lines(), self._run_config.topology.parent)

    # -- while it runs -------------------------------------------------------------------------------------

    async def _until_over(self, process: Process) -> None:
        """Return when the server has to be stopped; raises Failure when it has ended by itself."""
        began = looked_at_log = time.monotonic()
        while True:
            self._require_running(process)
            self._servers = [self.server, *(server for server in self._servers[1:] if not server.use.idle_seconds)]
            # Not the time that it took to load its model.
            idle = min(time.monotonic() - began, *(server.use.idle_seconds for server in self._servers))
            if self._run_config.idle_stop is not None and idle >= self._run_config.idle_stop:
                # Before anything is awaited: whoever comes now waits for the next start.
                self._needed = anyio.Event()
                self._set(ServerState.STOPPED, f"nobody has used it for {self._run_config.idle_stop:g} s")
                log.info("server %s: stopped, %s", self.name, self.server.state_reason)
                return
            if self._can_use_workers() and idle >= SWITCH_SECONDS:
                self._set(ServerState.LOADING, "its RPC workers are back")
                log.info("server %s: started again, %s", self.name, self.server.state_reason)
                return
            if time.monotonic() - looked_at_log > _KEEP_SMALL_SECONDS:
                # A disk that is full is no reason to stop it.
                with contextlib.suppress(OSError):
                    await anyio.to_thread.run_sync(self.log.keep_small)
                looked_at_log = time.monotonic()
            await anyio.sleep(_POLL_SECONDS)

    def _can_use_workers(self) -> bool:
        return self._workers is not None and not self._uses_workers and self._workers.state is WorkersState.HEALTHY

    async def _keep_state(self) -> None:
        """Probe the server as any other, the newest of those that the process is behind."""
        while True:
            server = self.server
            await run_until(partial(self._until_moved, server), partial(health.watch, server))

    async def _until_moved(self, server: LlamaServer) -> None:
        while self.server is server:
            await anyio.sleep(_POLL_SECONDS)

    # -- failures ------------------------------------------------------------------------------------------

    async def _pause(self, failure: Failure, up_since: float | None) -> None:
        restart = self._run_config.restart
        if up_since is not None and time.monotonic() - up_since >= restart.longest_pause:
            self._failures = 0
        self._failures += 1
        in_full = without_secrets(str(failure), self._secrets())
        self._say(in_full)
        times = f"failed {_times(self._failures)}"
        self._failed, self._failed_in_full = f"{failure.reason}; {times}", f"{in_full}; {times}"
        seconds = min(restart.pause * 2 ** min(self._failures - 1, 30), restart.longest_pause)
        if up_since is not None and self._failures == 1:
            # Requests that come now can wait for it.
            self._set(ServerState.LOADING, f"{self._failed}, started again in {seconds:g} s")
        else:
            self._set(ServerState.DOWN, f"{self._failed}, next try in {seconds:g} s")
            if up_since is None and self._run_config.start == "on_demand":
                self._needed = anyio.Event()
        await anyio.sleep(seconds)
        if not self._needed.is_set():
            self._set(ServerState.STOPPED, f"{self._failed}, tried again when it is needed")

    def _say(self, reason: str) -> None:
        log.error("server %s: %s", self.name, reason)
        for line in self.log.lines()[-_SHOWN_LINES:]:
            log.info("server %s said: %s", self.name, without_secrets(line, self._secrets()))

    def _secrets(self) -> list[str]:
        """What was given to the server and must not be shown, as far as it can be told from other text."""
        commands = (*self._run_config.command, "", *(self._run_config.without_workers or ()))
        values = [value for flag, value in pairwise(commands) if flag in _SECRET_FLAGS]
        values += [value for flag, _, value in (text.partition("=") for text in commands) if flag in _SECRET_FLAGS]
        # Of several keys, each one is a secret.
        parts = [part.strip() for value in values for part in (value, *value.split(","))]
        given = [*self._run_config.env.values(), *parts, self.server.config.api_key or ""]
        return [secret for secret in given if len(secret) >= _SHORTEST_SECRET]

    def _set(self, state: ServerState, reason: str) -> None:
        for server in self._servers:
            server.set_state(state, reason)


def _with_port(text: str, port: int) -> str:
    return text.replace(PORT_VARIABLE, str(port))


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times in a row"
