"""Start llama-servers and be sure that they end."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import anyio.to_thread
import httpx

from specrouter.errors import SetupError

_HOST = "127.0.0.1"
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
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://{_HOST}:{self.port}"

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
        if process is None:
            return
        try:
            _signal_group(process, "terminate")
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(self._grace)
        finally:
            _signal_group(process, "kill")
            process.wait()
            if process.stdin:
                process.stdin.close()

    def kill(self) -> None:
        """End the server as a crash would."""
        if self._process is not None:
            _signal_group(self._process, "kill")
            self._process.wait()

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
        command = [*self._command, "--host", _HOST, "--port", str(self.port)]
        options: dict[str, Any] = {"start_new_session": True}
        if sys.platform == "win32":
            options = {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}
        elif sys.platform == "linux":
            cores = ",".join(map(str, self._cores)) if self._cores else "-"
            launcher = Path(__file__).with_name("launcher.py")
            command = [sys.executable, "-I", "-S", str(launcher), str(os.getpid()), cores, *command]
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("wb") as log:
            try:
                # The pipe carries nothing: it ends with this process (see specrouter.demo.xllamacpp_server).
                self._process = subprocess.Popen(  # noqa: S603
                    command, stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT, **options
                )
            except OSError as error:
                raise SetupError(f"cannot start {self._command[0]}: {error.strerror}") from error

    def _wait(self, attempt: int) -> bool:
        """True when healthy, False when another process took the port and another attempt is due."""
        process = self._process
        assert process is not None
        give_up = time.monotonic() + self._deadline
        # trust_env: a proxy for the outside world must not be asked for a loopback address.
        with httpx.Client(trust_env=False, timeout=5) as client:
            while time.monotonic() < give_up:
                healthy = _is_healthy(client, self.url)
                if process.poll() is not None:
                    if _PORT_TAKEN.search(self._log_text()) and not self._fixed_port and attempt + 1 < _ATTEMPTS:
                        self.stop()
                        return False
                    raise SetupError(f"{self.name} ended with code {process.returncode} at its start.{self._log_end()}")
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


def free_port() -> int:
    """A loopback port that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def port_is_free(port: int) -> bool:
    """Whether a server could listen on this loopback port now."""
    with socket.socket() as probe:
        if sys.platform != "win32":  # there it would allow to take over a port that is in use
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((_HOST, port))
        except OSError:
            return False
    return True


def _require_free(port: int, name: str) -> None:
    if not port_is_free(port):
        raise SetupError(f"cannot start {name}: port {port} of {_HOST} is in use")


def _signal_group(process: subprocess.Popen[bytes], how: str) -> None:
    if sys.platform == "win32":
        process.kill() if how == "kill" else process.terminate()
        return
    # The group outlives its leader while it has members. macOS says EPERM for a group of zombies.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL if how == "kill" else signal.SIGTERM)
