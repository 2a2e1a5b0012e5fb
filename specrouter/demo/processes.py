"""Start llama-servers and be sure that they end."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import anyio.to_thread
import httpx

from specrouter.errors import SetupError
from specrouter.managed.processes import HOST, Process, free_port, how_it_ended, port_is_free

_POLL_S = 0.05
_ATTEMPTS = 3
_SHOWN_LOG_LINES = 12
_PORT_TAKEN = re.compile(r"couldn't bind|address already in use", re.IGNORECASE)


class ManagedServer:
    """A llama-server on a loopback port that runs as long as a `with` or `async with` block.

    `command` is the program with its flags, without host and port. The port is a free one unless given. On
    Linux `cores` pins the server to these cores; elsewhere it has no effect. `log` gets all that the server
    prints.

    The block begins when the server answers `/health`, after `deadline` seconds at most, and raises
    SetupError with the end of the log otherwise. When it ends, however it ends, the server and all its
    children are gone. If this process is killed, Linux kills the server too; use it from a thread that lives
    at least as long, since Linux takes the end of the starting thread for the end of the parent.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        name: str,
        log: Path,
        port: int | None = None,
        cores: Sequence[int] | None = None,
        deadline: float = 120.0,
        grace: float = 5.0,
    ) -> None:
        self.name = name
        self.log = log
        self.port = port or 0
        self._command = list(command)
        self._fixed_port = port is not None
        self._cores = cores
        self._deadline = deadline
        self._grace = grace
        self._process: Process | None = None

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    @property
    def pid(self) -> int:
        """The server's process id, which is its process group's too. Only while it runs."""
        assert self._process is not None, "the server was not started"
        return self._process.pid

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        try:
            for attempt in range(_ATTEMPTS):
                self._spawn()
                if await anyio.to_thread.run_sync(self._wait, attempt, abandon_on_cancel=True):
                    break
        except BaseException:
            self.stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Blocks the event loop on purpose: an await could be cancelled and leave a server behind.
        self.stop()

    def start(self) -> None:
        """Start and wait until healthy; `with` does it for you."""
        try:
            for attempt in range(_ATTEMPTS):
                self._spawn()
                if self._wait(attempt):
                    break
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End the server and its children: politely, then by force after the grace time.

        Harmless when they are gone.
        """
        process, self._process = self._process, None
        if process is not None:
            process.stop(self._grace)

    def kill(self) -> None:
        """End the server as a crash would."""
        if self._process is not None:
            self._process.kill()

    def restart(self) -> None:
        """Stop, and start again on the same port."""
        self.stop()
        self._fixed_port = True
        self.start()

    def _spawn(self) -> None:
        if self._fixed_port:
            _require_free(self.port, self.name)
        else:
            self.port = free_port()
        command = [*self._command, "--host", HOST, "--port", str(self.port)]
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("wb") as log:
            self._process = Process(command, name=self.name, output=log, cores=self._cores)

    def _wait(self, attempt: int) -> bool:
        """True when healthy, False when another process took the port and another attempt is due."""
        process = self._process
        assert process is not None
        give_up = time.monotonic() + self._deadline
        # trust_env: a proxy for the outside world must not be asked for a loopback address.
        with httpx.Client(trust_env=False, timeout=5) as client:
            while time.monotonic() < give_up:
                healthy = _is_healthy(client, self.url)
                code = process.poll()
                if code is not None:
                    if _PORT_TAKEN.search(self._log_text()) and not self._fixed_port and attempt + 1 < _ATTEMPTS:
                        self.stop()
                        return False
                    raise SetupError(f"{self.name} ended {how_it_ended(code)} at its start.{self._log_end()}")
                if healthy:
                    return True
                time.sleep(_POLL_S)
        raise SetupError(f"{self.name} is not ready after {self._deadline:g} s.{self._log_end()}")

    def _log_text(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    def _log_end(self) -> str:
        lines = self._log_text().splitlines()[-_SHOWN_LOG_LINES:]
        shown = "\n  ".join(lines) if lines else "(empty)"
        return f" The end of its log, {self.log}:\n  {shown}"


def _is_healthy(client: httpx.Client, url: str) -> bool:
    try:
        return client.get(f"{url}/health").status_code == httpx.codes.OK
    except httpx.TransportError:
        return False


def _require_free(port: int, name: str) -> None:
    if not port_is_free(port):
        raise SetupError(f"cannot start {name}: port {port} of {HOST} is in use")
