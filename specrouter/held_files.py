"""Small files that say something of a process, and hold good for as long as it holds the lock beside them."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import filelock

PRIVATE = 0o600


def private_folder(folder: Path) -> Path:
    """The folder, made where it is missing. Raises OSError where others could write to it."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if hasattr(os, "getuid"):
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
            raise PermissionError(f"{folder} must be a directory that only you can write to")
    return folder


def lock_of(file: Path) -> filelock.BaseFileLock:
    """The lock beside a file. Whoever lets it go may be another thread than the one that took it."""
    return filelock.FileLock(file.with_suffix(".lock"), mode=PRIVATE, thread_local=False)


def remove_held(file: Path, lock: filelock.BaseFileLock) -> None:
    """Remove a file and its lock, which we hold."""
    file.unlink(missing_ok=True)
    lock.release()
    Path(lock.lock_file).unlink(missing_ok=True)


def replace(file: Path, text: str) -> None:
    """Write a file so that nobody sees half of it."""
    new = file.with_suffix(".new")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, PRIVATE)
    with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
        stream.write(text)
    new.replace(file)


def pid_namespace() -> int | None:
    """Which processes a number can mean here; None on systems that have only one set of them."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino  # noqa: PTH116  (what the link leads to is no path)
    except OSError:
        return None
