"""The draft strategy `prompt_lookup`: against a search that looks everywhere, and what it remembers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from specrouter_plugins.prompt_lookup import (
    LONGEST_MATCH,
    MOST_PLACES,
    LookupDrafter,
    Match,
    NgramIndex,
    PromptLookup,
    RouteMemory,
    confidence,
)

from specrouter.config import ServerConfig
from specrouter.interfaces import Generation
from specrouter.types import DraftToken, Sampling, ServerInfo, ServerState, Token
from specrouter.upstream import LlamaServer

IDS = range(1000)


@pytest.fixture
async def target(anyio_backend: str) -> AsyncIterator[LlamaServer]:
    """A server that is never asked: the pieces of all ids are known."""
    server = LlamaServer(ServerConfig("big", "http://127.0.0.1:1"))
    know_pieces(server)
    yield server
    await server.aclose()


def know_pieces(server: LlamaServer) -> None:
    server.pieces.learn(Token(token, b" %d" % token) for token in IDS)


def generation(target: LlamaServer, prompt: Sequence[int]) -> Generation:
    return Generation(route="fast", target=target, prompt=prompt, sampling=Sampling())


async def drafted(drafter: LookupDrafter, context: Sequence[int], max_tokens: int = 4) -> list[DraftToken]:
    async with aclosing(drafter.draft(context, max_tokens)) as tokens:
        return [token async for token in tokens]


async def ids(drafter: LookupDrafter, context: Sequence[int], max_tokens: int = 4) -> list[int]:
    return [token.id for token in await drafted(drafter, context, max_tokens)]


# -- the index ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tokens", "last", "found"),
    [
        ([1, 2, 3, 4], [2, 3], Match(3, 2)),
        ([1, 2, 3, 4], [9, 2, 3], Match(3, 2)),
        ([1, 2, 3, 4], [1, 2, 3], Match(3, 3)),
        ([1, 2, 3, 4], [3, 4], None),  # nothing follows
        ([1, 2, 3, 4], [3, 2], None),
        ([1, 2, 3, 4], [7, 4], None),
        ([], [1, 2], None),
        ([1], [1, 1], None),
        ([1, 2, 5, 1, 2, 6, 0], [1, 2], Match(5, 2)),  # the latest
        ([8, 1, 2, 5, 9, 1, 2, 6], [8, 1, 2], Match(3, 3)),  # the longest
        ([8, 1, 2, 5, 8, 1, 2, 6], [8, 1, 2], Match(7, 3)),  # the latest of the longest
        ([7, 7, 7, 7], [7, 7, 7], Match(3, 3)),
    ],
)
def test_where_it_occurred(tokens: list[int], last: list[int], found: Match | None) -> None:
    index = NgramIndex(2)
    index.extend(tokens)
    assert index.find(last) == found


@pytest.mark.parametrize(
    ("place", "following"),
    [(1, [2, 3, 4, 2, 3]), (3, [4, 4, 4, 4, 4]), (0, [1, 2, 3, 4, 1])],
)
def test_what_follows_goes_on_beyond_the_end(place: int, following: list[int]) -> None:
    index = NgramIndex(1)
    index.extend([1, 2, 3, 4])
    assert index.following(place, 5) == following


def naive(tokens: Sequence[int], last: Sequence[int], n: int) -> Match | None:
    places = [place for place in range(n, len(tokens)) if list(tokens[place - n : place]) == list(last[-n:])]
    lengths = {
        place: max(
            length
            for length in range(n, min(place, len(last)) + 1)
            if list(tokens[place - length : place]) == list(last[-length:])
        )
        for place in places[-MOST_PLACES:]
    }
    if not lengths:
        return None
    place = max(lengths, key=lambda place: (lengths[place], place))
    return Match(place, lengths[place])


FEW = st.lists(st.integers(0, 2), max_size=150)


@given(st.integers(1, 4), st.lists(st.tuples(st.integers(0, 150), FEW), max_size=6), FEW)
@settings(max_examples=300, deadline=None)
def test_a_search_everywhere_agrees(n: int, changes: list[tuple[int, list[int]]], last: list[int]) -> None:
    """However the tokens came together: `changes` take some back and add others."""
    index, tokens = NgramIndex(n), list[int]()
    for taken_back, added in changes:
        kept = max(0, len(tokens) - taken_back)
        index.truncate(kept)
        index.extend(added)
        tokens = tokens[:kept] + added
        assert index.tokens == tokens
        for context in (tokens, last):
            if len(context) >= n:
                assert index.find(context[-LONGEST_MATCH:]) == naive(tokens, context[-LONGEST_MATCH:], n)


# -- drafts of one request ---------------------------------------------------------------------------------


@given(FEW, st.lists(st.tuples(st.integers(0, 9), FEW), max_size=5), st.integers(1, 3))
@settings(max_examples=60, deadline=None)
def test_drafts_agree_with_a_search_everywhere(
    prompt: list[int], changes: list[tuple[int, list[int]]], min_match: int
) -> None:
    """The end of a context, which was only drafted before, may be another one the next time."""

    async def run() -> None:
        server = LlamaServer(ServerConfig("big", "http://127.0.0.1:1"))
        know_pieces(server)
        drafter = LookupDrafter(generation(server, prompt), min_match, None)
        answer: list[int] = []
        for taken_back, added in [(0, []), *changes]:
            answer = answer[: max(0, len(answer) - taken_back)] + added
            context = prompt + answer
            found = naive(context, context[-LONGEST_MATCH:], min_match) if len(context) >= min_match else None
            expected: list[int] = []
            if found is not None:
                expected = (context[found.place :] * 9)[:9]
                assert expected
            assert await ids(drafter, context, 9) == expected
        await server.aclose()

    anyio.run(run)


@pytest.mark.anyio
async def test_tokens_have_pieces_and_rising_confidence(target: LlamaServer) -> None:
    drafter = LookupDrafter(generation(target, [5, 6, 7, 8, 9, 5, 6, 7]), 3, None)
    assert await drafted(drafter, [5, 6, 7, 8, 9, 5, 6, 7], 2) == [
        DraftToken(8, b" 8", confidence(3)),
        DraftToken(9, b" 9", confidence(4)),
    ]
    assert 0 < confidence(1) < confidence(3) < confidence(64) < 1


@pytest.mark.anyio
async def test_a_context_that_is_too_short(target: LlamaServer) -> None:
    drafter = LookupDrafter(generation(target, []), 3, None)
    assert await ids(drafter, []) == []
    assert await ids(drafter, [1, 1]) == []
    assert await ids(drafter, [1, 1, 1, 1]) == [1, 1, 1, 1]


@pytest.mark.anyio
async def test_a_long_prompt_holds_nobody_up(target: LlamaServer) -> None:
    """While 100,000 tokens are indexed, others have their turns."""
    prompt = [number % 997 for number in range(100_000)]
    drafter = LookupDrafter(generation(target, prompt), 3, None)
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await anyio.lowlevel.checkpoint()
            turns += 1

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(count)
        assert await ids(drafter, prompt) == [number % 997 for number in range(100_000, 100_004)]
        before = turns
        assert await ids(drafter, [*prompt, 300]) == [301, 302, 303, 304]
        # Once indexed, the prompt is not gone through again.
        assert turns - before <= 1
        tasks.cancel_scope.cancel()
    assert turns > 30


@pytest.mark.anyio
async def test_indexing_that_was_interrupted_goes_on(target: LlamaServer) -> None:
    prompt = [number % 997 for number in range(20_000)]
    drafter = LookupDrafter(generation(target, prompt), 3, None)
    for _ in range(3):
        with anyio.CancelScope() as scope:
            scope.cancel()
            await ids(drafter, prompt)
        assert scope.cancelled_caught
    assert await ids(drafter, prompt) == [number % 997 for number in range(20_000, 20_004)]


# -- earlier answers ---------------------------------------------------------------------------------------

PROMPT = [1, 2, 3]
ANSWER = list(range(100, 120))


async def answered(strategy: PromptLookup, target: LlamaServer, answer: Sequence[int]) -> None:
    """A request with that answer has ended."""
    drafter = strategy.start(generation(target, PROMPT))
    assert isinstance(drafter, LookupDrafter)
    await ids(drafter, [*PROMPT, *answer])
    await drafter.aclose()


async def next_draft(strategy: PromptLookup, target: LlamaServer, begin: Sequence[int]) -> list[int]:
    """What is drafted after the beginning of another answer."""
    drafter = strategy.start(generation(target, [7, 8, 9]))
    assert isinstance(drafter, LookupDrafter)
    return await ids(drafter, [7, 8, 9, *begin])


@pytest.mark.anyio
async def test_an_earlier_answer_is_drafted(target: LlamaServer) -> None:
    strategy = PromptLookup({}, {})
    assert await next_draft(strategy, target, ANSWER[:5]) == []
    await answered(strategy, target, ANSWER)
    assert await next_draft(strategy, target, ANSWER[:5]) == ANSWER[5:9]
    assert await next_draft(strategy, target, ANSWER[:2]) == []
    # Behind its end nothing is known.
    assert await next_draft(strategy, target, ANSWER[:-2]) == ANSWER[-2:]
    assert await next_draft(strategy, target, ANSWER) == []


@pytest.mark.anyio
async def test_prompts_are_not_remembered(target: LlamaServer) -> None:
    strategy = PromptLookup({"min_match": 2}, {})
    await answered(strategy, target, ANSWER)
    assert await next_draft(strategy, target, PROMPT[:2]) == []


@pytest.mark.anyio
async def test_the_request_itself_comes_first(target: LlamaServer) -> None:
    strategy = PromptLookup({}, {})
    await answered(strategy, target, [50, 51, 52, 60])
    assert await next_draft(strategy, target, [50, 51, 52, 61, 50, 51, 52]) == [61, 50, 51, 52]
    assert await next_draft(strategy, target, [49, 50, 51, 52]) == [60]
    # A longer match is the better one, wherever it is.
    await answered(strategy, target, [40, 50, 51, 52, 62])
    assert await next_draft(strategy, target, [50, 51, 52, 61, 40, 50, 51, 52]) == [62]


@pytest.mark.anyio
async def test_no_memory(target: LlamaServer) -> None:
    strategy = PromptLookup({"memory": 0}, {})
    await answered(strategy, target, ANSWER)
    assert await next_draft(strategy, target, ANSWER[:5]) == []


@pytest.mark.anyio
async def test_another_model_has_no_past(target: LlamaServer) -> None:
    strategy = PromptLookup({}, {})
    await answered(strategy, target, ANSWER)
    target.set_state(ServerState.UP, "up", ServerInfo(model="another"))
    know_pieces(target)
    assert await next_draft(strategy, target, ANSWER[:5]) == []
    await answered(strategy, target, ANSWER)
    assert await next_draft(strategy, target, ANSWER[:5]) == ANSWER[5:9]


@pytest.mark.anyio
async def test_targets_are_told_apart(target: LlamaServer) -> None:
    strategy = PromptLookup({}, {})
    await answered(strategy, target, ANSWER)
    other = LlamaServer(ServerConfig("other", "http://127.0.0.1:1"))
    know_pieces(other)
    assert await next_draft(strategy, other, ANSWER[:5]) == []
    await other.aclose()


@given(st.integers(1, 60), st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=80), max_size=20))
@settings(max_examples=100, deadline=None)
def test_memory_is_bounded_and_keeps_the_latest(tokens: int, answers: list[list[int]]) -> None:
    memory = RouteMemory(2, tokens)

    async def add_all() -> None:
        for answer in answers:
            await memory.add(answer)
            kept = [token for half in reversed(memory.halves) for token in half.tokens]
            assert len(kept) <= max(2, tokens)
            latest = [*answer, -1][-max(1, tokens // 2) :]
            assert kept[-len(latest) :] == latest

    anyio.run(add_all)
