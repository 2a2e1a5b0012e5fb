"""The header that says how a request is decoded, and why it is not drafted for."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from http_support import ANSWER, CHAT, Pair, StartFake, StartRouter, decoding, is_being_tried_out, until_decoding

from specrouter.testing import NgramPool, ToyModel, ToyVocabulary, hang, respond_with

pytestmark = pytest.mark.anyio

PATH = "/v1/chat/completions"


async def test_no_draft_needs_no_reason(fake: StartFake, router: StartRouter) -> None:
    routes = {"fast": {"target": "big", "draft": "none"}, "bare": {"target": "big"}}
    client = await router({"big": await fake()}, routes)
    assert await decoding(client) == "plain"
    assert await decoding(client, model="bare") == "plain"


async def test_an_untried_pair(pair: Pair, router: StartRouter) -> None:
    """The first request does not wait for the pair to be tried."""
    pair.target.replies["/tokenize"] = hang
    client = await router(pair.servers, pair.routes)
    with anyio.fail_after(1):
        assert await decoding(client) in (
            "plain; reason=not tried out yet",
            "plain; reason=being tried out",
            "plain; reason=draft server laptop is unknown (not asked yet)",
        )


async def test_requests_that_are_not_drafted_for(pair: Pair, router: StartRouter) -> None:
    client = await router(pair.servers, pair.routes)
    await until_decoding(client, "inject")
    image = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}, {"type": "text", "text": "?"}]
    cases: list[tuple[dict[str, Any], str]] = [
        ({"logprobs": True}, "token probabilities wanted"),
        ({"n": 2}, "several answers wanted"),
        ({"messages": [{"role": "user", "content": image}]}, "images or audio in the prompt"),
        ({"max_tokens": 2}, "only 2 tokens wanted"),
        ({"return_progress": True}, "return_progress without stream"),
    ]
    for change, reason in cases:
        assert await decoding(client, **change) == f"plain; reason={reason}"
    for change in ({"stream": True}, {"temperature": 0.8}, {"tools": [{"type": "function"}]}, {"seed": 1}):
        assert await decoding(client, **change) == "inject"
    assert await decoding(client, model="plain") == "plain"
    several = await client.post("/v1/completions", json={"model": "fast", "prompt": ["a", "b"]})
    assert several.headers["x-specrouter-decoding"] == "plain; reason=several prompts or a prompt with media"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/completion"])
async def test_endpoints_that_are_drafted_for(pair: Pair, router: StartRouter, path: str) -> None:
    client = await router(pair.servers, pair.routes)
    await until_decoding(client, "inject")
    response = await client.post(path, json={**CHAT, "prompt": "x", "stream": True})
    assert response.headers["x-specrouter-decoding"] == "inject"


async def test_the_drafter_is_away(fake: StartFake, router: StartRouter) -> None:
    target = await fake(pool=NgramPool())
    routes = {"fast": {"target": "big", "draft": {"use": "remote", "options": {"server": "laptop"}}}}
    client = await router({"big": target, "laptop": {"url": "http://127.0.0.1:9"}}, routes)
    await until_decoding(client, "plain; reason=draft server laptop is down (server 'laptop': no connection)")


async def test_a_target_without_a_pool(fake: StartFake, router: StartRouter) -> None:
    draft = {"use": "remote", "options": {"server": "laptop"}}
    routes = {"fast": {"target": "big", "draft": draft, "verify": "inject"}}
    client = await router({"big": await fake(), "laptop": await fake()}, routes)
    await until_decoding(client, "plain; reason=inject: server big has no n-gram pool that verifies drafts")


async def test_a_pool_that_takes_no_short_drafts(fake: StartFake, router: StartRouter) -> None:
    target = await fake(pool=NgramPool(n_match=6, n_min=12, n_max=20))
    draft = {"use": "remote", "options": {"server": "laptop"}}
    routes = {"fast": {"target": "big", "draft": draft, "verify": "inject"}}
    client = await router({"big": target, "laptop": await fake()}, routes)
    await until_decoding(client, "server big drafts only chains of 12 tokens and more")


@pytest.mark.parametrize("handling", ["plain", "refuse"])
async def test_vocabularies_that_differ(fake: StartFake, router: StartRouter, handling: str) -> None:
    target = await fake(pool=NgramPool())
    drafter = await fake(ToyModel(ANSWER, vocabulary=ToyVocabulary(reverse=True)))
    draft = {"use": "remote", "options": {"server": "laptop"}}
    routes = {"fast": {"target": "big", "draft": draft, "on_tokenizer_mismatch": handling}}
    client = await router({"big": target, "laptop": drafter}, routes)

    with anyio.fail_after(30):
        while True:
            while await is_being_tried_out(client):
                await anyio.sleep(0.02)
            response = await client.post(PATH, json={**CHAT, "stream": True})
            if response.status_code != 200 or "tokenizers differ" in response.headers["x-specrouter-decoding"]:
                break
    if handling == "plain":
        assert response.status_code == 200
        assert "text of token" in response.headers["x-specrouter-decoding"]
    else:
        assert response.status_code == 422
        assert response.json()["error"]["code"] == "tokenizer_mismatch"
        assert "text of token" in response.json()["error"]["message"]
    # Nothing was drafted or primed with ids that mean something else.
    assert not drafter.received("/completion")


async def test_a_padded_vocabulary_fits(fake: StartFake, router: StartRouter) -> None:
    target = await fake(ToyModel(ANSWER, vocabulary=ToyVocabulary(padding=100)), pool=NgramPool())
    routes = {"fast": {"target": "big", "draft": {"use": "remote", "options": {"server": "laptop"}}}}
    client = await router({"big": target, "laptop": await fake()}, routes)
    await until_decoding(client, "inject")


async def test_the_header_is_one_line_of_ascii(fake: StartFake, router: StartRouter) -> None:
    """Reasons quote what servers say."""
    target, drafter = await fake(pool=NgramPool()), await fake()
    drafter.replies["/health"] = respond_with({"error": {"message": "kaputt\r\nx-evil: ü 日本"}}, 500)
    routes = {"fast": {"target": "big", "draft": {"use": "remote", "options": {"server": "laptop"}}}}
    client = await router({"big": target, "laptop": drafter}, routes)
    await until_decoding(client, "kaputt x-evil: ? ??")
    response = await client.post(PATH, json=CHAT)
    assert "x-evil" not in response.headers
