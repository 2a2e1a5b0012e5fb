"""The pieces of token ids: asked for once, and forgotten with the model."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from specrouter.config import ServerConfig
from specrouter.testing import FakeServer, ToyModel
from specrouter.types import ServerInfo, ServerState
from specrouter.upstream import LlamaServer

pytestmark = pytest.mark.anyio

TEXT = " bako deli, é 日\n"


@pytest.fixture
async def fake(anyio_backend: str) -> AsyncIterator[FakeServer]:
    """A server with the toy vocabulary, where é takes two tokens."""
    async with FakeServer(ToyModel("")) as fake:
        yield fake


@pytest.fixture
async def server(fake: FakeServer) -> AsyncIterator[LlamaServer]:
    """What the router knows of it."""
    server = LlamaServer(ServerConfig("big", fake.url))
    yield server
    await server.aclose()


def pieces(fake: FakeServer, ids: list[int]) -> list[bytes]:
    return [fake.model.vocabulary.pieces[token] for token in ids]


async def test_what_was_tokenised_is_known(fake: FakeServer, server: LlamaServer) -> None:
    ids = [token.id for token in await server.tokenize(TEXT)]
    asked = len(fake.requests)
    assert await server.pieces.of([*ids, ids[0]]) == [*pieces(fake, ids), b" bako"]
    assert len(fake.requests) == asked


async def test_others_are_asked_for_once(fake: FakeServer, server: LlamaServer) -> None:
    ids = fake.model.vocabulary.tokenize(TEXT)
    for _ in range(2):
        # Parts of characters, too: a text of all of them has them whole.
        assert await server.pieces.of(ids) == pieces(fake, ids)
    assert [request.path for request in fake.requests] == ["/detokenize", "/tokenize"]


async def test_tokens_that_their_text_does_not_have(fake: FakeServer, server: LlamaServer) -> None:
    """Written another way than a tokeniser would: ` bako` letter by letter."""
    ids = list(b" bako")
    assert await server.pieces.of(ids) == [b" ", b"b", b"a", b"k", b"o"]


async def test_another_model_has_other_pieces(fake: FakeServer, server: LlamaServer) -> None:
    await server.tokenize(TEXT)
    server.set_state(ServerState.UP, "up", ServerInfo(model="another"))
    ids = fake.model.vocabulary.tokenize(TEXT)
    asked = len(fake.requests)
    assert await server.pieces.of(ids) == pieces(fake, ids)
    assert len(fake.requests) > asked


async def test_nothing_to_ask(fake: FakeServer, server: LlamaServer) -> None:
    assert await server.pieces.of([]) == []
    assert not fake.requests
