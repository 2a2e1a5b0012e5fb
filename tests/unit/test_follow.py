"""Which tokens the target has said, from what its stream shows."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specrouter.follow import Follower
from specrouter.testing import ToyVocabulary
from specrouter.types import Channel, Delta, DraftToken

VOCABULARY = ToyVocabulary()
PROMPT = VOCABULARY.tokenize("<s> hello")


def drafted(text: str) -> list[DraftToken]:
    """A draft of the tokens of a text."""
    return [DraftToken(token, VOCABULARY.pieces[token], 0.9) for token in VOCABULARY.tokenize(text)]


def following(text: str) -> Follower:
    """A follower with that text as its pending draft."""
    follower = Follower(PROMPT)
    for token in drafted(text):
        assert follower.add_draft(token)
    return follower


def said(follower: Follower) -> str:
    """The text of the confirmed tokens behind the prompt."""
    assert follower.confirmed[: len(PROMPT)] == PROMPT
    return VOCABULARY.detokenize(follower.confirmed[len(PROMPT) :]).decode()


def show(follower: Follower, text: str, channel: Channel = Channel.CONTENT) -> None:
    """Follow a text, and name what the follower does not know."""
    unknown = follower.take(Delta(text, channel))
    if unknown:
        follower.resolve(VOCABULARY.tokenize(unknown.decode("utf-8", "replace")))


def pending(follower: Follower) -> str:
    return VOCABULARY.detokenize([token.id for token in follower.pending]).decode()


def test_text_confirms_the_draft() -> None:
    follower = following(" bako deli mimi")
    show(follower, " bako de")
    assert (said(follower), pending(follower)) == (" bako", " deli mimi")
    show(follower, "li")
    assert (said(follower), pending(follower)) == (" bako deli", " mimi")
    assert [token.piece for token in follower.hits] == [b" bako", b" deli"]
    assert not follower.misses
    assert not follower.is_lost


def test_ids_confirm_the_draft() -> None:
    follower = following(" bako deli mimi")
    assert follower.take(Delta(" bako deli", token_ids=VOCABULARY.tokenize(" bako deli"))) == b""
    assert (said(follower), pending(follower)) == (" bako deli", " mimi")
    assert len(follower.hits) == 2


def test_a_miss_by_ids() -> None:
    follower = following(" bako deli mimi")
    follower.take(Delta(" bako koko", token_ids=VOCABULARY.tokenize(" bako koko")))
    assert (said(follower), pending(follower)) == (" bako koko", "")
    assert [token.piece for token in follower.misses] == [b" deli"]
    assert follower.is_lost
    assert follower.generation == 1


def test_a_miss_by_text() -> None:
    follower = following(" bako deli mimi")
    assert follower.take(Delta(" bako koko")) == b" koko"
    follower.resolve(VOCABULARY.tokenize(" koko"))
    assert said(follower) == " bako koko"
    assert follower.is_lost
    assert [token.piece for token in follower.misses] == [b" deli"]
    # What the lost draft still brings is not wanted.
    assert not follower.add_draft(drafted(" mimi")[0])
    assert follower.restart() == follower.confirmed
    assert not follower.is_lost
    assert follower.add_draft(drafted(" mimi")[0])


def test_a_miss_within_a_piece() -> None:
    """What was shown of the piece is part of the unknown text."""
    follower = following(" bako deli")
    assert follower.take(Delta(" ba")) == b""
    assert follower.take(Delta("de koko")) == b" bade koko"
    follower.resolve(VOCABULARY.tokenize(" bade koko"))
    assert said(follower) == " bade koko"


def test_the_draft_lags() -> None:
    """The target is ahead: the draft has to say the same before it counts as ahead."""
    follower = Follower(PROMPT)
    show(follower, " bako deli")
    assert len(follower.behind) == 2
    for token in drafted(" bako deli mimi"):
        assert follower.add_draft(token)
    assert not follower.behind
    assert (said(follower), pending(follower)) == (" bako deli", " mimi")


def test_the_lagging_draft_is_wrong() -> None:
    follower = Follower(PROMPT)
    show(follower, " bako deli")
    assert follower.add_draft(drafted(" bako")[0])
    assert not follower.add_draft(drafted(" koko")[0])
    assert follower.is_lost
    assert follower.restart() == PROMPT + VOCABULARY.tokenize(" bako deli")


def test_a_restart_continues_the_pending_draft() -> None:
    follower = following(" bako deli")
    show(follower, " bako")
    assert follower.restart() == PROMPT + VOCABULARY.tokenize(" bako deli")


def test_characters_of_several_tokens() -> None:
    follower = following("👩‍👩 é")
    assert len(follower.pending) > 8
    show(follower, "👩")
    assert said(follower) == "👩"
    show(follower, "\u200d")
    show(follower, "👩 é")
    assert said(follower) == "👩‍👩 é"
    assert not follower.misses


def test_a_wrong_byte_within_a_character() -> None:
    follower = following("é bako")
    show(follower, "è koko")
    assert said(follower) == "è koko"
    assert len(follower.misses) == 1


def test_markup_is_skipped_when_the_text_goes_on_behind_it() -> None:
    follower = following("<think> bako</think> deli")
    show(follower, " bako", Channel.REASONING)
    show(follower, " deli", Channel.CONTENT)
    assert said(follower) == "<think> bako</think> deli"
    assert not follower.misses


def test_markup_is_not_skipped_for_any_text() -> None:
    follower = following("<think> bako")
    show(follower, " koko")
    assert said(follower) == " koko"
    assert follower.is_lost


def test_words_are_not_skipped() -> None:
    """Only markup is invisible: a word in the way is a wrong word."""
    follower = following(" bako deli mimi")
    show(follower, " deli")
    assert said(follower) == " deli"
    assert follower.is_lost


def test_a_change_of_channel_skips_whatever_names_it() -> None:
    """The head of a tool call is text that the target's parser swallows."""
    follower = following(' bako<tool_call>{"name":"f bako","arguments": deli')
    show(follower, " bako")
    show(follower, "f bako", Channel.TOOL_CALL)
    assert said(follower).endswith('"f bako')
    show(follower, " deli", Channel.TOOL_CALL)
    assert said(follower).endswith(',"arguments": deli')
    assert not follower.misses


def test_nothing_to_follow() -> None:
    follower = following(" bako")
    assert follower.take(Delta()) == b""
    assert follower.take(Delta(finished=True)) == b""
    assert pending(follower) == " bako"


WORDS = st.sampled_from([" bako", " deli", "é", "👩‍👩", " mimi", "\n", "x", "日本", "<", " bade"])
TEXTS = st.lists(WORDS, max_size=12).map("".join)


@st.composite
def schedule(draw: Any) -> tuple[str, list[str], list[list[DraftToken]]]:
    """A text, its deltas, and before each delta the tokens that some drafter brings."""
    text = draw(TEXTS)
    places = sorted(draw(st.lists(st.integers(0, len(text)), max_size=8)))
    edges = [0, *places, len(text)]
    deltas = [text[start:end] for start, end in pairwise(edges)]
    drafts = [drafted(draw(TEXTS)) if draw(st.booleans()) else drafted(text[start:]) for start in edges[:-1]]
    return text, deltas, drafts


@given(schedule(), st.data())
def test_any_split_and_any_draft(
    plan: tuple[str, Sequence[str], Sequence[list[DraftToken]]], data: st.DataObject
) -> None:
    """Whatever is drafted and however the text arrives, the confirmed tokens are that text."""
    text, deltas, drafts = plan
    follower = Follower(PROMPT)
    for delta, draft in zip(deltas, drafts, strict=True):
        if data.draw(st.booleans()):
            follower.restart()
        for token in draft[: data.draw(st.integers(0, 6))]:
            follower.add_draft(token)
        show(follower, delta)
    # A piece half seen is not confirmed yet: its visible part is what is missing.
    confirmed = VOCABULARY.detokenize(follower.confirmed[len(PROMPT) :])
    whole = text.encode()
    assert whole.startswith(confirmed)
    missing = whole[len(confirmed) :]
    rest = b"".join(token.piece for token in follower.pending)
    assert rest.startswith(missing)
    assert not missing or len(missing) < len(follower.pending[0].piece)


@pytest.mark.parametrize("channel", Channel)
def test_unknown_text_is_returned_at_once_without_a_draft(channel: Channel) -> None:
    follower = Follower(PROMPT)
    assert follower.take(Delta("é bako", channel)) == "é bako".encode()
