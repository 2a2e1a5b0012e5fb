"""Change single values in JSON text and leave every other byte as it was.

A proxy that parses and writes JSON again changes more than it means to: number formats, key order, duplicate
keys, escapes. These functions find the place and replace just that.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

# A string, or a character that changes the depth or ends a key or a value.
# Written so that no byte is looked at twice: a message may hold an image of many megabytes.
_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[{}\[\],:]', re.DOTALL)


def loads(text: bytes | str) -> Any:
    """`json.loads`. Raises ValueError for whatever cannot be read, also for what is nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def set_members(text: bytes, members: Mapping[str, bytes]) -> bytes:
    """Set members of a JSON object: replace each key's value, every occurrence, or add it at the end.

    `text` must be a valid JSON object; the values of `members` are JSON text.
    """
    missing = dict(members)
    parts: list[bytes] = []
    position = 0
    for key, start, end in _members(text):
        if key in members:
            parts += [text[position:start], members[key]]
            position = end
            missing.pop(key, None)
    parts.append(text[position:])
    changed = b"".join(parts)
    if missing:
        brace = changed.rindex(b"}")
        body = changed[:brace].rstrip()
        comma = b"" if body.endswith(b"{") else b","
        added = b",".join(json.dumps(key).encode() + b":" + value for key, value in missing.items())
        changed = body + comma + added + changed[brace:]
    return changed


def rename_model(text: bytes, name: bytes) -> bytes:
    """Replace the value of the member `model` of a JSON object by `name` (JSON text), if it has one.

    Also within its `response` and `message`, where some APIs repeat it. Text that is not an object comes back as it is.
    """
    if b'"model"' not in text or not text.lstrip().startswith(b"{"):
        return text
    return _renamed(text, name, ("response", "message"))


def _renamed(text: bytes, name: bytes, inside: tuple[str, ...]) -> bytes:
    parts: list[bytes] = []
    position = 0
    for key, start, end in _members(text):
        if key == "model":
            parts += [text[position:start], name]
        elif key in inside and text[start : start + 1] == b"{":
            parts += [text[position:start], _renamed(text[start:end], name, ())]
        else:
            continue
        position = end
    parts.append(text[position:])
    return b"".join(parts)


class ModelRenamer:
    """`rename_model` for the events of one stream, which mostly end in the same bytes from `model` on."""

    def __init__(self, name: bytes) -> None:
        self._name = name
        self._ending = b""
        self._renamed = b""

    def rename(self, text: bytes) -> bytes:
        """The same as `rename_model`, for valid JSON without escapes in the names of members."""
        start = text.find(b'"model"')
        if start < 0:
            return text
        # Nothing before it has that name. Behind a comma the quote begins a key: if it ended a string, what follows
        # would be no JSON. And the same bytes from there to the end close the same brackets as they did when it was
        # known to be a member of the outermost object.
        if text[start - 1] == 0x2C and len(text) - start == len(self._ending) and text.endswith(self._ending):
            return text[:start] + self._renamed
        self._remember(text[start:])
        return rename_model(text, self._name)

    def _remember(self, ending: bytes) -> None:
        try:
            loads(b"{" + ending)
        except ValueError:
            # Not a member of the outermost object.
            return
        self._ending, self._renamed = ending, rename_model(b"{" + ending, self._name)[1:]


def _members(text: bytes) -> Iterator[tuple[str, int, int]]:
    """Key, start and end of each value of the object `text`, outermost level only."""
    depth = 0
    key: str | None = None
    last_string: tuple[int, int] | None = None
    start = 0
    for match in _TOKEN.finditer(text):
        kind = text[match.start()]
        if kind == 0x22:  # "
            last_string = match.span()
        elif kind in b"{[":
            depth += 1
        elif kind == 0x3A and depth == 1 and key is None and last_string is not None:  # :
            key = _string(text[slice(*last_string)])
            start = match.end()
        elif kind in b"}],":
            if depth == 1 and key is not None:
                value = text[start : match.start()]
                leading = len(value) - len(value.lstrip())
                yield key, start + leading, start + len(value.rstrip())
                key = None
            if kind != 0x2C:  # ,
                depth -= 1
                if depth == 0:
                    return


def _string(text: bytes) -> str:
    if b"\\" not in text:
        return text[1:-1].decode("utf-8", "replace")
    return str(json.loads(text))
