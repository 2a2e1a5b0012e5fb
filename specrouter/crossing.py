"""Drafts that cross from one vocabulary to another as text.

The draft model sees the text of the target's context in tokens of its own, and what it drafts is text to the target:
the target's tokenizer says which tokens that text is. A draft token counts where its text agrees exactly, as in
"string-level exact match" of Timor et al., "Accelerating LLM Inference with Lossless Speculative Decoding Algorithms
for Heterogeneous Vocabularies" (arXiv 2502.05202). The target verifies ids of its own, so nothing here can alter its
answer: a token that is wrong costs its place in the draft.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from itertools import accumulate

from .interfaces import Drafter, Generation
from .types import DraftToken, Outcome, Token
from .upstream import LlamaServer

_LEAD_IN = 16
"""Tokens before a text that are tokenised with it, so that it is split as it would be within the whole."""

_REVISABLE = 8
"""Tokens at the end of a text that may be other ones when the text goes on."""

_UNSETTLED = 3
"""Tokens at the end of a drafted text that may be other ones when it goes on, where no word has begun behind them."""

_LOOKAHEAD = 4
"""Tokens to draft beyond those wanted: what makes the last of them certain."""

_WHITE = b" \t\r\n"


async def tokens_behind(
    server: LlamaServer, before: Sequence[bytes], text: bytes, *, revisable: int, parse_special: bool = True
) -> tuple[int, list[Token]] | None:
    """The tokens of `text` behind tokens with the pieces `before`, of which up to `revisable` may be replaced.

    Returns how many of those at the end are replaced, and the tokens that follow the others. None where the server's
    tokens do not add up to the text, as those of a tokenizer that normalises it. `text` ends with a whole
    character; `parse_special` as in `LlamaServer.tokenize`. Costs one question or two, however long the text before.
    Raises UpstreamError.
    """
    lead_in = b"".join(before[-_LEAD_IN:])
    start = next((place for place in range(len(lead_in)) if not _continues_character(lead_in[place])), len(lead_in))
    whole = (lead_in[start:] + text).decode("utf-8", "replace")
    tokens = await server.tokenize(whole, parse_special=parse_special)
    # From the end, where a space that some tokenizers put before every text does no harm.
    starts: dict[int, int] = {}
    distance = 0
    for index in range(len(tokens) - 1, -1, -1):
        distance += len(tokens[index].piece)
        starts.setdefault(distance, index)
    for replaced in range(min(revisable, len(before), _LEAD_IN - 1), -1, -1):
        wanted = b"".join(before[len(before) - replaced :]) + text
        found = tokens[starts[len(wanted)] :] if len(wanted) in starts else []
        if _text_of(found) == wanted:
            return replaced, found
    # The target said part of what is one token in a text of its own.
    alone = await server.tokenize(text.decode("utf-8", "replace"), parse_special=parse_special)
    return (0, alone) if _text_of(alone) == text else None


@dataclass(frozen=True, slots=True)
class Opening:
    """Where the draft model takes up a text.

    `context` are the ids it continues. `said` is the beginning of its next tokens' text that is confirmed already.
    `drafted` are tokens behind `context` that it has drafted before, and that agree with `said`.
    """

    context: Sequence[int]
    said: bytes
    drafted: Sequence[DraftToken]


class Transcript:
    """One answer in tokens of the draft model: those it drafted itself, and those of text that it did not foresee."""

    def __init__(self, server: LlamaServer, prompt: Sequence[int]) -> None:
        """`prompt` is the request's prompt in tokens of `server`, which drafts."""
        self._server = server
        self._prompt = list(prompt)
        self._tokens: list[DraftToken] = []
        self._text = bytearray()

    def add(self, token: DraftToken) -> None:
        """The draft model said this behind everything before."""
        self._tokens.append(token)
        self._text += token.piece

    async def open_at(self, answer: bytes) -> Opening | None:
        """The opening behind an answer, None where its tokens do not add up to it. Raises UpstreamError.

        Asks the server only about text that is new to it, and not at all where its own draft came true.
        """
        same = _common_length(self._text, answer)
        ends = list(accumulate(len(token.piece) for token in self._tokens))
        if same < len(answer):
            kept = bisect_right(ends, same)
            self._cut(kept, ends[kept - 1] if kept else 0)
            if not await self._append(answer[len(self._text) :]):
                return None
            return Opening(self._ids(len(self._tokens)), answer[len(self._text) :], [])
        # A token of which a part is confirmed is a draft for the rest.
        kept = bisect_right(ends, same)
        return Opening(self._ids(kept), answer[ends[kept - 1] if kept else 0 :], self._tokens[kept:])

    def _ids(self, count: int) -> list[int]:
        return self._prompt + [token.id for token in self._tokens[:count]]

    def _cut(self, tokens: int, length: int) -> None:
        del self._tokens[tokens:]
        del self._text[length:]

    async def _append(self, text: bytes) -> bool:
        """Add the whole characters of a text."""
        whole = text[: _whole_length(text)]
        if not whole:
            return True
        pieces = [token.piece for token in self._tokens[-_LEAD_IN:]]
        revisable = min(_REVISABLE, len(pieces))
        before = await self._server.pieces.of(self._prompt[-_LEAD_IN:]) + pieces
        found = await tokens_behind(self._server, before, whole, revisable=revisable)
        if found is None:
            return False
        replaced, tokens = found
        count = len(self._tokens) - replaced
        self._cut(count, len(self._text) - sum(len(token.piece) for token in self._tokens[count:]))
        for token in tokens:
            self.add(DraftToken(token.id, token.piece))
        return True


class CrossingDrafter(Drafter):
    """Lets a drafter of another vocabulary draft for a target."""

    def __init__(
        self,
        generation: Generation,
        server: LlamaServer,
        prompt: Callable[[], Awaitable[Sequence[int]]],
        start: Callable[[Generation], Drafter | None],
    ) -> None:
        """`server` drafts, `prompt` asks for the request's prompt in its tokens, `start` makes the drafter for that."""
        self._generation = generation
        self._target = generation.target
        self._server = server
        self._prompt = prompt
        self._start = start
        self._drafter: Drafter | None = None
        self._transcript: Transcript | None = None  # made when the first draft is wanted
        self._waiting: deque[int] = deque()  # of each token that was yielded, how many of the drafter's it completes

    async def draft(self, context: Sequence[int], max_tokens: int) -> AsyncGenerator[DraftToken]:
        """Yield the target's tokens of what is drafted, each as soon as no more text can change it."""
        if self._transcript is None:
            self._transcript = await self._begin()
        if self._drafter is None:
            return
        prompt_length = len(self._generation.prompt)
        first = max(0, prompt_length - _LEAD_IN)
        pieces = await self._target.pieces.of(context[first:])
        opening = await self._transcript.open_at(b"".join(pieces[prompt_length - first :]))
        if opening is None:
            return
        crossing = _Crossing(self._target, pieces[-_LEAD_IN:], opening.said)
        limit = max_tokens + _LOOKAHEAD
        drafted = yielded = 0
        async with aclosing(self._drafted(self._drafter, self._transcript, opening, limit)) as tokens:
            async for token in tokens:
                drafted += 1
                if not crossing.add(token):
                    return
                for crossed in await crossing.settled():
                    yield self._yielded(crossed)
                    yielded += 1
                    if yielded == max_tokens:
                        return
        # Where the draft model has ended its text, nothing can change the last tokens.
        if drafted < limit or not yielded:
            for crossed in (await crossing.rest())[: max_tokens - yielded]:
                yield self._yielded(crossed)

    async def _begin(self) -> Transcript:
        prompt = await self._prompt()
        limit = self._server.info.n_vocab
        self._drafter = self._start(
            replace(self._generation, target=self._server, prompt=prompt, vocabulary_limit=limit)
        )
        return Transcript(self._server, prompt)

    @staticmethod
    async def _drafted(
        drafter: Drafter, transcript: Transcript, opening: Opening, limit: int
    ) -> AsyncGenerator[DraftToken]:
        for token in opening.drafted[:limit]:
            yield token
        if len(opening.drafted) >= limit:
            return
        context = [*opening.context, *(token.id for token in opening.drafted)]
        async with aclosing(drafter.draft(context, limit - len(opening.drafted))) as tokens:
            async for token in tokens:
                transcript.add(token)
                yield token

    def _yielded(self, crossed: _Crossed) -> DraftToken:
        self._waiting.append(crossed.completes)
        return crossed.token

    def observe(self, outcome: Outcome) -> None:
        """The drafter learns what became of its own tokens."""
        accepted = sum(self._waiting.popleft() for _ in range(min(outcome.accepted, len(self._waiting))))
        missed = outcome.drafted > outcome.accepted
        if missed:
            self._waiting.clear()
        if self._drafter is not None and (accepted or missed):
            self._drafter.observe(Outcome(accepted + missed, accepted))

    async def aclose(self) -> None:
        """Close the drafter."""
        if self._drafter is not None:
            await self._drafter.aclose()


@dataclass(frozen=True, slots=True)
class _Crossed:
    """A token of the target, and how many tokens of the drafter end within it."""

    token: DraftToken
    completes: int


class _Crossing:
    """Text on its way from the draft model's tokens to the target's."""

    def __init__(self, target: LlamaServer, before: Sequence[bytes], said: bytes) -> None:
        self._target = target
        self._before = list(before)
        self._said = said
        self._text = bytearray()
        self._under_way: deque[tuple[int, float | None]] = deque()  # where in the text a draft token ends, how sure
        self._unasked = 0  # draft tokens since the target's tokenizer was asked

    def add(self, token: DraftToken) -> bool:
        """Take a token of the draft model. False where it contradicts what is confirmed."""
        fresh = token.piece
        if self._said:
            shared = min(len(fresh), len(self._said))
            if fresh[:shared] != self._said[:shared]:
                return False
            fresh, self._said = fresh[shared:], self._said[shared:]
        if fresh:
            self._text += fresh
            self._under_way.append((len(self._text), token.probability))
            self._unasked += 1
        return True

    async def settled(self) -> list[_Crossed]:
        """The tokens that are certain now, and were not before."""
        begun = _last_word_start(self._text)
        if begun == 0 and self._unasked <= _UNSETTLED:
            return []
        tokens = await self._tokens()
        ends = list(accumulate(len(token.piece) for token in tokens))
        return self._take(tokens[: max(bisect_right(ends, begun), len(tokens) - _UNSETTLED, 0)])

    async def rest(self) -> list[_Crossed]:
        """The tokens of all whole characters that are left."""
        return self._take(await self._tokens())

    async def _tokens(self) -> list[Token]:
        self._unasked = 0
        whole = bytes(self._text[: _whole_length(self._text)])
        found = await tokens_behind(self._target, self._before, whole, revisable=0) if whole else None
        return [] if found is None else found[1]

    def _take(self, tokens: Sequence[Token]) -> list[_Crossed]:
        crossed = []
        for token in tokens:
            length = len(token.piece)
            shares: list[float | None] = []
            completes = 0
            start = 0
            while self._under_way and start < length:
                end, share = self._under_way[0]
                shares.append(share)
                if end > length:
                    # The first part of a draft token counts for all of it.
                    self._under_way[0] = (end, 1.0)
                    break
                self._under_way.popleft()
                completes += 1
                start = end
            known = [share for share in shares if share is not None]
            probability = math.prod(known) if len(known) == len(shares) else None
            crossed.append(_Crossed(DraftToken(token.id, token.piece, probability), completes))
            self._under_way = deque((end - length, share) for end, share in self._under_way)
            del self._text[:length]
            self._before = [*self._before[1 - _LEAD_IN :], token.piece]
        return crossed


def _text_of(tokens: Sequence[Token]) -> bytes:
    return b"".join(token.piece for token in tokens)


def _common_length(one: bytes | bytearray, other: bytes) -> int:
    shorter = min(len(one), len(other))
    if one[:shorter] == other[:shorter]:
        return shorter
    return next(place for place in range(shorter) if one[place] != other[place])


def _continues_character(byte: int) -> bool:
    return byte & 0xC0 == 0x80


def _whole_length(text: bytes | bytearray) -> int:
    """The length of a UTF-8 text without a last character that is not complete."""
    for back in range(1, min(4, len(text)) + 1):
        byte = text[-back]
        if not _continues_character(byte):
            length = 1 if byte < 0xC0 else 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return len(text) - back if length > back else len(text)
    return len(text)


def _last_word_start(text: bytes | bytearray) -> int:
    """Where white space last gave way to something else: the place of that white space; 0 where it never did."""
    for place in range(len(text) - 2, 0, -1):
        if text[place] in _WHITE and text[place + 1] not in _WHITE:
            return place
    return 0
