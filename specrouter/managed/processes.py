"""A command in a process group of its own, which ends with whoever started it."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import anyio

from specrouter.errors import SetupError

from .leftovers import LAST_SECONDS, MARK, Record

log = logging.getLogger(__name__)

HOST = "127.0.0.1"
_POLL_SECONDS = 0.05


class Process:
    """A running command, with all that it starts itself.

    `output` gets all that it prints, to both outputs. `env` is its whole environment, by default that of this process.
    On Linux `cores` pins it to these cores; elsewhere that has no effect. `name` is what people call it.
    Raises SetupError where it cannot be started.

    If this process is killed, Linux kills the command too, and what that had started is ended by the next process
    that looks for leftovers. Start it from a thread that lives at least as long: Linux takes the end of the starting
    thread for the end of the parent.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        name: str,
        output: BinaryIO,
        env: Mapping[str, str] | None = None,
        directory: Path | None = None,
        cores: Sequence[int] | None = None,
    ) -> None:
        self._name = name
        self._record = Record()
        options: dict[str, Any] = {"start_new_session": True}
        program, command = command[0], list(command)
        if sys.platform == "win32":
            options = {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}
        elif sys.platform == "linux":
            pinned = ",".join(map(str, cores)) if cores else "-"
            launcher = Path(__file__).with_name("launcher.py")
            command = [sys.executable, "-I", "-S", str(launcher), str(os.getpid()), pinned, *command]
        environment = {**(os.environ if env is None else env), MARK: self._record.mark}
        try:
            # The pipe carries nothing: it ends with this process (see specrouter.demo.xllamacpp_server).
            self._process = subprocess.Popen(  # noqa: S603
                command,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=directory,
                **options,
            )
        except (OSError, ValueError) as error:
            raise SetupError(f"cannot start {program}: {getattr(error, 'strerror', None) or error}") from error
        self._record.write(self.pid, name)

    @property
    def pid(self) -> int:
        """The command's process id, which is its process group's too."""
        return self._process.pid

    def poll(self) -> int | None:
        """How it has ended, negative for a signal; None while it runs."""
        if self._process.returncode is not None or not hasattr(os, "waitid"):
            return self._process.poll()
        # Not reaped before `kill`: until then the number of its group is nobody else's.
        found = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if found is None:
            return None
        return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status

    def stop(self, grace: float) -> None:
        """End it and what it started: politely, then by force after `grace` seconds. Harmless when it is gone."""
        give_up = time.monotonic() + grace
        try:
            self._signal("terminate")
            while self.poll() is None and time.monotonic() < give_up:
                time.sleep(_POLL_SECONDS)
        finally:
            self.kill()

    async def astop(self, grace: float) -> None:
        """The same without blocking. Cancelled, it ends by force at once.

        What the system does not let go of, as while it waits for a disk, is left behind; the log says so.
        """
        try:
            self._signal("terminate")
            await self._until_ended(grace)
        finally:
            self._signal("kill")
            with anyio.CancelScope(shield=True):
                await self._until_ended(LAST_SECONDS)
            if self.poll() is None:
                log.error("%s (process %d) does not end, not even by force: it is left behind", self._name, self.pid)
            else:
                self._forget()

    def kill(self) -> None:
        """End it and what it started by force. Harmless when it is gone."""
        self._signal("kill")
        self._forget()

    async def _until_ended(self, seconds: float) -> None:
        with anyio.move_on_after(seconds):
            while self.poll() is None:
                await anyio.sleep(_POLL_SECONDS)

    def _forget(self) -> None:
        self._process.wait()
        if self._process.stdin:
            self._process.stdin.close()
        self._record.remove()

    def _signal(self, how: str) -> None:
        if self._process.returncode is not None and hasattr(os, "waitid"):
            return
        if sys.platform == "win32":
            self._process.kill() if how == "kill" else self._process.terminate()
            return
        # The group outlives its leader while it has members. macOS says EPERM for a group of zombies.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL if how == "kill" else signal.SIGTERM)


def how_it_ended(code: int) -> str:
    """An exit code in words."""
    if code >= 0:
        return f"with exit code {code}"
    try:
        return f"by {signal.Signals(-code).name}"
    except ValueError:
        return f"by signal {-code}"


def free_port() -> int:
    """A loopback port that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def port_is_free(port: int, host: str = HOST) -> bool:
    """Whether a server could listen on this port now."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        if sys.platform != "win32":  # there it would allow to take over a port that is in use
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True
