"""Draft strategy `prompt_lookup`: drafts what followed the last time, from the request and from earlier answers.

The method is prompt lookup decoding (Apoorv Saxena, 2023). The index is made like the one that the compression method
"deflate" finds its matches with (RFC 1951, section 4): of each n-gram the latest place, of each place the one before.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import anyio
import anyio.lowlevel

from specrouter.hookspecs import hookimpl
from specrouter.interfaces import Drafter, DraftStrategy, Generation, JsonSchema
from specrouter.types import DraftToken
from specrouter.upstream import LlamaServer

LONGEST_MATCH = 32
"""Tokens of which it is looked how many agree; more than that says nothing new."""

MOST_PLACES = 64
"""How many of the latest places that agree in the shortest match are compared."""

_ENDED = -1
"""Stands behind an answer that is over: nothing follows it."""

_CHUNK = 2048
"""Tokens that are indexed at a time, in 1 or 2 ms: between them, other requests go on."""


@dataclass(frozen=True, slots=True)
class Match:
    """A place in earlier tokens: the `length` tokens before `place` agree with the last ones of the context."""

    place: int
    length: int


class NgramIndex:
    """A growing sequence of tokens in which the places of each n-gram are known. A token takes constant time."""

    def __init__(self, n: int) -> None:
        self.tokens: list[int] = []
        self._n = n
        self._latest: dict[int, int] = {}  # hash of an n-gram → the latest place behind one
        self._earlier: list[int] = []  # place → the one before it with the same hash, -1 where there is none

    def extend(self, tokens: Sequence[int]) -> None:
        """Add tokens at the end."""
        begin = len(self.tokens)
        self.tokens += tokens
        latest, earlier = self._latest, self._earlier
        for place, key in enumerate(self._keys(begin), begin):
            earlier.append(latest.get(key, -1))
            latest[key] = place

    def truncate(self, length: int) -> None:
        """Take back what was added beyond the first `length` tokens."""
        for key in reversed(list(self._keys(length))):
            earlier = self._earlier.pop()
            if earlier < 0:
                del self._latest[key]
            else:
                self._latest[key] = earlier
        del self.tokens[length:]

    def find(self, last: Sequence[int]) -> Match | None:
        """The longest match of the last tokens of a context, at least n; of several equal ones the latest."""
        place = self._latest.get(hash(tuple(last[-self._n :])), -1)
        best, shortest = None, self._n
        for _ in range(MOST_PLACES):
            if place < 0 or shortest > len(last):
                break
            # A longer match has to agree there as well: most places are done with at once.
            if place >= shortest and self.tokens[place - shortest] == last[-shortest] and self.tokens[place] != _ENDED:
                length = self._agreeing(place, last)
                if length >= shortest:
                    best, shortest = Match(place, length), length + 1
            place = self._earlier[place]
        return best

    def following(self, place: int, count: int) -> list[int]:
        """Up to `count` tokens from `place` on. Where the sequence ends, it is taken to go on as it did."""
        period = len(self.tokens) - place
        found = [self.tokens[place + index % period] for index in range(count)]
        return found[: found.index(_ENDED)] if _ENDED in found else found

    def _keys(self, begin: int) -> Iterator[int]:
        """The hashes of the n-grams before the places from `begin` on."""
        # Equal hashes of other tokens are told apart by comparing them. Nothing is before the first token.
        before = [_ENDED] * (self._n - begin) + self.tokens[max(0, begin - self._n) :]
        ngrams = zip(*(before[index:] for index in range(self._n)), strict=False)
        return map(hash, itertools.islice(ngrams, len(self.tokens) - begin))

    def _agreeing(self, place: int, last: Sequence[int]) -> int:
        length, longest = 0, min(place, len(last))
        while length < longest and self.tokens[place - 1 - length] == last[-1 - length]:
            length += 1
        return length


class RouteMemory:
    """The latest answers of a route on one target, up to a number of tokens."""

    def __init__(self, n: int, tokens: int) -> None:
        self._n = n
        self._half = max(1, tokens // 2)
        self._adding = anyio.Lock()
        # When the newer half is full, the older one is forgotten.
        self.halves = [NgramIndex(n), NgramIndex(n)]

    async def add(self, answer: Sequence[int]) -> None:
        """Remember an answer; of one that is too long its end."""
        kept = [*answer, _ENDED][-self._half :]
        async with self._adding:
            if len(self.halves[0].tokens) + len(kept) > self._half:
                self.halves = [NgramIndex(self._n), self.halves[0]]
            await _extend(self.halves[0], kept)


async def _extend(index: NgramIndex, tokens: Sequence[int]) -> None:
    for start in range(0, len(tokens), _CHUNK):
        if start:
            await anyio.lowlevel.checkpoint()
        index.extend(tokens[start : start + _CHUNK])


class LookupDrafter(Drafter):
    """Drafts for one request. The index is made when the first draft is wanted, and then only added to."""

    def __init__(self, generation: Generation, min_match: int, memory: RouteMemory | None) -> None:
        self._target = generation.target
        self._prompt_length = len(generation.prompt)
        self._min_match = min_match
        self._memory = memory
        self._context = NgramIndex(min_match)

    async def draft(self, context: Sequence[int], max_tokens: int) -> AsyncGenerator[DraftToken]:
        """Yield what followed the longest match in the context or in an earlier answer."""
        await self._follow(context)
        if len(context) < self._min_match:
            return
        last = context[-LONGEST_MATCH:]
        # Of equal matches the first one counts: this request, then the newer answers.
        indexes = [self._context, *(self._memory.halves if self._memory is not None else ())]
        found = [(index, match) for index in indexes if (match := index.find(last)) is not None]
        if not found:
            return
        index, match = max(found, key=lambda place: place[1].length)
        ids = index.following(match.place, max_tokens)
        pieces = await self._target.pieces.of(ids)
        for number, (token, piece) in enumerate(zip(ids, pieces, strict=True)):
            yield DraftToken(token, piece, confidence(match.length + number))

    async def aclose(self) -> None:
        """Leave what was seen of the answer to the requests that come."""
        answer = self._context.tokens[self._prompt_length :]
        if self._memory is not None and answer:
            await self._memory.add(answer)

    async def _follow(self, context: Sequence[int]) -> None:
        """Bring the index up to date. Only the end of what was drafted before may have turned out otherwise."""
        said, now = self._context.tokens[self._prompt_length :], context[self._prompt_length :]
        if said != now[: len(said)]:
            differing = (place for place, pair in enumerate(zip(said, now, strict=False)) if pair[0] != pair[1])
            self._context.truncate(self._prompt_length + next(differing, len(now)))
        await _extend(self._context, context[len(self._context.tokens) :])


def confidence(agreeing: int) -> float:
    """How sure a token is that follows so many tokens that agree; within a draft, each token is one more of them."""
    return agreeing / (agreeing + 2)


class PromptLookup(DraftStrategy):
    """What followed the last time the same tokens occurred in prompt and answers; needs no server."""

    name = "prompt_lookup"
    options_schema: ClassVar[JsonSchema] = {
        "type": "object",
        "properties": {
            "min_match": {
                "type": "integer",
                "minimum": 1,
                "maximum": LONGEST_MATCH,
                "default": 3,
                "description": "Tokens that must agree before something is drafted.",
            },
            "memory": {
                "type": "integer",
                "minimum": 0,
                "maximum": 1_000_000,
                "default": 50_000,
                "description": "Tokens of earlier answers of the route to draft from; 0: only the request itself.",
            },
        },
        "additionalProperties": False,
    }

    def __init__(self, options: Mapping[str, Any], servers: Mapping[str, LlamaServer]) -> None:
        super().__init__(options, servers)
        self._min_match: int = options.get("min_match", 3)
        self._memory_tokens: int = options.get("memory", 50_000)
        self._memories: dict[str, tuple[int, RouteMemory]] = {}

    def start(self, generation: Generation) -> Drafter | None:
        """A drafter for this request."""
        return LookupDrafter(generation, self._min_match, self._memory(generation.target))

    def _memory(self, target: LlamaServer) -> RouteMemory | None:
        if not self._memory_tokens:
            return None
        epoch, memory = self._memories.get(target.name, (-1, None))
        if memory is None or epoch != target.epoch:
            # Ids mean something else to another model.
            memory = RouteMemory(self._min_match, self._memory_tokens)
            self._memories[target.name] = (target.epoch, memory)
        return memory


@hookimpl
def specrouter_draft_strategies() -> list[type[DraftStrategy]]:
    return [PromptLookup]
