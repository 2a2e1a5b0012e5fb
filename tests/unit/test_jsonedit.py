"""Members are changed and every other byte stays."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specrouter.jsonedit import ModelRenamer, loads, rename_model, set_members

KEYS = st.sampled_from(["model", "stream", "messages", "response", "message", 'a"b', "{", "\\", "ü", ""]) | st.text(
    max_size=3
)
SPACE = st.text(" \t\r\n", max_size=2)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
    | st.sampled_from(['","model":"x', "}{", "]", '\\"', ":", "\\u0022"])
)


@st.composite
def written_string(draw: Any, value: str) -> str:
    """A string in one of its spellings."""
    if draw(st.booleans()):
        return json.dumps(value, ensure_ascii=draw(st.booleans()))
    return '"' + "".join(f"\\u{unit:04x}" for unit in _utf16(value)) + '"'


def _utf16(value: str) -> list[int]:
    encoded = value.encode("utf-16-be", "surrogatepass")
    return [int.from_bytes(encoded[index : index + 2]) for index in range(0, len(encoded), 2)]


@st.composite
def written(draw: Any, depth: int = 2) -> str:
    """JSON with odd spacing, escapes and duplicate keys."""
    kind = draw(st.sampled_from(["scalar", "array", "object"] if depth else ["scalar"]))
    if kind == "object":
        return draw(written_object(depth))
    if kind == "array":
        items = draw(st.lists(written(depth - 1), max_size=3))
        return "[" + ",".join(draw(SPACE) + item + draw(SPACE) for item in items) + draw(SPACE) + "]"
    value = draw(SCALARS)
    return draw(written_string(value)) if isinstance(value, str) else json.dumps(value)


@st.composite
def written_object(draw: Any, depth: int = 2) -> str:
    """An object, at the outermost level too."""
    parts = []
    for key in draw(st.lists(KEYS, max_size=4)):
        parts.append(
            draw(SPACE) + draw(written_string(key)) + draw(SPACE) + ":" + draw(SPACE) + draw(written(depth - 1))
        )
    inner = ",".join(part + draw(SPACE) for part in parts)
    return draw(SPACE) + "{" + (inner or draw(SPACE)) + "}" + draw(SPACE)


def pairs(text: bytes) -> list[tuple[str, Any]]:
    """The members in order, duplicates included."""
    found = json.loads(text, object_pairs_hook=lambda members: members)
    assert isinstance(found, list)
    return found


@given(written_object(), st.dictionaries(KEYS, SCALARS, max_size=3))
def test_set_members(text: str, members: dict[str, Any]) -> None:
    before = pairs(text.encode())
    after = pairs(set_members(text.encode(), {key: json.dumps(value).encode() for key, value in members.items()}))
    kept = [(key, members.get(key, value)) for key, value in before]
    added = [(key, value) for key, value in members.items() if key not in dict(before)]
    assert after == kept + added


@given(written_object())
def test_setting_nothing_changes_nothing(text: str) -> None:
    assert set_members(text.encode(), {}) == text.encode()


@given(written_object(), st.text(max_size=8))
def test_what_is_set_back_is_the_same_text(text: str, name: str) -> None:
    """A value replaced and put back: no other byte moved."""
    spelled = text.encode().replace(b'"model"', b'"x"').replace(b"\\", b"/")
    try:
        json.loads(spelled)
    except ValueError:
        return
    original = spelled.rstrip()[:-1].rstrip()
    comma = b"" if original.endswith(b"{") else b","
    with_model = original + comma + b'"model":"old"}'
    changed = set_members(with_model, {"model": json.dumps(name).encode()})
    assert set_members(changed, {"model": b'"old"'}) == with_model


@given(written_object(), st.text(max_size=8))
def test_rename_model(text: str, name: str) -> None:
    def renamed(members: list[tuple[str, Any]], inside: tuple[str, ...]) -> list[tuple[str, Any]]:
        changed = []
        for key, value in members:
            if key == "model":
                value = name
            elif key in inside and isinstance(value, Members):
                value = Members(renamed(value, ()))
            changed.append((key, value))
        return changed

    class Members(list[Any]):
        """The members of an object, told apart from an array."""

    def parsed(data: bytes) -> list[tuple[str, Any]]:
        return json.loads(data, object_pairs_hook=Members)  # type: ignore[no-any-return]

    plain = text.encode().replace(b"\\u006d", b"m")
    after = parsed(rename_model(plain, json.dumps(name).encode()))
    expected = renamed(parsed(plain), ("response", "message"))
    if b'"model"' in plain:
        assert after == expected
    else:
        assert rename_model(plain, b'"x"') == plain


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b'{"model":"a"}', b'{"model":"X"}'),
        (b'{"model" :\n "a" , "n":1.50}', b'{"model" :\n "X" , "n":1.50}'),
        (b'{"mod\\u0065l":"a"}', b'{"mod\\u0065l":"X"}'),
        (b'{"model":"a","model":{"model":1}}', b'{"model":"X","model":"X"}'),
        (b'{"a":{"model":"in"},"b":[{"model":"in"}]}', b'{"a":{"model":"in"},"b":[{"model":"in"}],"model":"X"}'),
        (b'{"s":"\\",\\"model\\":\\"no\\"","model":7}', b'{"s":"\\",\\"model\\":\\"no\\"","model":"X"}'),
        (b'{"s":"\\\\","model":null}', b'{"s":"\\\\","model":"X"}'),
        (b"{}", b'{"model":"X"}'),
        (b" { \n} ", b' {"model":"X"} '),
        (b'{"a":"}"}\n', b'{"a":"}","model":"X"}\n'),
    ],
)
def test_examples(text: bytes, expected: bytes) -> None:
    assert b"".join(set_members(text, {"model": b'"X"'}).split()) == b"".join(expected.split())
    assert json.loads(set_members(text, {"model": b'"X"'}))["model"] == "X"


@pytest.mark.parametrize("text", [b"[DONE]", b'["model"]', b'"model"', b"", b"7", b'{"a":{"model":"b"}}'])
def test_nothing_to_rename(text: bytes) -> None:
    assert rename_model(text, b'"X"') == text


def test_a_large_string_takes_no_time() -> None:
    """A message may hold an image of many megabytes, and everybody waits while it is looked through."""
    text = b'{"image":"' + b"A" * 8_000_000 + b'","model":"a"}'
    started = time.perf_counter()
    assert set_members(text, {"model": b'"X"'}).endswith(b',"model":"X"}')
    assert time.perf_counter() - started < 3


_EVENTS = (
    '{"a":[{"b":"TEXT"}],"model":"m","object":"chunk"}',
    '{"a":"TEXT","model":"m","object":"chunk"}',
    '{"a":"TEXT","model": "m","object":"chunk","timings":{"n":1}}',
    '{"a":{"x":"TEXT","model":"m","object":"chunk"}}',
    '{"a":{"x":"TEXT","model":"m","object":"chunk"},"model":"m"}',
    '{"model":"m","object":"chunk"}',
    '{"model":"m","a":"TEXT","model":"m","object":"chunk"}',
    '{"response":{"a":"TEXT","model":"m"},"type":"done"}',
    '{"response":{"a":1,"model":"m","object":"chunk"},"model":"m","object":"chunk"}',
    '{"a":["TEXT","model"],"object":"chunk"}',
    '[{"a":"TEXT","model":"m","object":"chunk"}]',
    '{"a":"TEXT"}',
)
_SAID = ("Hi", ',\\"model\\":\\"m\\",\\"object\\":\\"chunk\\"}', "\\\\", ",", '\\"model')


@given(st.lists(st.tuples(st.sampled_from(_EVENTS), st.sampled_from(_SAID)), max_size=8))
def test_a_stream_is_renamed_like_each_of_its_events(events: list[tuple[str, str]]) -> None:
    renamer = ModelRenamer(b'"fast"')
    for event, said in events:
        text = event.replace("TEXT", said).encode()
        json.loads(text)
        assert renamer.rename(text) == rename_model(text, b'"fast"')


# -- loads -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "why"),
    [(b"{", "property name"), (b"\xff", "decode"), (b"[" * 100_000, "nested too deeply"), ("9" * 5000, "digits")],
)
def test_what_cannot_be_read_is_a_value_error(text: bytes | str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        loads(text)
