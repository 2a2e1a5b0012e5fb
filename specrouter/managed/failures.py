"""Why a server did not start, in one line, from what it printed."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from specrouter.errors import SetupError

from .processes import how_it_ended

_LONGEST = 200

_PORT_TAKEN = re.compile(r"couldn't bind|address already in use", re.IGNORECASE)
_MODEL = re.compile(r"failed to load model,? '(.+)'|failed to open GGUF file '(.+?)'")
_NO_WORKER = re.compile(r"Failed to connect to ([\w.\[\]:-]+:[0-9]+)")
_NO_MEMORY = re.compile(r"out of memory|failed to allocate|unable to allocate|bad_alloc", re.IGNORECASE)
_ERROR = re.compile(r"\berror\b|\bfailed\b|\bcannot\b|\bcould not\b| E ", re.IGNORECASE)


def require_program(command: Sequence[str], directory: Path, env: Mapping[str, str]) -> None:
    """Raise SetupError where there is no such program."""
    program = command[0]
    if "/" not in program:
        if shutil.which(program, path=env.get("PATH")) is None:
            raise SetupError(f"there is no program {program} on PATH")
        return
    # As the system takes it, from the directory in which the command is run.
    file = directory / program
    if not file.exists():
        where = "" if program.startswith("/") else f" in {directory}"
        raise SetupError(f"there is no program {program}{where}")
    if not file.is_file() or not os.access(file, os.X_OK):
        raise SetupError(f"{program} is not an executable file")


def why_it_ended(code: int, lines: Sequence[str], directory: Path) -> str:
    """Why a process has ended, as far as its exit code and its last lines tell."""
    text = "\n".join(lines)
    ended = f"it ended {how_it_ended(code)}"
    if _PORT_TAKEN.search(text):
        return f"{ended}: its port is in use by another process"
    worker = _NO_WORKER.search(text)
    if worker is not None:
        return f"{ended}: no connection to the RPC worker {worker[1]}"
    if _NO_MEMORY.search(text):
        return f"{ended}: out of memory"
    model = _MODEL.search(text)
    if model is not None:
        file = model[1] or model[2]
        missing = not (directory / file).exists()
        return f"{ended}: {'there is no file' if missing else 'it cannot load the model'} {file}"
    said = [line.strip() for line in lines if line.strip()]
    if not said:
        return f"{ended} and printed nothing"
    telling = next((line for line in reversed(said) if _ERROR.search(line)), said[-1])
    return f"{ended}: {telling[:_LONGEST]}"


def without_secrets(text: str, secrets: Sequence[str]) -> str:
    """The text, with `…` for each of the secrets."""
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, "…")
    return text
