"""Forms with parts: the model is found and changed, and nothing else."""

from __future__ import annotations

import contextlib

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specrouter.errors import InvalidRequest
from specrouter.forms import is_form, read_form

FILE = b'RIFF\r\n--not-the-boundary\r\n\r\nname="model"\x00\xff'


def encoded(fields: dict[str, str], file: bytes = FILE) -> tuple[bytes, str]:
    """A form as httpx writes it."""
    request = httpx.Request("POST", "http://x", data=fields, files={"file": ("a.wav", file, "audio/wav")})
    return request.read(), request.headers["content-type"]


def decoded(content: bytes, content_type: str) -> list[bytes]:
    boundary = content_type.partition("boundary=")[2].encode()
    return content.split(b"--" + boundary)


@given(st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), max_size=20), st.binary(max_size=100))
def test_only_the_model_changes(model: str, file: bytes) -> None:
    content, content_type = encoded({"model": model, "language": "de"}, file)
    form = read_form(content, content_type)
    assert form.model == model
    before, after = decoded(content, content_type), decoded(form.with_model("whisper"), content_type)
    assert read_form(form.with_model("whisper"), content_type).model == "whisper"
    assert [i for i, (old, new) in enumerate(zip(before, after, strict=True)) if old != new] in ([], [1])
    assert form.with_model(model) == content


def test_no_model() -> None:
    content, content_type = encoded({"language": "de"})
    form = read_form(content, content_type)
    assert form.model is None
    assert form.with_model("whisper") == content


def test_every_model_changes() -> None:
    content = b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\none\r\n'
    content += b"--b\r\ncontent-disposition: form-data; name=model\r\n\r\ntwo\r\n--b--\r\n"
    form = read_form(content, 'multipart/form-data; boundary="b"')
    assert form.model == "one"
    assert form.with_model("x").count(b"\r\n\r\nx\r\n") == 2


@pytest.mark.parametrize(
    ("content", "content_type", "message"),
    [
        (b"--b--", "multipart/form-data", "names no boundary"),
        (b"{}", "multipart/form-data; boundary=b", "does not begin with its boundary"),
        (b"", "multipart/form-data; boundary=b", "does not begin with its boundary"),
        (b"--b\r\n", "multipart/form-data; boundary=b", "ends within a part"),
        (b"--b\r\n\r\nx\r\n--b", "multipart/form-data; boundary=b", "ends within a part"),
        (
            b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\n\xff\r\n--b--',
            "multipart/form-data; boundary=b",
            "not UTF-8",
        ),
    ],
)
def test_what_is_no_form(content: bytes, content_type: str, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        read_form(content, content_type)


@given(st.binary(max_size=80))
def test_no_bytes_break_it(content: bytes) -> None:
    for text in (content, b"--b" + content, b"--b\r\n" + content + b"\r\n--b--"):
        with contextlib.suppress(InvalidRequest):
            read_form(text, "multipart/form-data; boundary=b")


@pytest.mark.parametrize(
    ("content_type", "expected"),
    [
        ("multipart/form-data; boundary=b", True),
        ("Multipart/Form-Data", True),
        ("application/json", False),
        ("", False),
    ],
)
def test_is_form(content_type: str, expected: bool) -> None:
    assert is_form(content_type) is expected
