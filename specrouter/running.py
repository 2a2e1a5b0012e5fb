"""Which routers run on this machine: each keeps a small file about itself, for the commands that look for it.

Such a file is worth something only while its writer holds the lock beside it. A router that was killed leaves its file
without that, and the next command that looks removes it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
import signal
import time
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import filelock
import platformdirs

from .errors import SetupError
from .held_files import PRIVATE, lock_of, pid_namespace, private_folder, remove_held, replace

log = logging.getLogger(__name__)

_POLL_SECONDS = 0.05
_COMMAND_SECONDS = 10.0
"""How long a command waits for another one that looks at the same files."""


@dataclass(frozen=True, slots=True)
class ReloadOutcome:
    """What became of a reload: what has `changed`, or the `problems` for which the topology was left as it was."""

    changed: str = ""
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RunServer:
    """A server that a router runs itself: its `state` (a value of ServerState) with the reason, and its address."""

    state: str
    reason: str
    url: str


@dataclass(frozen=True, slots=True)
class Status:
    """What a router serves. `revision` counts the topologies that it has served, this one included.

    `begun` and `ended` count reloads; `outcome` is that of the last one that has ended. `servers` are those that it
    runs itself, by name.
    """

    revision: int = 1
    begun: int = 0
    ended: int = 0
    outcome: ReloadOutcome | None = None
    servers: Mapping[str, RunServer] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RunningRouter:
    """A router that runs on this machine, as its file says. `started` is in seconds since 1970.

    `pid` is its process in `pid_namespace`, which is None on systems that have only one.
    """

    file: Path
    pid: int
    pid_namespace: int | None
    topology: Path
    url: str
    started: float
    status: Status


class Announcement:
    """Tells other processes of a router for as long as the context lasts.

    Where that is not possible, the log says why, and the router serves all the same.
    """

    def __init__(self, topology: Path, url: str) -> None:
        self._about = {
            "pid": os.getpid(),
            "pid_namespace": pid_namespace(),
            # Links are followed when it is read: they may lead elsewhere by then.
            "topology": os.path.abspath(topology),  # noqa: PTH100
            "url": url,
            "started": time.time(),
        }
        self._file: Path | None = None
        self._lock: filelock.BaseFileLock | None = None

    def __enter__(self) -> Self:
        try:
            file = _directory() / f"{secrets.token_hex(8)}.json"
            self._lock = lock_of(file)
            # Before the file is there: without its lock it would be taken for a dead router's.
            self._lock.acquire(timeout=0)
            self._file = file
        except (OSError, filelock.Timeout) as error:
            log.warning("`specrouter reload` will not find this router: %s", error)
        self.update(Status())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None and self._lock is not None:
            with contextlib.suppress(OSError):
                remove_held(self._file, self._lock)

    def update(self, status: Status) -> None:
        """Say what is served now."""
        if self._file is None:
            return
        try:
            replace(self._file, json.dumps({**self._about, "status": asdict(status)}))
        except OSError as error:
            log.warning("cannot write what `specrouter reload` wants to know: %s", error)


def find(topology: Path) -> list[RunningRouter]:
    """The routers on this machine that serve a topology file. Raises SetupError where it cannot be found out."""
    with _looking() as directory:
        found = [_read(file) for file in sorted(directory.glob("*.json")) if _is_held(file)]
    wanted = topology.resolve()
    return [router for router in found if router is not None and router.topology.resolve() == wanted]


def reload(topology: Path, *, seconds: float = 30.0) -> list[tuple[RunningRouter, ReloadOutcome]]:
    """Make all routers of a topology file read it again, and wait up to `seconds` for what comes of it.

    Raises SetupError where there is none, or no way to tell them.
    """
    hangup = getattr(signal, "SIGHUP", None)
    if hangup is None:
        raise SetupError("this system has no signal for a reload (SIGHUP): restart the router instead")
    # In another container, the number would be somebody else's.
    here = [router for router in find(topology) if router.pid_namespace == pid_namespace()]
    told = [router for router in here if _send(router, hangup)]
    if not told:
        raise SetupError(f"no router serves {topology} here (start one with: specrouter serve {topology})")
    deadline = time.monotonic() + seconds
    return [(router, _outcome(router, deadline)) for router in told]


def _outcome(router: RunningRouter, deadline: float) -> ReloadOutcome:
    # A reload that was under way when we looked may have read the file before it was as it is.
    wanted = router.status.begun + 1
    while True:
        now = _read(router.file)
        if now is not None and now.status.ended >= wanted and now.status.outcome is not None:
            return now.status.outcome
        if now is None and not router.file.exists():
            return ReloadOutcome(problems=("it has ended",))
        if time.monotonic() > deadline:
            return ReloadOutcome(problems=("it has not said in time what came of it, its log may",))
        time.sleep(_POLL_SECONDS)


def _send(router: RunningRouter, number: signal.Signals) -> bool:
    """Send a signal to a router. False where it has ended; no other process ever gets it."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(_looking())
        try:
            # Held on to before the lock is looked at: the number could be another process's in between.
            process = _held_process(router.pid)
            if process is not None:
                stack.callback(os.close, process)
            if not _is_held(router.file):
                return False
            if process is not None:
                signal.pidfd_send_signal(process, number)
            else:
                os.kill(router.pid, number)
        except ProcessLookupError:
            return False
    return True


def _held_process(pid: int) -> int | None:
    """A descriptor of a process, which never comes to mean another one; None where the system has no such thing.

    Raises ProcessLookupError.
    """
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        raise
    except (AttributeError, OSError):
        return None


@contextlib.contextmanager
def _looking() -> Iterator[Path]:
    """The directory, for one command at a time: to try a lock is to hold it for a moment."""
    try:
        directory = _directory()
        lock = filelock.FileLock(directory / "commands.lock", mode=PRIVATE, timeout=_COMMAND_SECONDS)
        lock.acquire()
    except (OSError, filelock.Timeout) as error:
        raise SetupError(f"cannot find out which routers run: {error}") from error
    try:
        yield directory
    finally:
        lock.release()


def _is_held(file: Path) -> bool:
    """Whether the router of this file runs; if it does not, the file is removed."""
    lock = lock_of(file)
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        return True
    remove_held(file, lock)
    return False


def _read(file: Path) -> RunningRouter | None:
    """What a file says; None where it is gone, or another version of specrouter has written it."""
    try:
        said: dict[str, Any] = json.loads(file.read_bytes())
        status = dict(said["status"])
        outcome = status.pop("outcome")
        servers = {name: RunServer(**server) for name, server in status.pop("servers").items()}
        if outcome is not None:
            outcome = ReloadOutcome(outcome["changed"], tuple(outcome["problems"]))
        return RunningRouter(
            file=file,
            pid=said["pid"],
            pid_namespace=said["pid_namespace"],
            topology=Path(said["topology"]),
            url=said["url"],
            started=said["started"],
            status=Status(**status, outcome=outcome, servers=servers),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _directory() -> Path:
    """The directory of these files, made where it is missing. Raises OSError where it is not the user's own."""
    with warnings.catch_warnings():
        # Where the system has no such directory it takes one in /tmp, and says so each time.
        warnings.simplefilter("ignore")
        directory = platformdirs.user_runtime_path("specrouter", appauthor=False)
    return private_folder(directory)
