"""A target dies within an answer, and another one goes on with it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import httpx
import pytest
from http_support import ANSWER, CHAT, StartFake, StartRouter

from specrouter.testing import Exchange, FakeServer

pytestmark = pytest.mark.anyio

BODIES: Mapping[str, Mapping[str, Any]] = {
    "/v1/chat/completions": {**CHAT, "stream": True},
    "/v1/completions": {"model": "fast", "prompt": "hi", "temperature": 0, "stream": True},
    "/completion": {"model": "fast", "prompt": "hi", "temperature": 0, "stream": True},
}


def dies_after(target: FakeServer, path: str, events: int) -> None:
    """The next answer breaks off after so many events; then the server is gone."""

    async def reply(exchange: Exchange) -> None:
        sent, send = 0, exchange.send_event

        async def counting(data: object) -> None:
            nonlocal sent
            await send(data)
            sent += 1
            if sent == events:
                target.stop()
                exchange.end_connection()

        exchange.send_event = counting  # type: ignore[method-assign]
        await target.unscripted(exchange)(exchange)

    target.replies[path] = reply


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
