"""Answers without drafts on a route that drafts, and targets that forget what they have said."""

from __future__ import annotations

from functools import partial

import anyio
import httpx
import pytest
from http_support import ANSWER, CHAT, Pair, StartFake, StartRouter, decoding, until_decoding

from specrouter.testing import FakeServer, NgramPool, ToyModel, ToyVocabulary, hang

pytestmark = pytest.mark.anyio

CHAT_PATH = "/v1/chat/completions"
FORGET = "/specrouter/forget"
ALONE = {"x-specrouter-draft": "none"}
ASKED = "plain; reason=asked for without drafts"


async def answer(client: httpx.AsyncClient, model: str = "fast", **headers: str) -> httpx.Response:
    return await client.post(CHAT_PATH, json={**CHAT, "model": model}, headers=headers)


async def test_no_companion_where_drafts_are_not_wanted(pair: Pair, router: StartRouter) -> None:
    client = await router(pair.servers, pair.routes)
    await until_decoding(client, "inject")
    asked, drafted = len(pair.target.requests), len(pair.drafter.received("/completion"))
    response = await answer(client, **ALONE)
    assert response.json()["choices"][0]["message"]["content"] == ANSWER
    assert response.headers["x-specrouter-decoding"] == ASKED
    # One request for the answer, none for drafts.
    assert [request.path for request in pair.target.requests[asked:] if request.path != "/health"][-1] == CHAT_PATH
    assert [request for request in pair.target.requests[asked:] if request.path == "/completion"] == []
    assert len(pair.drafter.received("/completion")) == drafted
    assert "x-specrouter-draft" not in pair.target.received(CHAT_PATH)[-1].headers
    assert await decoding(client) == "inject"


async def test_a_route_that_never_drafts_has_no_reason(pair: Pair, router: StartRouter) -> None:
    client = await router(pair.servers, pair.routes)
    assert (await answer(client, "plain", **ALONE)).headers["x-specrouter-decoding"] == "plain"


@pytest.mark.parametrize("value", ["no", "", "None", "none, none"])
async def test_other_values_are_refused(value: str, pair: Pair, router: StartRouter) -> None:
    client = await router(pair.servers, pair.routes)
    asked = len(pair.target.received(CHAT_PATH))
    response = await answer(client, **{"x-specrouter-draft": value})
    assert response.status_code == 400
    assert response.json()["error"]["message"] == f"x-specrouter-draft must be 'none' or left out, not {value!r}"
    assert len(pair.target.received(CHAT_PATH)) == asked


async def test_a_target_answers_in_place_of_the_server_that_drafts(fake: StartFake, router: StartRouter) -> None:
    target, drafting = await fake(), await fake(pool=NgramPool())
    rpc = {"use": "rpc", "options": {"server": "big-rpc"}}
    routes = {"fast": {"target": "big", "draft": rpc}, "only": {"target": "big-rpc", "draft": rpc}}
    client = await router({"big": target, "big-rpc": drafting}, routes)
    response = await answer(client, **ALONE)
    assert response.headers["x-specrouter-decoding"] == ASKED
    assert len(target.received(CHAT_PATH)) == 1
    refused = await answer(client, "only", **ALONE)
    assert refused.status_code == 400
    assert "drafts by itself" in refused.json()["error"]["message"]
    assert drafting.received(CHAT_PATH) == []


async def test_a_route_that_refuses_without_drafts_refuses(fake: StartFake, router: StartRouter) -> None:
    target = await fake(pool=NgramPool())
    other = await fake(ToyModel(ANSWER, vocabulary=ToyVocabulary(reverse=True)))
    draft = {"use": "remote", "options": {"server": "laptop"}}
    routes = {"fast": {"target": "big", "draft": draft, "on_tokenizer_mismatch": "refuse"}}
    client = await router({"big": target, "laptop": other}, routes)
    with anyio.fail_after(20):
        while (response := await answer(client, **ALONE)).status_code == 200:
            await anyio.sleep(0.02)
    assert (response.status_code, response.json()["error"]["code"]) == (422, "tokenizer_mismatch")


# -- forgetting --------------------------------------------------------------------------------------------


def drafts_of(server: FakeServer, words: str) -> list[int]:
    """What a server's pool drafts behind a text."""
    assert server.pool is not None
    return server.pool.draft(server.model.vocabulary.tokenize(words))


class WipedPool(NgramPool):
    """Forgets as llama-server's pool does: after five drafts in a row that were not accepted."""

    def __init__(self) -> None:
        super().__init__()
        self.drafted = 0
        self.last: list[int] = []

    def draft(self, context: list[int]) -> list[int]:  # type: ignore[override]
        refused = bool(self.last) and context[-1] != self.last[0]
        self.drafted = self.drafted + 1 if refused else 0
        if self.drafted == 5:
            self._following.clear()
        self.last = super().draft(context)
        return self.last


async def test_a_pool_is_emptied(fake: StartFake, router: StartRouter) -> None:
    target, other = await fake(pool=WipedPool()), await fake()
    routes = {"fast": {"target": ["big", "other"]}}
    client = await router({"big": target, "other": other}, routes)
    said = ANSWER * 2
    await client.post("/completion", json={"model": "fast", "prompt": said, "n_predict": 0})
    assert drafts_of(target, said[:60])
    response = await client.post(FORGET, json={"model": "fast"})
    assert response.status_code == 200, response.text
    assert response.json() == {"servers": [{"name": "big", "memory": "emptied"}, {"name": "other", "memory": "none"}]}
    assert not drafts_of(target, said[:60])
    # What is known of a pool is not found out again.
    asked = len(other.requests)
    assert (await client.post(FORGET, json={"model": "fast"})).json() == response.json()
    assert {request.path for request in other.requests[asked:]} <= {"/health", "/v1/models", "/props"}


async def test_a_pool_that_keeps_all_is_told(pair: Pair, router: StartRouter) -> None:
    client = await router(pair.servers, pair.routes)
    await until_decoding(client, "inject")
    response = await client.post(FORGET, json={"model": "fast"})
    assert response.json() == {"servers": [{"name": "big", "memory": "kept"}]}


async def test_a_server_that_is_down_is_left_out(pair: Pair, router: StartRouter) -> None:
    client = await router(pair.servers, pair.routes)
    pair.target.stop()
    with anyio.fail_after(30):
        while (await client.post(FORGET, json={"model": "plain"})).json() != {"servers": []}:
            await anyio.sleep(0.05)


async def test_a_server_that_hangs_holds_up_no_other(fake: StartFake, router: StartRouter) -> None:
    hanging, other = await fake(), await fake()
    hanging.replies["/detokenize"] = hang
    client = await router({"big": hanging, "other": other}, {"a": {"target": "big"}, "b": {"target": "other"}})
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(partial(client.post, FORGET, json={"model": "a"}))
        with anyio.fail_after(30):
            while not hanging.received("/detokenize"):
                await anyio.sleep(0.01)
            response = await client.post(FORGET, json={"model": "b"})
        assert response.json() == {"servers": [{"name": "other", "memory": "none"}]}
        tasks.cancel_scope.cancel()


async def test_it_keeps_to_the_limits_of_the_route(fake: StartFake, router: StartRouter) -> None:
    target = await fake()
    target.replies["/detokenize"] = hang
    routes = {"fast": {"target": "big", "limits": {"concurrent": 1, "queued": 0}}}
    client = await router({"big": target}, routes)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(partial(client.post, FORGET, json={"model": "fast"}))
        with anyio.fail_after(30):
            while not target.received("/detokenize"):
                await anyio.sleep(0.01)
        for response in (await answer(client), await client.post(FORGET, json={"model": "fast"})):
            assert (response.status_code, response.json()["error"]["code"]) == (429, "rate_limit_exceeded")
        tasks.cancel_scope.cancel()
    # Whoever leaves, leaves a place.
    with anyio.fail_after(30):
        while (await answer(client)).status_code == 429:
            await anyio.sleep(0.01)


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({}, 400, "400"),
        ({"model": 3}, 400, "400"),
        ({"model": "a" * 513}, 400, "400"),
        ({"model": "other"}, 404, "model_not_found"),
        ([], 400, "400"),
    ],
)
async def test_who_is_to_forget(body: object, status: int, code: str, pair: Pair, router: StartRouter) -> None:
    client = await router(pair.servers, pair.routes)
    response = await client.post(FORGET, json=body)
    assert (response.status_code, str(response.json()["error"]["code"])) == (status, code)


async def test_it_needs_a_key_that_opens_all_routes(pair: Pair, router: StartRouter) -> None:
    keys = ["all-secret", {"name": "phone", "key": "phone-secret", "routes": ["fast"]}]
    client = await router(pair.servers, pair.routes, api_keys=keys)
    for secret, code in (("wrong", "invalid_api_key"), ("phone-secret", "key_not_allowed")):
        response = await client.post(FORGET, json={"model": "fast"}, headers={"authorization": f"Bearer {secret}"})
        assert response.json()["error"]["code"] == code
    assert (await client.post(FORGET, json={"model": "fast"})).status_code == 200


async def test_pages_of_others_cannot_make_it_forget(pair: Pair, router: StartRouter) -> None:
    client = await router(pair.servers, pair.routes)
    response = await client.post(FORGET, json={"model": "fast"}, headers={"origin": "https://evil.example"})
    assert response.json()["error"]["code"] == "origin_not_allowed"
