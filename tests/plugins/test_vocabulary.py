"""The tokenizer check `vocabulary` against fake servers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from specrouter_plugins.vocabulary import Vocabulary

from specrouter.config import ServerConfig
from specrouter.errors import UpstreamError
from specrouter.testing import FakeServer, ToyModel, ToyVocabulary, respond_with
from specrouter.types import Mismatch, ServerState
from specrouter.upstream import LlamaServer

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def servers(draft: FakeServer, target: FakeServer) -> AsyncIterator[list[LlamaServer]]:
    """Both servers, running and asked about themselves."""
    async with AsyncExitStack() as stack:
        found = []
        for name, fake in (("laptop", draft), ("big", target)):
            await stack.enter_async_context(fake)
            server = LlamaServer(ServerConfig(name, fake.url))
            stack.push_async_callback(server.aclose)
            await server.probe()
            assert server.state is ServerState.UP
            found.append(server)
        yield found


async def mismatches(draft: ToyVocabulary, target: ToyVocabulary) -> list[Mismatch]:
    one, other = FakeServer(ToyModel("", vocabulary=draft)), FakeServer(ToyModel("", vocabulary=target))
    async with servers(one, other) as (laptop, big):
        return list(await Vocabulary({}, {}).check(laptop, big))


async def test_one_vocabulary() -> None:
    assert await mismatches(ToyVocabulary(), ToyVocabulary()) == []


async def test_padding_is_no_difference() -> None:
    assert await mismatches(ToyVocabulary(), ToyVocabulary(padding=500)) == []
    assert await mismatches(ToyVocabulary(padding=500), ToyVocabulary()) == []


async def test_another_size() -> None:
    [mismatch] = await mismatches(ToyVocabulary(), ToyVocabulary(padding=5000))
    assert str(mismatch) == "vocabulary size: draft has 6664, target has 11664"


async def test_the_same_size_with_other_texts() -> None:
    found = await mismatches(ToyVocabulary(), ToyVocabulary(reverse=True))
    assert found
    assert "text of token" in found[0].what


async def test_one_token_that_differs() -> None:
    """Found if it is among the ids that are looked at: the special tokens at the beginning are."""
    other = ToyVocabulary()
    other.pieces[33] = b"~~"
    [mismatch, *_] = await mismatches(ToyVocabulary(), other)
    assert (mismatch.what, mismatch.draft, mismatch.target) == ("text of token 33", "'!'", "'~~'")


async def test_another_bos() -> None:
    one, other = FakeServer(ToyModel("")), FakeServer(ToyModel(""))
    other.replies["/props"] = respond_with({"bos_token": "<bos>", "total_slots": 4})
    async with servers(one, other) as (laptop, big):
        [mismatch] = await Vocabulary({}, {}).check(laptop, big)
    assert str(mismatch) == "BOS token: draft has '<s>', target has '<bos>'"


async def test_tokens_added_to_a_prompt() -> None:
    one, other = FakeServer(ToyModel("")), FakeServer(ToyModel(""))
    other.replies["/tokenize"] = respond_with({"tokens": []})
    async with servers(one, other) as (laptop, big):
        found = await Vocabulary({}, {}).check(laptop, big)
    assert found[0].what == "tokens added to a prompt"


async def test_a_server_that_goes_away() -> None:
    one, other = FakeServer(ToyModel("")), FakeServer(ToyModel(""))
    async with servers(one, other) as (laptop, big):
        other.stop()
        with pytest.raises(UpstreamError):
            await Vocabulary({}, {}).check(laptop, big)
