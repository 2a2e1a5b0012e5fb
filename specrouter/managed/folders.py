"""Where logs of servers, and what is needed to find them again, are kept: folders of the user's own."""

from __future__ import annotations

import hashlib
import os
import urllib.parse
from pathlib import Path

import platformdirs


def state_folder() -> Path:
    """What outlives the router, on Linux below `~/.local/state`."""
    return platformdirs.user_state_path("specrouter", appauthor=False)


def records_folder() -> Path:
    """A file for each process that runs."""
    return state_folder() / "processes"


def logs_folder(topology: Path) -> Path:
    """The logs of the servers of a topology file. Two files of the same name have different ones."""
    file = topology.resolve()
    place = hashlib.sha256(os.fsencode(file)).hexdigest()[:10]
    return state_folder() / "logs" / f"{file.stem}-{place}"


def log_file(topology: Path, server: str) -> Path:
    """The log of a server. Its name is quoted: it may have slashes."""
    return logs_folder(topology) / f"{urllib.parse.quote(server, safe='')}.log"


def servers_with_logs(topology: Path) -> list[str]:
    """The servers that have been run here for a topology file."""
    return sorted(urllib.parse.unquote(file.stem) for file in logs_folder(topology).glob("*.log"))
