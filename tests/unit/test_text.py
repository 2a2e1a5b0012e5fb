"""What a client sees of a text with stop strings, however tokens divide it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specrouter.text import TextWriter


@pytest.mark.parametrize(
    ("stops", "tokens", "shown", "stopped_by"),
    [
        ([], ["ab", "c"], ["ab", "c"], None),
        ([""], ["ab"], ["ab"], None),
        (["b"], ["abc", "d"], ["a"], "b"),
        (["bc"], ["a", "b", "c"], ["a", "", ""], "bc"),
        # Nothing of a text is shown whose end may become a stop string.
        (["b!"], ["ab", "c"], ["", "abc"], None),
        (["aab"], ["a", "a", "a", "b"], ["", "", "", "a"], "aab"),
        # The earliest one; of two at one place the first that the request names.
        (["cd", "bc"], ["abcd"], ["a"], "bc"),
        (["ab", "abc"], ["abc"], [""], "ab"),
        (["abc", "ab"], ["abc"], [""], "abc"),
        (["字"], ["漢", "字", "x"], ["漢", ""], "字"),
    ],
)
def test_token_by_token(stops: list[str], tokens: list[str], shown: list[str], stopped_by: str | None) -> None:
    writer = TextWriter(stops)
    found = []
    for token in tokens:
        found.append(writer.push(token))
        if writer.stopped_by is not None:
            break
    assert (found, writer.stopped_by) == (shown, stopped_by)


def test_what_was_held_is_shown_when_the_text_ends() -> None:
    writer = TextWriter(["stop"])
    assert writer.push("a sto") == ""
    assert writer.held == "a sto"
    assert writer.finish() == "a sto"
    assert writer.finish() == ""


TEXT = st.text("ab!", max_size=12)


@given(st.lists(TEXT, max_size=8), st.lists(st.text("ab!", max_size=4), max_size=3))
def test_every_division_into_tokens_shows_the_same(tokens: list[str], stops: list[str]) -> None:
    """The text up to the earliest stop string, found token by token as llama-server looks for it."""
    writer = TextWriter(stops)
    shown = ""
    for index, token in enumerate(tokens):
        shown += writer.push(token)
        so_far = "".join(tokens[: index + 1])
        places = [so_far.index(stop) for stop in stops if stop and stop in so_far]
        if places:
            assert shown == so_far[: min(places)]
            assert so_far[min(places) :].startswith(writer.stopped_by or "?")
            return
        assert writer.stopped_by is None
        assert shown + writer.held == so_far
        # Nothing of a stop string is ever shown.
        assert not any(shown.endswith(stop[:n]) for stop in stops for n in range(1, len(stop)))
    assert shown + writer.finish() == "".join(tokens)
