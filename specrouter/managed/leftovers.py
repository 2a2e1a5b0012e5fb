"""What a process of ours left running when it was killed: found by the next one, and ended.

Whoever starts a process keeps a small file about it, and holds the lock beside that file for as long as it lives
itself. A file without that is a dead one's, and its process, if there still is one, is nobody's. A number alone never
gets a signal: on Linux a process of ours is known by a random mark in its environment, which those that it starts
inherit; elsewhere by the moment at which it was started.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import filelock

from specrouter.errors import SetupError
from specrouter.held_files import PRIVATE, lock_of, pid_namespace, private_folder, remove_held, replace

from .folders import records_folder

log = logging.getLogger(__name__)

MARK = "SPECROUTER_PROCESS"
"""The variable in the environment of a process that is run by us."""

_ours: set[str] = set()
"""The marks of what this process has started: on some network file systems, its own locks do not stop it."""

_PROC = Path("/proc")
_POLL_SECONDS = 0.05

LAST_SECONDS = 30.0
"""How long a process may take to be gone when it was ended by force."""

_LOCK_SECONDS = 30.0


class Record:
    """Tells a later process of one that runs now, until `remove_held()` or the end of this process.

    Where that is not possible, the log says why. `mark` belongs into the environment of the process.
    """

    def __init__(self) -> None:
        self.mark = secrets.token_hex(16)
        self._file: Path | None = None
        self._lock: filelock.BaseFileLock | None = None

    def write(self, pid: int, name: str) -> None:
        """Keep what is needed to find the process `pid`, a group of its own, later; `name` is for people."""
        try:
            folder = private_folder(records_folder())
            file = folder / f"{self.mark}.json"
            self._lock = lock_of(file)
            # Before the file is there: without its lock it would be taken for a dead one's.
            self._lock.acquire(timeout=0)
            self._file = file
            _ours.add(self.mark)
            since = None if sys.platform == "linux" else started(pid)
            about = {"mark": self.mark, "pid": pid, "started": since, "place": _place(), "name": name}
            replace(file, json.dumps(about))
        except (OSError, filelock.Timeout) as error:
            log.warning("if this process is killed, nobody will end what it leaves running: %s", error)

    def remove(self) -> None:
        """The process has ended."""
        if self._file is None or self._lock is None:
            return
        with contextlib.suppress(OSError):
            remove_held(self._file, self._lock)
        self._file = self._lock = None
        _ours.discard(self.mark)


def end_leftovers(grace: float) -> list[str]:
    """End what killed processes of ours have left, politely, and by force after `grace` seconds.

    Returns the names of what was ended. Blocks until it is gone; where something cannot be done, the log says so.
    """
    ended = []
    try:
        with _looking() as folder:
            for file in sorted(folder.glob("*.json")):
                name = None if file.stem in _ours else _end_leftover(file, grace)
                if name is not None:
                    ended.append(name)
    except (OSError, filelock.Timeout) as error:
        log.warning("cannot find out whether a killed router left servers running: %s", error)
    return ended


def _end_leftover(file: Path, grace: float) -> str | None:
    lock = lock_of(file)
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        return None
    remove = True
    try:
        about = json.loads(file.read_bytes())
        if about["place"] != _place():
            # Only who is there can find out whether it still runs.
            remove = False
            return None
        leftover = Leftover(about["mark"], about["pid"], about["started"])
        if not leftover.end(grace):
            return None
        log.warning("ended %s, which a killed router had left running", about["name"])
        return str(about["name"])
    except SetupError as error:
        remove = False
        log.error("%s, which a killed router had left running: %s", about["name"], error)
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        log.warning("%s says nothing that can be used: %s", file, error)
        return None
    finally:
        if remove:
            remove_held(file, lock)
        else:
            lock.release()


class Leftover:
    """A process that its starter no longer cares for, with those that it has started itself."""

    def __init__(self, mark: str, pid: int, started: str | None) -> None:
        self._mark = mark
        self._pid = pid
        self._started = started

    def end(self, grace: float) -> bool:
        """End it, by force after `grace` seconds. False where nothing was left.

        Raises SetupError where it does not end.
        """
        if not self._signal(signal.SIGTERM):
            return False
        by_force = time.monotonic() + grace
        while self._signal(None):
            if time.monotonic() > by_force + LAST_SECONDS:
                raise SetupError(f"process {self._pid} does not end, not even by force")
            if time.monotonic() > by_force:
                self._signal(signal.SIGKILL)
            time.sleep(_POLL_SECONDS)
        return True

    def _signal(self, number: signal.Signals | None) -> bool:
        """Send a signal to whatever is left, or none. False if there is nothing."""
        if sys.platform == "linux":
            return sum(_signal_marked(pid, self._mark, number) for pid in _processes()) > 0
        if self._started is None or started(self._pid) != self._started:
            return False
        if number is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._pid, number)
        return True


def _processes() -> list[int]:
    return [int(entry.name) for entry in _PROC.iterdir() if entry.name.isdecimal()]


def _signal_marked(pid: int, mark: str, number: signal.Signals | None) -> bool:
    """Whether a process lives and has our mark; only then it gets the signal."""
    wanted = f"{MARK}={mark}".encode()
    try:
        if wanted not in _environment(pid):
            return False
        # Held on to before the mark is looked at again: the number could be another process's in between.
        process = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        if wanted not in _environment(pid):
            return False
        if number is not None:
            signal.pidfd_send_signal(process, number)
    except OSError:
        return False
    finally:
        os.close(process)
    return True


def _environment(pid: int) -> list[bytes]:
    """The environment that a process was started with; empty for one that has ended and waits to be reaped."""
    return (_PROC / str(pid) / "environ").read_bytes().split(b"\0")


def started(pid: int) -> str | None:
    """When a process was started, as the system writes it; None where there is none, or no way to know."""
    try:
        found = subprocess.run(  # noqa: S603
            ["ps", "-o", "lstart=", "-p", str(pid)],  # noqa: S607
            capture_output=True,
            check=False,
            env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "TZ": "UTC"},
        )
    except OSError:
        return None
    return found.stdout.decode(errors="replace").strip() or None


def _place() -> str:
    """Whose processes we see: those of this machine, and on Linux of this container."""
    return f"{socket.gethostname()} {pid_namespace() or 0}"


@contextlib.contextmanager
def _looking() -> Iterator[Path]:
    """The folder, for one process at a time: to try a lock is to hold it for a moment."""
    folder = private_folder(records_folder())
    with filelock.FileLock(folder / "looking.lock", mode=PRIVATE, timeout=_LOCK_SECONDS):
        yield folder
