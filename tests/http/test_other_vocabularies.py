"""Drafts that cross as text, and the comparison of tokenizers, with fake servers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from http_support import CHAT, StartFake, StartRouter, until, until_decoding

from specrouter.checking import examine
from specrouter.config import load_topology
from specrouter.testing import Exchange, FakeServer, NgramPool, ToyModel, ToyVocabulary, respond_with

pytestmark = pytest.mark.anyio

SECOND = ("da", "fo", "li", "ga", "he", "ji", "no", "pu", "ra", "sa", "te", "vo")
ANSWER = "".join(f" {first}{second}" for first in ("ba", "ko", "mi", "tu", "ze") for second in SECOND)
"""60 words, each of them one token."""

OTHER = ToyVocabulary(reverse=True)
PATH = "/v1/chat/completions"
ROUTE = {"target": "big", "draft": {"use": "remote", "options": {"server": "laptop"}}, "on_tokenizer_mismatch": "text"}


@pytest.fixture
async def target(fake: StartFake) -> FakeServer:
    """Verifies drafts; a step takes 20 ms."""
    server = await fake(ANSWER, pool=NgramPool())
    server.step_seconds = 0.02
    return server


@pytest.fixture
async def drafter(fake: StartFake) -> FakeServer:
    """Says the same in tokens that have other ids."""
    return await fake(ToyModel(ANSWER, vocabulary=OTHER))


@pytest.fixture
async def client(target: FakeServer, drafter: FakeServer, router: StartRouter) -> httpx.AsyncClient:
    """Of a router whose route `fast` lets drafts cross as text."""
    found = await router({"big": target, "laptop": drafter}, {"fast": ROUTE})
    await until_decoding(found, "inject")
    return found


async def ask(client: httpx.AsyncClient, path: str = PATH, **changed: Any) -> dict[str, Any]:
    response = await client.post(path, json={**CHAT, **changed})
    assert response.headers["x-specrouter-decoding"] == "inject"
    answer: dict[str, Any] = response.raise_for_status().json()
    return answer


def contexts(drafter: FakeServer) -> list[str]:
    """What the draft model was given to continue, as text."""
    prompts = [request.json["prompt"] for request in drafter.received("/completion")]
    return [OTHER.detokenize(prompt).decode() for prompt in prompts]


async def test_drafts_come_true(client: httpx.AsyncClient, drafter: FakeServer) -> None:
    answer = await ask(client)
    assert answer["choices"][0]["message"]["content"] == ANSWER
    assert answer["timings"]["draft_n_accepted"] > 0
    # The draft model sees the chat in its own template and tokens, and the answer so far.
    begin = "<s><|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    seen = contexts(drafter)
    assert seen
    assert all(text.startswith(begin) and ANSWER.startswith(text.removeprefix(begin)) for text in seen)


async def test_drafts_that_are_wrong_change_nothing(target: FakeServer, fake: StartFake, router: StartRouter) -> None:
    drafter = await fake(ToyModel(ANSWER, vocabulary=OTHER, mistakes={3, 20, 21, 40}))
    client = await router({"big": target, "laptop": drafter}, {"fast": ROUTE})
    await until_decoding(client, "inject")
    answer = await ask(client)
    assert answer["choices"][0]["message"]["content"] == ANSWER
    assert answer["timings"]["draft_n_accepted"] > 0


@pytest.mark.parametrize("path", ["/v1/completions", "/completion"])
@pytest.mark.parametrize("as_ids", [False, True], ids=["text", "ids"])
async def test_prompts_that_are_no_chat(
    client: httpx.AsyncClient, drafter: FakeServer, path: str, as_ids: bool
) -> None:
    before = len(contexts(drafter))
    await ask(client, path, prompt=ToyVocabulary().tokenize(" koda bafo") if as_ids else " koda bafo")
    seen = contexts(drafter)[before:]
    assert seen
    assert all(text.startswith("<s> koda bafo") for text in seen)


async def test_a_template_that_does_not_take_the_chat(client: httpx.AsyncClient, drafter: FakeServer) -> None:
    """The draft model then gets what the target gets, as text."""
    before = len(contexts(drafter))
    drafter.replies["/apply-template"] = respond_with({"error": {"message": "roles must alternate"}}, 400)
    answer = await ask(client)
    assert answer["timings"]["draft_n_accepted"] > 0
    assert all(text.startswith("<s><|im_start|>user\nhi<|im_end|>") for text in contexts(drafter)[before:])


async def test_the_draft_server_dies(client: httpx.AsyncClient, drafter: FakeServer) -> None:
    async def die(_: Exchange, number: int) -> None:
        if number == 3:
            drafter.stop()

    drafter.before_token = die
    answer = await ask(client)
    assert answer["choices"][0]["message"]["content"] == ANSWER


async def test_a_prompt_too_long_for_the_draft_model(target: FakeServer, fake: StartFake, router: StartRouter) -> None:
    drafter = await fake(ToyModel(ANSWER, vocabulary=OTHER), n_ctx=64)
    client = await router({"big": target, "laptop": drafter}, {"fast": ROUTE})
    await until_decoding(client, "inject")
    drafter.requests.clear()
    answer = await ask(client, messages=[{"role": "user", "content": " koda" * 100}])
    assert answer["choices"][0]["message"]["content"] == ANSWER
    assert not drafter.received("/completion")


@pytest.mark.parametrize("handling", ["plain", "text", "refuse"])
async def test_the_report_says_what_the_route_does(
    target: FakeServer, drafter: FakeServer, tmp_path: Path, handling: str
) -> None:
    servers = {name: {"url": server.url} for name, server in (("big", target), ("laptop", drafter))}
    routes = {"fast": {**ROUTE, "on_tokenizer_mismatch": handling}}
    file = tmp_path / "topology.yaml"
    file.write_text(json.dumps({"version": 1, "servers": servers, "routes": routes}), encoding="utf-8")
    report = await examine(load_topology(file))
    (pair,) = report.routes[0].pairs
    assert pair.on_mismatch == handling
    assert pair.mismatches[0] == "text of token 264: draft has ' zuzu', target has ' baba'"
    assert report.is_fine is (handling == "text")
    if handling != "text":
        assert pair.obstacle == f"tokenizers differ: {pair.mismatches[0]}"


# -- comparing tokenizers ----------------------------------------------------------------------------------


def compared(server: FakeServer) -> int:
    """How often the texts of its tokens were asked for, all of them at once."""
    whole = [request for request in server.received("/detokenize") if request.json["tokens"][:2] == [0, 1]]
    return len([request for request in whole if len(request.json["tokens"]) > 1000])


async def test_routes_with_one_pair_compare_once(fake: StartFake, router: StartRouter) -> None:
    target, drafter = await fake(pool=NgramPool()), await fake()
    client = await router({"big": target, "laptop": drafter}, {"fast": ROUTE, "other": ROUTE})
    for route in ("fast", "other"):
        await until_decoding(client, "inject", model=route)
    assert compared(drafter) == compared(target) == 1


async def test_replicas_compare_once(fake: StartFake, router: StartRouter) -> None:
    targets, drafter = [await fake(pool=NgramPool()) for _ in range(2)], await fake()
    route = {**ROUTE, "target": ["one", "two"]}
    client = await router({"one": targets[0], "two": targets[1], "laptop": drafter}, {"fast": route})
    await until_decoding(client, "inject")
    await until(lambda: all(target.received("/completion") for target in targets))
    assert compared(drafter) == 1


async def test_a_server_that_comes_back_is_compared_again(fake: StartFake, router: StartRouter) -> None:
    target, drafter = await fake(pool=NgramPool()), await fake()
    client = await router({"big": target, "laptop": drafter}, {"fast": {**ROUTE, "on_tokenizer_mismatch": "plain"}})
    await until_decoding(client, "inject")
    drafter.stop()
    await until_decoding(client, "draft server laptop is down")
    # The same file, as far as it says.
    drafter.model = ToyModel(ANSWER, vocabulary=OTHER)
    await drafter.start()
    await until_decoding(client, "tokenizers differ")
