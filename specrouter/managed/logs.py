"""What a server prints: a file of bounded size that only its user can read, and how to look at it."""

from __future__ import annotations

import os
import shutil
import time
from collections import deque
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

from specrouter.config.words import did_you_mean, listed
from specrouter.errors import SetupError
from specrouter.held_files import private_folder

from .folders import log_file, servers_with_logs

MOST_BYTES = 8 * 1024 * 1024
"""Of a log. When it is full it becomes the previous one, of which there is one."""

_PRIVATE = 0o600
_LOOKED_AT_BYTES = 64 * 1024
_POLL_SECONDS = 0.2


class ServerLog:
    """The log of a server. The process writes to the file by itself, so that it never waits for the router."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._begin = 0

    def open(self, headline: str) -> BinaryIO:
        """The file for a process to write to, behind a line that says what begins. Raises OSError."""
        private_folder(self.file.parent)
        self.keep_small()
        stream = open(self.file, "ab", opener=_private)  # noqa: SIM115  (the caller closes it)
        stream.write(f"--- {datetime.now(UTC):%Y-%m-%d %H:%M:%S}Z {headline}\n".encode())
        stream.flush()
        self._begin = stream.tell()
        return stream

    def keep_small(self) -> None:
        """Begin a new log where this one is full. What a process writes at that very moment may be lost."""
        if not self.file.exists() or self.file.stat().st_size <= MOST_BYTES:
            return
        previous = previous_of(self.file)
        # Not renamed: the process goes on writing to this file.
        with self.file.open("rb") as source, open(previous, "wb", opener=_private) as copy:
            shutil.copyfileobj(source, copy)
        os.truncate(self.file, 0)
        self._begin = 0

    def lines(self) -> list[str]:
        """The latest lines of the process that was started last."""
        try:
            with self.file.open("rb") as stream:
                size = stream.seek(0, os.SEEK_END)
                stream.seek(max(self._begin, size - _LOOKED_AT_BYTES))
                return stream.read().decode(errors="replace").splitlines()
        except OSError:
            return []


def find_log(topology: Path, server: str) -> Path:
    """The log of a server of a topology file, which need not be in order. Raises SetupError where there is none."""
    file = log_file(topology, server)
    if file.exists():
        return file
    known = servers_with_logs(topology)
    if not known:
        raise SetupError(f"no router of this user has run a server of {topology} here (see `run` in the topology)")
    hint = f"{did_you_mean(server, known)}there are logs of: {listed(known)}"
    raise SetupError(f"there is no log of a server {server!r} of {topology} ({hint})")


def previous_of(file: Path) -> Path:
    """The log before this one."""
    return file.with_name(f"{file.name}.1")


def last_lines(file: Path, count: int) -> tuple[list[str], int]:
    """The last lines of a log and, where those are fewer, of the one before it; and the position behind them.

    Raises OSError.
    """
    lines: deque[str] = deque(maxlen=count)
    previous = previous_of(file)
    if previous.exists():
        lines.extend(_text(previous.read_bytes()).splitlines())
    content = file.read_bytes()
    lines.extend(_text(content).splitlines())
    return list(lines), len(content)


def follow(file: Path, position: int) -> Iterator[str]:
    """What is written to a log behind a position, as it comes, for ever. Raises OSError."""
    with file.open("rb") as stream:
        stream.seek(position)
        while True:
            if file.stat().st_size < stream.tell():
                stream.seek(0)
            new = stream.read(_LOOKED_AT_BYTES)
            if new:
                yield _text(new)
            else:
                time.sleep(_POLL_SECONDS)


def _text(content: bytes) -> str:
    return content.decode(errors="replace")


def _private(file: str, flags: int) -> int:
    return os.open(file, flags, _PRIVATE)
