"""However the network cuts a stream, the events are the same and none of its bytes is lost."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specrouter.sse import EventSplitter, payload

LINES = st.sampled_from(
    [b"data: {}", b"data:x", b"data: a\xf0\x9f\x91\xa9b", b": comment", b":", b"event: x", b"data: [DONE]", b"id:1"]
)
EVENTS = st.lists(LINES, min_size=1, max_size=3)


def cut(stream: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(stream) + 1) for place in places), len(stream)]
    return [stream[start:end] for start, end in pairwise(edges)]


@given(st.lists(EVENTS, max_size=6), st.sampled_from([b"\n", b"\r\n", b"\r"]), st.lists(st.integers(0, 1000)))
def test_any_cut(events: list[list[bytes]], end: bytes, places: list[int]) -> None:
    whole = [end.join(lines) + end + end for lines in events]
    splitter = EventSplitter()
    found = [event for chunk in cut(b"".join(whole), places) for event in splitter.feed(chunk)]
    rest = splitter.flush()
    # A CR at the very end may be half of a CRLF: only the end of the stream tells.
    assert [*found, rest] == [*whole, b""] if rest == b"" else [*found, rest] == whole
    assert rest == b"" or end == b"\r"


@given(st.binary(max_size=60) | st.text("\r\n:d", max_size=30).map(str.encode), st.lists(st.integers(0, 100)))
def test_no_byte_is_lost(stream: bytes, places: list[int]) -> None:
    splitter = EventSplitter()
    found = [event for chunk in cut(stream, places) for event in splitter.feed(chunk)]
    assert b"".join(found) + splitter.flush() == stream


def test_an_event_comes_as_soon_as_it_is_whole() -> None:
    splitter = EventSplitter()
    assert splitter.feed(b"data: 1\n") == []
    assert splitter.feed(b"\n") == [b"data: 1\n\n"]
    assert splitter.feed(b"data: 2\r\n\r\n") == [b"data: 2\r\n\r\n"]
    assert splitter.feed(b"data: 3") == []
    assert splitter.flush() == b"data: 3"
    assert splitter.flush() == b""


@pytest.mark.parametrize(
    ("event", "data"),
    [
        (b"data: {}\n\n", b"{}"),
        (b"data:{}\n\n", b"{}"),
        (b"data:  {}\n\n", b" {}"),
        (b"data: {}\r\n\r\n", b"{}"),
        (b"data: a\ndata: b\n\n", b"a\nb"),
        (b"event: x\ndata: a\n\n", b"a"),
        (b"data: a\nid: 1\n\n", b"a"),
        (b": comment\n\n", None),
        (b"event: x\n\n", None),
        (b"\n", None),
    ],
)
def test_payload(event: bytes, data: bytes | None) -> None:
    assert payload(event) == data
