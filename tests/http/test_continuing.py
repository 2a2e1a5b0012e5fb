"""A target dies within an answer, and another one goes on with it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import httpx
import pytest
from http_support import ANSWER, CHAT, StartFake, StartRouter, dies_after

from specrouter.continuing import Spoken
from specrouter.testing import Exchange, FakeServer, ToyModel, ToyVocabulary
from specrouter.types import ServerInfo

pytestmark = pytest.mark.anyio

BODIES: Mapping[str, Mapping[str, Any]] = {
    "/v1/chat/completions": {**CHAT, "stream": True},
    "/v1/completions": {"model": "fast", "prompt": "hi", "temperature": 0, "stream": True},
    "/completion": {"model": "fast", "prompt": "hi", "temperature": 0, "stream": True},
}


def tokenizes(target: FakeServer, changed: Callable[[str], str]) -> None:
    """Its tokenizer takes every text for a changed one."""

    async def reply(exchange: Exchange) -> None:
        body = exchange.request.json
        exchange.request.body = json.dumps({**body, "content": changed(body["content"])}).encode()
        await target.unscripted(exchange)(exchange)

    target.replies["/tokenize"] = reply


def events_of(response: httpx.Response) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: {")]


def text_of(events: list[dict[str, Any]]) -> str:
    texts = []
    for event in events:
        for choice in event.get("choices", ()):
            texts.append(choice.get("text") or choice.get("delta", {}).get("content") or "")
        texts.append(event.get("content") or "")
    return "".join(texts)


async def two(fake: StartFake, router: StartRouter) -> tuple[httpx.AsyncClient, FakeServer, FakeServer]:
    first, second = await fake(), await fake()
    return await router({"first": first, "second": second}), first, second


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("after", [1, 2, 9])
async def test_the_answer_goes_on(fake: StartFake, router: StartRouter, path: str, after: int) -> None:
    client, first, second = await two(fake, router)
    undisturbed = await client.post(path, json=BODIES[path])
    dies_after(first, path, after)
    answer = await client.post(path, json=BODIES[path])
    events, expected = events_of(answer), events_of(undisturbed)
    assert text_of(events) == text_of(expected) == ANSWER
    assert ("[DONE]" in answer.text) == ("[DONE]" in undisturbed.text)
    if path != "/completion":
        assert [sorted(event) for event in events] == [sorted(event) for event in expected]
    assert len({event.get("id") for event in events}) == 1
    assert {event.get("model") for event in events} == {event.get("model") for event in expected}
    # What the client has seen is part of the prompt there.
    [asked] = [request.json for request in second.received("/completion") if request.json.get("n_predict") == -1]
    assert len(asked["prompt"]) > after - 2


async def test_usage_counts_all_tokens_once(fake: StartFake, router: StartRouter) -> None:
    client, first, _ = await two(fake, router)
    body = {**BODIES["/v1/chat/completions"], "stream_options": {"include_usage": True}}
    [expected] = [
        event["usage"]
        for event in events_of(await client.post("/v1/chat/completions", json=body))
        if event.get("usage")
    ]
    dies_after(first, "/v1/chat/completions", 6)
    [usage] = [
        event["usage"]
        for event in events_of(await client.post("/v1/chat/completions", json=body))
        if event.get("usage")
    ]
    for key in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert usage[key] == expected[key], key


@pytest.mark.parametrize("limit", [9, 12])
async def test_a_limit_holds(fake: StartFake, router: StartRouter, limit: int) -> None:
    client, first, _ = await two(fake, router)
    body = {**BODIES["/v1/chat/completions"], "max_tokens": limit}
    expected = events_of(await client.post("/v1/chat/completions", json=body))
    dies_after(first, "/v1/chat/completions", 5)
    events = events_of(await client.post("/v1/chat/completions", json=body))
    assert text_of(events) == text_of(expected)
    assert events[-1]["choices"][0]["finish_reason"] == "length"


async def test_no_token_beyond_the_limit(fake: StartFake, router: StartRouter) -> None:
    """It dies when the last token was sent, and how the answer ended was not."""
    client, first, second = await two(fake, router)
    path = "/v1/completions"
    body = {**BODIES[path], "max_tokens": 9}
    expected = await client.post(path, json=body)
    dies_after(first, path, 9)
    answer = await client.post(path, json=body)
    assert text_of(events_of(answer)) == text_of(events_of(expected))
    assert events_of(answer)[-1]["choices"][0]["finish_reason"] == "length"
    assert answer.text.endswith("data: [DONE]\n\n")
    assert not second.received("/completion")


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_a_tokenizer_that_puts_a_space_before_every_text(fake: StartFake, router: StartRouter, path: str) -> None:
    client, first, second = await two(fake, router)
    said = 4 if "chat" in path else 5

    dies_after(first, path, 5)
    tokenizes(second, lambda text: f" {text}")
    assert text_of(events_of(await client.post(path, json=BODIES[path]))) == ANSWER
    [asked] = [request.json for request in second.received("/completion") if request.json.get("n_predict") == -1]
    assert asked["prompt"][-said:] == second.model.tokens[:said]
    assert second.model.vocabulary.pieces[asked["prompt"][-said - 1]] != b" "


async def test_ids_that_were_shown_are_not_tokenised_again(fake: StartFake, router: StartRouter) -> None:
    client, first, second = await two(fake, router)
    dies_after(first, "/completion", 5)
    await client.post("/completion", json=BODIES["/completion"])
    [asked] = [request.json for request in second.received("/completion") if request.json.get("n_predict") == -1]
    assert asked["prompt"][-5:] == second.model.tokens[:5]


async def test_a_text_without_tokens_is_not_continued(fake: StartFake, router: StartRouter) -> None:
    client, first, second = await two(fake, router)
    dies_after(first, "/v1/completions", 5)
    tokenizes(second, lambda text: text.replace(" ", "_"))
    answer = await client.post("/v1/completions", json=BODIES["/v1/completions"])
    error = events_of(answer)[-1]["error"]
    assert error["code"] == "upstream_unavailable"
    assert "do not add up" in error["message"]
    assert ANSWER.startswith(text_of(events_of(answer)))
    assert not [request for request in second.received("/completion") if request.json.get("n_predict") == -1]


async def test_another_model_does_not_go_on(fake: StartFake, router: StartRouter) -> None:
    first, other, same = await fake(), await fake(ToyModel(ANSWER, vocabulary=ToyVocabulary(padding=8))), await fake()
    client = await router({"first": first, "other": other, "same": same})
    dies_after(first, "/v1/completions", 5)
    assert text_of(events_of(await client.post("/v1/completions", json=BODIES["/v1/completions"]))) == ANSWER
    assert not other.received("/completion")
    [record, *_] = (await client.get("/specrouter/status")).json()["recent"]
    assert (record["server"], record["takeovers"]) == ("same", 1)
    same.stop()
    await first.start()
    first.replies.clear()
    dies_after(first, "/v1/completions", 5)
    answer = await client.post("/v1/completions", json=BODIES["/v1/completions"])
    assert [event.get("error", {}).get("code") for event in events_of(answer)][-1] == "upstream_unavailable"
    assert not other.received("/completion")


def test_what_nobody_could_go_on_with_is_not_kept() -> None:
    for path, body in [("/completion", {"grammar": "x"}), ("/v1/responses", {}), ("/completion", {"n_probs": 2})]:
        spoken = Spoken(path, {"stream": True, **body})
        assert not spoken.has_begun
        spoken.add([b"data"], ServerInfo())
        assert spoken.has_begun
        assert not spoken._events


async def test_a_stop_string_holds(fake: StartFake, router: StartRouter) -> None:
    client, first, _ = await two(fake, router)
    words = ANSWER.split(" ")
    body = {**BODIES["/completion"], "stop": [f"{words[8]} {words[9][:2]}"]}
    dies_after(first, "/completion", 4)
    events = events_of(await client.post("/completion", json=body))
    assert text_of(events) == ANSWER.partition(body["stop"][0])[0]
    assert events[-1]["stop_type"] == "word"


UNFAITHFUL: Mapping[str, Mapping[str, Any]] = {
    "grammar": {"grammar": 'root ::= "a"'},
    "schema": {"response_format": {"type": "json_object"}},
    "tools": {"tools": [{"type": "function", "function": {"name": "f"}}]},
    "probabilities": {"logprobs": True},
}


@pytest.mark.parametrize("name", UNFAITHFUL)
async def test_what_cannot_be_continued_ends_with_an_error(fake: StartFake, router: StartRouter, name: str) -> None:
    client, first, second = await two(fake, router)
    dies_after(first, "/v1/chat/completions", 5)
    answer = await client.post("/v1/chat/completions", json={**CHAT, "stream": True, **UNFAITHFUL[name]})
    assert events_of(answer)[-1]["error"]["code"] == "upstream_unavailable"
    assert "[DONE]" not in answer.text
    assert not second.received("/v1/chat/completions")


async def test_an_unstreamed_answer_is_asked_for_again(fake: StartFake, router: StartRouter) -> None:
    client, first, _ = await two(fake, router)

    async def dies(exchange: Exchange) -> None:
        await exchange.send(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 500\r\n\r\n{")
        first.stop()
        exchange.end_connection()

    first.replies["/v1/chat/completions"] = dies
    answer = await client.post("/v1/chat/completions", json=CHAT)
    assert answer.json()["choices"][0]["message"]["content"] == ANSWER


async def test_a_request_that_kills_servers_does_not_kill_them_all(fake: StartFake, router: StartRouter) -> None:
    servers = {f"s{number}": await fake() for number in range(4)}
    client = await router(servers)

    async def dies(exchange: Exchange) -> None:
        exchange.end_connection()

    for server in servers.values():
        server.replies["/v1/chat/completions"] = dies
    answer = await client.post("/v1/chat/completions", json=CHAT)
    assert answer.status_code == 502
    assert sum(bool(server.received("/v1/chat/completions")) for server in servers.values()) == 2
