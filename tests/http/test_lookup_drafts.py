"""Drafts without a draft server, and strategies that are composed: a request through router and fake servers."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from http_support import CHAT, Pair, StartFake, StartRouter, until_decoding

from specrouter.testing import FakeServer, NgramPool, ToyModel

pytestmark = pytest.mark.anyio

PATH = "/v1/chat/completions"
SYLLABLES = ("ba", "ko", "mi", "tu", "ze", "ra")
WORDS = [f" {first}{second}" for first in SYLLABLES for second in ("da", "fo", "li", "ne", "pu", "so")]
LOOKUP = {"use": "prompt_lookup"}

numbers = itertools.count()


async def answer(client: httpx.AsyncClient, text: str = "hi", **changed: Any) -> dict[str, Any]:
    """The answer to a question that was not asked before."""
    body = {**CHAT, "messages": [{"role": "user", "content": f"{next(numbers)} {text}"}], **changed}
    response = await client.post(PATH, json=body)
    assert response.headers["x-specrouter-decoding"] == "inject"
    found: dict[str, Any] = response.json()
    return found


def said(answer: dict[str, Any]) -> str:
    text: str = answer["choices"][0]["message"]["content"]
    return text


def accepted(answer: dict[str, Any]) -> int:
    count: int = answer["timings"].get("draft_n_accepted", 0)
    return count


class OnlyPrimes(NgramPool):
    """Learns nothing from whole prompts, whose first token is the special one at their beginning."""

    def add(self, ids: Any) -> None:
        if ids[0] != 256:
            super().add(ids)


@pytest.fixture
async def target(fake: StartFake) -> FakeServer:
    """A target that verifies drafts and says the words once."""
    target = await fake("".join(WORDS), pool=NgramPool())
    target.step_seconds = 0.005
    return target


async def drafting(router: StartRouter, target: FakeServer, draft: Any, **more: Any) -> httpx.AsyncClient:
    """A client of a route with that target and strategy; what was learned while it was tried out is forgotten."""
    client = await router(
        {"big": target, **more.pop("servers", {})}, {"fast": {"target": "big", "draft": draft}}, **more
    )
    await until_decoding(client, "inject")
    target.pool = NgramPool()
    return client


async def test_a_text_in_the_prompt_is_drafted(router: StartRouter, target: FakeServer) -> None:
    client = await drafting(router, target, {"use": "prompt_lookup", "options": {"memory": 0}})
    # The pool of a real target knows its prompts by itself; this one must not, to show who drafts.
    target.pool = OnlyPrimes()
    quoting = await answer(client, f"Repeat:{''.join(WORDS)}")
    assert said(quoting) == "".join(WORDS)
    assert accepted(quoting) > 5


@pytest.mark.parametrize("memory", [None, 0])
async def test_earlier_answers_are_drafted(router: StartRouter, target: FakeServer, memory: int | None) -> None:
    options = {} if memory is None else {"options": {"memory": memory}}
    client = await drafting(router, target, {**LOOKUP, **options})
    first = await answer(client)
    again = await answer(client)
    assert said(first) == said(again) == "".join(WORDS)
    assert bool(accepted(again)) is (memory is None)


async def test_pieces_are_asked_for_where_nobody_knows_them(router: StartRouter, target: FakeServer) -> None:
    """A prompt of ids comes without texts."""
    client = await drafting(router, target, {"use": "prompt_lookup", "options": {"memory": 0}})
    target.pool = OnlyPrimes()
    words = ToyModel("".join(reversed(WORDS)))
    target.model = words
    prompt = [*words.tokens, 32]
    body = {"model": "fast", "prompt": prompt, "temperature": 0}
    response = await client.post("/v1/completions", json=body)
    assert response.json()["choices"][0]["text"] == words.says
    assert response.json()["timings"]["draft_n_accepted"] > 0
    assert target.received("/detokenize")


# -- composed strategies -----------------------------------------------------------------------------------


def first_of(*strategies: Any) -> dict[str, Any]:
    return {"use": "first_of", "options": {"strategies": list(strategies)}}


async def test_the_draft_server_drafts_what_is_new(router: StartRouter, pair: Pair) -> None:
    pair.target.model = pair.drafter.model = ToyModel("".join(WORDS))
    pair.drafter.step_seconds = 0.001
    draft = first_of(LOOKUP, {"use": "remote", "options": {"server": "laptop"}})
    client = await drafting(router, pair.target, draft, servers={"laptop": pair.drafter})
    before = len(pair.drafter.received("/completion"))
    new = await answer(client)
    assert said(new) == "".join(WORDS)
    assert accepted(new)
    assert len(pair.drafter.received("/completion")) > before


async def test_without_the_draft_server_the_rest_goes_on(router: StartRouter, pair: Pair) -> None:
    pair.target.model = pair.drafter.model = ToyModel("".join(WORDS))
    draft = first_of(LOOKUP, {"use": "remote", "options": {"server": "laptop"}})
    client = await drafting(router, pair.target, draft, servers={"laptop": pair.drafter})
    await answer(client)
    pair.drafter.stop()
    pair.target.pool = NgramPool()
    with anyio.fail_after(20):
        # The first request may be the one that finds out.
        while not accepted(await answer(client)):
            pair.target.pool = NgramPool()
    assert said(await answer(client)) == "".join(WORDS)


@pytest.mark.parametrize("where", ["available", "draft_server", "start", "draft", "observe", "aclose"])
async def test_a_faulty_part(
    router: StartRouter, target: FakeServer, tmp_path: Path, caplog: pytest.LogCaptureFixture, where: str
) -> None:
    shutil.copy(Path(__file__).with_name("broken_plugins.py"), tmp_path / "broken_plugins.py")
    broken = {"use": "broken", "options": {"raises": where}}
    # What drafts nothing right hides what comes after it; what fails must not.
    strategies = [LOOKUP, broken] if where in ("observe", "aclose") else [broken, LOOKUP]
    client = await drafting(router, target, first_of(*strategies), plugins=["broken_plugins.py"])
    with anyio.fail_after(20):
        while not accepted(await answer(client)) or "plugin 'broken' (broken_plugins.py file)" not in caplog.text:
            target.pool = NgramPool()
    assert "an error in specrouter" not in caplog.text


STRANGER = '''
"""A stranger's plugin that composes: where the target samples, it answers alone."""

from specrouter.hookspecs import hookimpl
from specrouter.interfaces import DraftStrategy


class WhenGreedy(DraftStrategy):
    """Another strategy, for greedy requests only."""

    name = "when_greedy"
    options_schema = {
        "type": "object",
        "properties": {"strategy": {"format": "draft_strategy"}},
        "required": ["strategy"],
        "additionalProperties": False,
    }

    def available(self):
        return self.options["strategy"].available()

    def draft_server(self):
        return self.options["strategy"].draft_server()

    def start(self, generation):
        return self.options["strategy"].start(generation) if generation.sampling.is_greedy else None


@hookimpl
def specrouter_draft_strategies():
    return [WhenGreedy]
'''


async def test_a_strangers_composition(router: StartRouter, target: FakeServer, tmp_path: Path) -> None:
    (tmp_path / "when_greedy.py").write_text(STRANGER, encoding="utf-8")
    draft = {"use": "when_greedy", "options": {"strategy": LOOKUP}}
    client = await drafting(router, target, draft, plugins=["when_greedy.py"])
    await answer(client)
    assert accepted(await answer(client))
    sampled = await client.post(PATH, json={**CHAT, "temperature": 0.7, "messages": [{"role": "user", "content": "?"}]})
    assert sampled.headers["x-specrouter-decoding"] == "plain; reason=nothing to draft"
