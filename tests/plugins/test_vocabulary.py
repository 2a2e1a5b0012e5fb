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
    [mismatch] = await mismatches(ToyVocabulary(), ToyVocabulary(reverse=True))
    assert str(mismatch) == "text of token 264: draft has ' baba', target has ' zuzu'"


@pytest.mark.parametrize("token", [33, 4097, 6663])
async def test_one_token_that_differs(token: int) -> None:
    """Wherever it is, it is the first one that differs."""
    other = ToyVocabulary()
    text, other.pieces[token] = other.pieces[token].decode(), b"~~"
    [mismatch] = await mismatches(ToyVocabulary(), other)
    assert str(mismatch) == f"text of token {token}: draft has {text!r}, target has '~~'"


async def test_another_type() -> None:
    one, other = FakeServer(ToyModel("")), FakeServer(ToyModel(""))
    other.replies["/v1/models"] = respond_with({"data": [{"id": "x", "meta": {"vocab_type": 1, "n_vocab": 6664}}]})
    async with servers(one, other) as (laptop, big):
        [mismatch] = await Vocabulary({}, {}).check(laptop, big)
    assert str(mismatch) == "vocabulary type: draft has BPE, target has SPM"


async def test_a_server_that_does_not_say_its_size() -> None:
    one, other = FakeServer(ToyModel("")), FakeServer(ToyModel(""))
    one.replies["/v1/models"] = respond_with({"data": [{"id": "x", "meta": {"vocab_type": 2}}]})
    async with servers(one, other) as (laptop, big):
        [mismatch] = await Vocabulary({}, {}).check(laptop, big)
    assert str(mismatch) == "vocabulary size: draft has not said which, target has 6664"


async def test_another_eos_of_the_same_vocabulary() -> None:
    """As the base and the chat model of a family have: both know both."""
    one, other = FakeServer(ToyModel("")), FakeServer(ToyModel(""))
    other.replies["/props"] = respond_with({"bos_token": "<|im_start|>", "eos_token": "</s>", "total_slots": 4})
    async with servers(one, other) as (laptop, big):
        assert await Vocabulary({}, {}).check(laptop, big) == []


async def test_a_special_token_that_only_one_knows() -> None:
    class Plain(ToyVocabulary):
        def tokenize(self, text: str) -> list[int]:
            return list(text.encode())

    [mismatch, *_] = await mismatches(Plain(), ToyVocabulary())
    assert (mismatch.what, mismatch.target) == ("special token '<s>'", "256 b'<s>'")
    assert mismatch.draft == "60 b'<', 115 b's', 62 b'>'"


async def test_tokens_added_to_a_prompt() -> None:
    one, other = FakeServer(ToyModel("")), FakeServer(ToyModel(""))
    other.replies["/tokenize"] = respond_with({"tokens": []})
    async with servers(one, other) as (laptop, big):
        found = await Vocabulary({}, {}).check(laptop, big)
    assert str(found[0]) == "tokens added to a prompt: draft has 256 b'<s>', target has none"


async def test_few_questions() -> None:
    """As many for a large vocabulary as fit into one question each."""
    one, other = (FakeServer(ToyModel("", vocabulary=ToyVocabulary(padding=150_000))) for _ in range(2))
    async with servers(one, other) as (laptop, big):
        assert await Vocabulary({}, {}).check(laptop, big) == []
    assert len(one.received("/detokenize")) == 5
    assert len(one.received("/tokenize")) == 3


async def test_a_server_that_goes_away() -> None:
    one, other = FakeServer(ToyModel("")), FakeServer(ToyModel(""))
    async with servers(one, other) as (laptop, big):
        other.stop()
        with pytest.raises(UpstreamError):
            await Vocabulary({}, {}).check(laptop, big)
