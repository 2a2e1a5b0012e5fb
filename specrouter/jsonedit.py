"""Change single values in JSON text and leave every other byte as it was.

A proxy that parses and writes JSON again changes more than it means to: number formats, key order, duplicate
keys, escapes. These functions find the place and replace just that.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping

# A string, or a character that changes the depth or ends a key or a value.
# Written so that no byte is looked at twice: a message may hold an image of many megabytes.
_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[{}\[\],:]', re.DOTALL)


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


def rename_model(text: bytes, name: bytes, *, inside: tuple[str, ...] = ("response", "message")) -> bytes:
    """Replace the value of the member `model` of a JSON object by `name` (JSON text), if it has one.

    Also within the objects named by `inside`, where some APIs repeat it. Text that is not an object comes back
    as it is.
    """
    if b'"model"' not in text or not text.lstrip().startswith(b"{"):
        return text
    parts: list[bytes] = []
    position = 0
    for key, start, end in _members(text):
        if key == "model":
            parts += [text[position:start], name]
        elif key in inside and text[start : start + 1] == b"{":
            parts += [text[position:start], rename_model(text[start:end], name, inside=())]
        else:
            continue
        position = end
    parts.append(text[position:])
    return b"".join(parts)


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
