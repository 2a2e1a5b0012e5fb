"""The tokenizer check `probe_text` against fake servers."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from specrouter_plugins.probe_text import ProbeText
from test_vocabulary import servers

from specrouter.testing import FakeServer, ToyModel, ToyVocabulary, respond_with
from specrouter.types import Mismatch

pytestmark = pytest.mark.anyio


class OtherMerges(ToyVocabulary):
    """The same ids and texts; a text that holds `where` is split into bytes."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.where = where

    def tokenize(self, text: str) -> list[int]:
        return list(text.encode()) if self.where in text else super().tokenize(text)


async def mismatches(draft: FakeServer, target: FakeServer) -> Sequence[Mismatch]:
    async with servers(draft, target) as (laptop, big):
        return await ProbeText({}, {}).check(laptop, big)


async def test_one_tokenizer() -> None:
    one, other = FakeServer(ToyModel("")), FakeServer(ToyModel("", vocabulary=ToyVocabulary(padding=100)))
    assert await mismatches(one, other) == []
    assert not one.received("/completion")


async def test_other_merges_of_one_vocabulary() -> None:
    class Swapped(ToyVocabulary):
        def tokenize(self, text: str) -> list[int]:
            return [98 if token == 97 else token for token in super().tokenize(text)]

    [mismatch] = await mismatches(FakeServer(ToyModel("", vocabulary=Swapped())), FakeServer(ToyModel("")))
    assert str(mismatch).endswith("draft has 98 b'b', target has 97 b'a'")


async def test_a_special_token_of_a_chat_template() -> None:
    """It is among the probes although the servers do not name it otherwise."""
    one, other = FakeServer(ToyModel("", vocabulary=OtherMerges("<tool_call>"))), FakeServer(ToyModel(""))
    assert await mismatches(one, other) == []
    template = "{% for m in messages %}{{ '<tool_call>' + m }}{% endfor %}"
    one, other = FakeServer(ToyModel("", vocabulary=OtherMerges("<tool_call>"))), FakeServer(ToyModel(""))
    other.replies["/props"] = respond_with({"chat_template": template, "total_slots": 4})
    [mismatch] = await mismatches(one, other)
    assert mismatch.what.startswith("token 0 of '<s><|im_end|>")


async def test_a_text_that_ends_sooner() -> None:
    class Short(ToyVocabulary):
        def tokenize(self, text: str) -> list[int]:
            return super().tokenize(text)[:5]

    [mismatch] = await mismatches(FakeServer(ToyModel("", vocabulary=Short())), FakeServer(ToyModel("")))
    assert mismatch.what.startswith("token 5 of ")
    assert mismatch.draft == "no more"
