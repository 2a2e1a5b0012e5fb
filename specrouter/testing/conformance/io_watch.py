"""Notices when a plain call touches network, files or processes (PEP 578, audit hooks)."""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Iterator

_OUTSIDE = {
    "os.fork": "forks",
    "os.posix_spawn": "starts a process",
    "os.system": "starts a process",
    "socket.bind": "opens a port",
    "socket.connect": "connects to a server",
    "socket.getaddrinfo": "looks up a host",
    "socket.gethostbyname": "looks up a host",
    "socket.sendto": "sends to the network",
    "subprocess.Popen": "starts a process",
}

_CODE = (".py", ".pyc", ".so", ".pyd")
"""Files that an import opens."""

_seen: dict[int, list[str]] = {}


@contextlib.contextmanager
def io_of_this_thread(*, files: bool) -> Iterator[list[str]]:
    """Collects what the calls within the context do outside the program, in words; with `files`, also open files."""
    _install()
    found = _seen[threading.get_ident()] = []
    try:
        yield found
    finally:
        del _seen[threading.get_ident()]
        if not files:
            found[:] = [what for what in found if not what.startswith("opens")]


@functools.cache
def _install() -> None:
    # It stays for good; without a context it looks at one number per event.
    sys.addaudithook(_note)


def _note(event: str, arguments: tuple[object, ...]) -> None:
    found = _seen.get(threading.get_ident())
    if found is None:
        return
    if event in _OUTSIDE:
        found.append(_OUTSIDE[event])
    elif event == "open" and not str(arguments[0]).endswith(_CODE):
        found.append(f"opens {arguments[0]}")
