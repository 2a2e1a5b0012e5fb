"""Files with one key each, as containers and service managers hand out secrets."""

from __future__ import annotations

import codecs
import re
import stat
from pathlib import Path

from .document import Document, Findings, KeyPath
from .sections import KEY_PATTERN, KEY_WORDS

MAX_BYTES = 4096
"""The limit of a file with a key."""


class KeyFiles:
    """Reads the files that a topology names and reports what is wrong with them, never what is in them.

    `keys`: where the topology names a file → the key in it.
    """

    def __init__(self, document: Document, findings: Findings) -> None:
        self.keys: dict[KeyPath, str] = {}
        self._document = document
        self._findings = findings

    def read(self, path: KeyPath, given: object) -> None:
        """Read the file named at `path`, relative to the topology. Leaves what is no text to the schema."""
        if not isinstance(given, str) or not self._findings.is_fine(path):
            return
        try:
            self.keys[path] = read_key(self._document.file.parent / given)
        except FileNotFoundError:
            beside = "" if Path(given).is_absolute() else f" beside {self._document.file.name}"
            self._findings.report(path, f"there is no file {self._document.written(path)}{beside}")
        except OSError as error:
            self._findings.report(path, f"{self._document.written(path)} cannot be read: {error.strerror}")
        except ValueError as error:
            self._findings.report(path, f"{self._document.written(path)} {error}")


def read_key(file: Path) -> str:
    """The key in a file, without white space around it.

    Raises OSError where the file cannot be read, else ValueError that says what is wrong without the content.
    """
    try:
        mode = file.stat().st_mode
    except ValueError:
        raise ValueError("is not a possible path") from None
    if stat.S_ISDIR(mode):
        raise ValueError("is a directory (name the file with the key)")
    if not stat.S_ISREG(mode):
        # Anything else could keep the reader waiting, or be empty when it is read anew.
        raise ValueError("is not a regular file")
    with file.open("rb") as stream:
        raw = stream.read(MAX_BYTES + 1)
    if len(raw) > MAX_BYTES:
        raise ValueError(f"is larger than {MAX_BYTES // 1024} KiB, which no key needs")
    try:
        key = raw.removeprefix(codecs.BOM_UTF8).decode().strip()
    except UnicodeDecodeError:
        raise ValueError("is not UTF-8 text, must hold one key") from None
    if not key:
        raise ValueError("is empty, must hold one key")
    if len(key.splitlines()) > 1:
        raise ValueError("has more than one line, must hold one key")
    if not re.search(KEY_PATTERN, key):
        raise ValueError(f"holds no possible key: it {KEY_WORDS}")
    return key
