"""Drafts that cross from one vocabulary to another, without any server."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specrouter.crossing import CrossingDrafter, Transcript, _whole_length, tokens_behind
from specrouter.interfaces import Drafter, Generation
from specrouter.pieces import Pieces
from specrouter.types import DraftToken, Outcome, Sampling, ServerInfo, Token

pytestmark = pytest.mark.anyio

WORDS = r" ?[a-z]+|\s+(?=\s)|."
"""Words with the space before them: no more text can change any but the last."""

SYLLABLES = r" |[a-z]{1,2}|."
"""A text that goes on may change the last one."""

BYTES = "."


class Tokenizer:
    """What a server does with texts and tokens; its ids are given out in the order in which pieces occur.

    `space` puts one before every text, as some tokenizers do. `asked` are the texts that were tokenised.
    """

    name = "memory"

    def __init__(self, pattern: str, *, space: bool = False, lower: bool = False) -> None:
        self._pattern = re.compile(pattern.encode(), re.DOTALL)
        self._ids: dict[bytes, int] = {}
        self.space = space
        self._lower = lower
        self.asked: list[str] = []
        self.info = ServerInfo(n_vocab=10_000)
        self.pieces = Pieces(self)  # type: ignore[arg-type]

    def tokens(self, text: str | bytes) -> list[Token]:
        """The tokens of a text by itself."""
        data = text.encode() if isinstance(text, str) else text
        pieces = [match[0] for match in self._pattern.finditer(data)]
        found = [Token(self._ids.setdefault(piece, len(self._ids)), piece) for piece in pieces]
        self.pieces.learn(found)
        return found

    def ids(self, text: str) -> list[int]:
        """Their ids."""
        return [token.id for token in self.tokens(text)]

    def bytes(self, ids: Sequence[int]) -> bytes:
        """What ids stand for."""
        pieces = list(self._ids)
        return b"".join(pieces[token] for token in ids)

    def text(self, ids: Sequence[int]) -> str:
        """The same as text."""
        return self.bytes(ids).decode("utf-8", "replace")

    async def tokenize(self, text: str, *, parse_special: bool = True) -> list[Token]:
        self.asked.append(text)
        return self.tokens((" " if self.space else "") + (text.lower() if self._lower else text))

    async def detokenize(self, ids: Sequence[int]) -> str:
        return self.text(ids)


class Script(Drafter):
    """Drafts the rest of one text in tokens of its own, whatever it is asked; notes the contexts."""

    def __init__(self, tokenizer: Tokenizer, text: str, prompt: str = "", probability: float | None = 0.5) -> None:
        self.tokenizer = tokenizer
        self.whole = prompt + text
        self.probability = probability
        self.contexts: list[list[int]] = []
        self.limits: list[int] = []
        self.outcomes: list[Outcome] = []
        self.closed = False

    async def draft(self, context: Sequence[int], max_tokens: int) -> AsyncGenerator[DraftToken]:
        self.contexts.append(list(context))
        self.limits.append(max_tokens)
        before = len(self.tokenizer.bytes(context)) - self.tokenizer.space
        for token in self.tokenizer.tokens(self.whole.encode()[before:])[:max_tokens]:
            yield DraftToken(token.id, token.piece, self.probability)

    def observe(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)

    async def aclose(self) -> None:
        self.closed = True


class Crossing:
    """A drafter with one tokenizer before a target with another."""

    def __init__(self, target: Tokenizer, script: Script, prompt: str = "Say") -> None:
        self.target, self.script = target, script
        self.prompt = target.ids(prompt)
        self.prompts_asked = 0

        async def own_prompt() -> list[int]:
            self.prompts_asked += 1
            return [token.id for token in await script.tokenizer.tokenize(prompt)]

        generation = Generation("route", target, self.prompt, Sampling())  # type: ignore[arg-type]
        self.drafter = CrossingDrafter(generation, script.tokenizer, own_prompt, self.start)  # type: ignore[arg-type]
        self.seen: Generation | None = None
        script.whole = prompt + script.whole

    def start(self, generation: Generation) -> Drafter | None:
        self.seen = generation
        return self.script

    async def draft(self, answer: str | Sequence[int], max_tokens: int = 100) -> list[DraftToken]:
        """What it drafts behind an answer."""
        ids = self.target.ids(answer) if isinstance(answer, str) else list(answer)
        async with aclosing(self.drafter.draft(self.prompt + ids, max_tokens)) as tokens:
            return [token async for token in tokens]


def pieces(tokens: Sequence[DraftToken]) -> list[str]:
    return [token.piece.decode("utf-8", "replace") for token in tokens]


@pytest.mark.parametrize("draft", [WORDS, SYLLABLES, BYTES])
async def test_the_target_gets_tokens_of_its_own(draft: str) -> None:
    target = Tokenizer(WORDS)
    crossing = Crossing(target, Script(Tokenizer(draft), " one two three"))
    drafted = await crossing.draft("")
    assert pieces(drafted) == [" one", " two", " three"]
    assert [token.id for token in drafted] == target.ids(" one two three")


async def test_the_drafter_sees_its_own_tokens() -> None:
    own = Tokenizer(SYLLABLES)
    crossing = Crossing(Tokenizer(WORDS), Script(own, " one two three four"))
    await crossing.draft(" one two")
    assert crossing.seen is not None
    assert (crossing.seen.target, list(crossing.seen.prompt)) == (own, own.ids("Say"))
    assert crossing.seen.vocabulary_limit == own.info.n_vocab
    assert own.text(crossing.script.contexts[0]) == "Say one two"


async def test_a_word_that_may_go_on_is_no_token_yet() -> None:
    crossing = Crossing(Tokenizer(WORDS), Script(Tokenizer(BYTES), " one two three"))
    # The six bytes that are drafted for two words are ` one t`.
    assert pieces(await crossing.draft("", 2)) == [" one"]


async def test_the_limit_counts_the_targets_tokens() -> None:
    crossing = Crossing(Tokenizer(BYTES), Script(Tokenizer(WORDS), " one two three"))
    assert "".join(pieces(await crossing.draft("", 6))) == " one t"
    assert crossing.script.limits == [6 + 4]


async def test_a_limit_of_one_is_no_standstill() -> None:
    crossing = Crossing(Tokenizer(WORDS), Script(Tokenizer(BYTES), " internationalisation"))
    assert len(await crossing.draft("", 1)) == 1


@pytest.mark.parametrize("probability", [0.5, None])
async def test_probabilities(probability: float | None) -> None:
    """Each draft token counts once: where it begins."""
    crossing = Crossing(Tokenizer(WORDS), Script(Tokenizer(SYLLABLES), " one two", probability=probability))
    expected = [0.5**3, 0.5**3] if probability else [None, None]
    assert [token.probability for token in await crossing.draft("")] == expected
    crossing = Crossing(Tokenizer(BYTES), Script(Tokenizer(WORDS), " one two", probability=probability))
    found = [token.probability for token in await crossing.draft("")]
    if probability is None:
        assert found[0] is None
    else:
        assert found == [0.5, 1, 1, 1] * 2


async def test_drafts_that_came_true_are_not_asked_about_again() -> None:
    own, target = Tokenizer(SYLLABLES), Tokenizer(WORDS)
    text = " one two three four five six seven eight nine"
    crossing = Crossing(target, Script(own, text))
    answer: list[int] = []
    while target.text(answer) != text:
        answer += [token.id for token in await crossing.draft(answer, 2)]
    assert own.asked == ["Say"]
    assert crossing.prompts_asked == 1


async def test_a_miss_is_told_in_the_drafters_tokens() -> None:
    own = Tokenizer(SYLLABLES)
    crossing = Crossing(Tokenizer(WORDS), Script(own, " one two three"))
    await crossing.draft("")
    crossing.script.whole = "Say one ten more words"
    assert pieces(await crossing.draft(" one ten")) == [" more", " words"]
    assert own.text(crossing.script.contexts[-1]) == "Say one ten"


async def test_only_the_end_of_a_long_answer_is_tokenised() -> None:
    own = Tokenizer(SYLLABLES)
    long = " word" * 5000
    crossing = Crossing(Tokenizer(WORDS), Script(own, long + " end"))
    await crossing.draft(long)
    own.asked.clear()
    crossing.script.whole = f"Say{long} other end"
    assert pieces(await crossing.draft(long + " other")) == [" end"]
    assert own.asked
    assert max(len(text) for text in own.asked) < 100
    assert crossing.script.contexts[-1] == own.ids(f"Say{long} other")


async def test_a_part_of_a_draft_token_is_a_draft_for_the_rest() -> None:
    own = Tokenizer(r" one two|.")
    crossing = Crossing(Tokenizer(WORDS), Script(own, " one two x"))
    assert pieces(await crossing.draft("", 1)) == [" one"]
    own.asked.clear()
    assert pieces(await crossing.draft(" one", 1)) == [" two"]
    assert own.asked == []


async def test_a_context_that_ends_within_a_character() -> None:
    target, own = Tokenizer(BYTES), Tokenizer(WORDS)
    crossing = Crossing(target, Script(own, " a\u65e5b"))
    ids = target.ids(" a\u65e5")
    drafted = await crossing.draft(ids[:-1])
    assert b"".join(token.piece for token in drafted) == "\u65e5b".encode()[2:]
    assert own.text(crossing.script.contexts[-1]) == "Say a"


async def test_a_draft_that_contradicts_the_character_under_way_ends() -> None:
    target = Tokenizer(BYTES)
    crossing = Crossing(target, Script(Tokenizer(WORDS), " ax"))
    assert await crossing.draft(target.ids(" a\u65e5")[:-1]) == []


async def test_characters_of_several_draft_tokens() -> None:
    crossing = Crossing(Tokenizer(r"(?:[\xc0-\xff][\x80-\xbf]*)|."), Script(Tokenizer(BYTES), "\u65e5\u672c\u8a9e"))
    assert pieces(await crossing.draft("")) == ["\u65e5", "\u672c", "\u8a9e"]


async def test_a_space_before_every_text_is_not_part_of_it() -> None:
    own, target = Tokenizer(WORDS, space=True), Tokenizer(WORDS, space=True)
    crossing = Crossing(target, Script(own, " one two three"))
    drafted = await crossing.draft(" one")
    assert [token.id for token in drafted] == target.ids(" two three")
    assert crossing.script.contexts[-1] == own.ids(" Say one")


@pytest.mark.parametrize("side", ["draft", "target"])
async def test_tokens_that_do_not_add_up_to_the_text(side: str) -> None:
    own, target = Tokenizer(WORDS, lower=side == "draft"), Tokenizer(WORDS, lower=side == "target")
    crossing = Crossing(target, Script(own, " ONE TWO THREE"))
    assert await crossing.draft(" ONE") == []


async def test_outcomes_are_counted_in_the_drafters_tokens() -> None:
    crossing = Crossing(Tokenizer(WORDS), Script(Tokenizer(SYLLABLES), " one two three"))
    await crossing.draft("")
    crossing.drafter.observe(Outcome(drafted=2, accepted=1))
    crossing.drafter.observe(Outcome(drafted=1, accepted=1))
    # Three for ` one`, and one that is wrong; what was drafted behind that is dropped.
    assert crossing.script.outcomes == [Outcome(4, 3)]


async def test_nothing_to_draft() -> None:
    """As for a prompt that the draft model's context does not hold."""
    crossing = Crossing(Tokenizer(WORDS), Script(Tokenizer(WORDS), " one"))
    crossing.drafter._start = lambda generation: None
    assert await crossing.draft("") == []
    assert await crossing.draft(" one") == []
    assert crossing.prompts_asked == 1
    await crossing.drafter.aclose()
    assert not crossing.script.closed


async def test_closing() -> None:
    crossing = Crossing(Tokenizer(WORDS), Script(Tokenizer(WORDS), " one"))
    await crossing.draft("")
    await crossing.drafter.aclose()
    assert crossing.script.closed


async def test_a_fault_of_the_drafter_comes_out() -> None:
    class Broken(Script):
        async def draft(self, context: Sequence[int], max_tokens: int) -> AsyncGenerator[DraftToken]:
            yield DraftToken(0, b" one")
            raise RuntimeError("no more")

    crossing = Crossing(Tokenizer(WORDS), Broken(Tokenizer(WORDS), " one"))
    with pytest.raises(RuntimeError, match="no more"):
        await crossing.draft("")


# -- for any text ------------------------------------------------------------------------------------------

ANY_TEXT = st.text(st.sampled_from("ab \n\u00e9\u65e5\U0001f600"), max_size=30)
PATTERNS = st.sampled_from([WORDS, SYLLABLES, BYTES])


@given(before=ANY_TEXT, text=ANY_TEXT, pattern=PATTERNS, space=st.booleans())
async def test_tokens_add_up(before: str, text: str, pattern: str, space: bool) -> None:
    tokenizer = Tokenizer(pattern, space=space)
    known = [token.piece for token in tokenizer.tokens(before)]
    found: Any = await tokens_behind(tokenizer, known, text.encode(), revisable=8)  # type: ignore[arg-type]
    if found is None:
        assert space
        return
    replaced, tokens = found
    kept = known[: len(known) - replaced]
    assert b"".join(kept) + b"".join(token.piece for token in tokens) == (before + text).encode()


@given(parts=st.lists(ANY_TEXT, max_size=6), pattern=PATTERNS)
async def test_a_transcript_is_the_text(parts: list[str], pattern: str) -> None:
    """Growing, cut back, or another one: what the draft model continues is the answer's text."""
    own = Tokenizer(pattern)
    transcript = Transcript(own, own.ids("Say"))  # type: ignore[arg-type]
    answer = ""
    for number, part in enumerate(parts):
        answer = answer[: len(answer) // 2] + part if number % 3 == 2 else answer + part
        opening = await transcript.open_at(answer.encode())
        assert opening is not None
        assert own.text(opening.context).encode() + opening.said == f"Say{answer}".encode()


@given(context=ANY_TEXT, rest=ANY_TEXT, draft=PATTERNS, target=PATTERNS, limit=st.integers(1, 12))
async def test_a_draft_is_the_beginning_of_the_text(
    context: str, rest: str, draft: str, target: str, limit: int
) -> None:
    crossing = Crossing(Tokenizer(target), Script(Tokenizer(draft), context + rest))
    drafted = await crossing.draft(context, limit)
    text = b"".join(token.piece for token in drafted)
    assert rest.encode().startswith(text)
    assert len(drafted) <= limit
    assert all(token.probability is not None and 0 < token.probability <= 1 for token in drafted)
    # Nothing is lost on the way: what is not said yet is said behind it.
    if text and text != rest.encode():
        ids = crossing.target.ids(context) + [token.id for token in drafted]
        assert await crossing.draft(ids, limit)


@given(st.text(max_size=8), st.integers(0, 3))
def test_whole_characters(text: str, cut: int) -> None:
    data = text.encode()
    data = data[: len(data) - cut] if cut else data
    whole = _whole_length(data)
    assert data[:whole] == data.decode("utf-8", "ignore").encode()
