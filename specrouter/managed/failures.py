"""Why a server did not start, from what it printed: in one line for who runs the router, and in words for all."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from specrouter.errors import SetupError

from .processes import how_it_ended

_LONGEST = 200
_NO_PROGRAM = "its program is missing"

_PORT_TAKEN = re.compile(r"couldn't bind|address already in use", re.IGNORECASE)
_MODEL = re.compile(r"failed to load model,? '(.+)'|failed to open GGUF file '(.+?)'")
_NO_WORKER = re.compile(r"Failed to connect to ([\w.\[\]:-]+:[0-9]+)")
_NO_MEMORY = re.compile(r"out of memory|failed to allocate|unable to allocate|bad_alloc", re.IGNORECASE)
_ERROR = re.compile(r"\berror\b|\bfailed\b|\bcannot\b|\bcould not\b| E ", re.IGNORECASE)


class Failure(SetupError):
    """A server does not run. The message is for whoever runs the router, `reason` for everybody.

    What a program printed, paths and addresses are not in the `reason`.
    """

    def __init__(self, reason: str, message: str | None = None) -> None:
        super().__init__(message or reason)
        self.reason = reason


def require_program(command: Sequence[str], directory: Path, env: Mapping[str, str]) -> None:
    """Raise Failure where there is no such program."""
    program = command[0]
    if "/" not in program:
        if shutil.which(program, path=env.get("PATH")) is None:
            raise Failure(_NO_PROGRAM, f"there is no program {program} on PATH")
        return
    # As the system takes it, from the directory in which the command is run.
    file = directory / program
    if not file.exists():
        where = "" if program.startswith("/") else f" in {directory}"
        raise Failure(_NO_PROGRAM, f"there is no program {program}{where}")
    if not file.is_file() or not os.access(file, os.X_OK):
        raise Failure("its program is not an executable file", f"{program} is not an executable file")


def why_it_ended(code: int, lines: Sequence[str], directory: Path) -> Failure:
    """Why a process has ended, as far as its exit code and its last lines tell."""
    text = "\n".join(lines)
    ended = f"it ended {how_it_ended(code)}"
    if _PORT_TAKEN.search(text):
        return Failure(f"{ended}: its port is in use by another process")
    worker = _NO_WORKER.search(text)
    if worker is not None:
        return Failure(f"{ended}: an RPC worker is away", f"{ended}: no connection to the RPC worker {worker[1]}")
    if _NO_MEMORY.search(text):
        return Failure(f"{ended}: out of memory")
    model = _MODEL.search(text)
    if model is not None:
        file = model[1] or model[2]
        if not (directory / file).exists():
            return Failure(f"{ended}: its model file is missing", f"{ended}: there is no file {file}")
        return Failure(f"{ended}: it cannot load its model", f"{ended}: it cannot load the model {file}")
    said = [line.strip() for line in lines if line.strip()]
    if not said:
        return Failure(f"{ended} and printed nothing")
    telling = next((line for line in reversed(said) if _ERROR.search(line)), said[-1])
    return Failure(ended, f"{ended}: {telling[:_LONGEST]}")


def without_secrets(text: str, secrets: Sequence[str]) -> str:
    """The text, with `…` for each of the secrets."""
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, "…")
    return text
