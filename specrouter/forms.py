"""Bodies of `multipart/form-data`, as uploads of audio have them: which model they name, and how to change that."""

from __future__ import annotations

import email.message
import email.parser
from dataclasses import dataclass

from .errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class Form:
    """A form as it came. `model` is what its field of that name says, None without one."""

    content: bytes
    model: str | None
    _places: tuple[tuple[int, int], ...]

    def with_model(self, name: str) -> bytes:
        """The form with another name in every field `model`; every other byte as it was."""
        parts, position = [], 0
        for start, end in self._places:
            parts += [self.content[position:start], name.encode()]
            position = end
        return b"".join([*parts, self.content[position:]])


def is_form(content_type: str) -> bool:
    """Whether a body with this content type is a form with parts."""
    return content_type.partition(";")[0].strip().lower() == "multipart/form-data"


def read_form(content: bytes, content_type: str) -> Form:
    """Find the field `model`. Raises InvalidRequest for what is no form."""
    message = email.message.Message()
    message["content-type"] = content_type
    boundary = message.get_boundary()
    if not boundary:
        raise InvalidRequest("the content type multipart/form-data names no boundary")
    delimiter = b"--" + boundary.encode("utf-8", "surrogateescape")
    if not content.startswith(delimiter):
        raise InvalidRequest("the form does not begin with its boundary")
    places, models = [], []
    position = len(delimiter)
    while not content.startswith(b"--", position):
        end = content.find(b"\r\n" + delimiter, position)
        head = content.find(b"\r\n\r\n", position)
        if end < 0 or head < 0 or head > end:
            raise InvalidRequest("the form ends within a part")
        if _name_of(content[position:head]) == "model":
            places.append((head + 4, end))
            models.append(content[head + 4 : end])
        position = end + 2 + len(delimiter)
    try:
        model = models[0].decode() if models else None
    except UnicodeDecodeError as error:
        raise InvalidRequest("`model` in the form is not UTF-8", param="model") from error
    return Form(content, model, tuple(places))


def _name_of(head: bytes) -> str | None:
    headers = email.parser.BytesHeaderParser().parsebytes(head.lstrip(b"\r\n") + b"\r\n\r\n")
    name = headers.get_param("name", header="content-disposition")
    return name if isinstance(name, str) else None
