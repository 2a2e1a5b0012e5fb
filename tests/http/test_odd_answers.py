"""Answers of targets that stop half-way or say what nobody expects."""

from __future__ import annotations

import json
from typing import Any

import anyio
import httpx
import pytest
from http_support import ANSWER, CHAT, StartFake, StartRouter

from specrouter import upstream
from specrouter.testing import Exchange, respond_with

pytestmark = pytest.mark.anyio

PATH = "/v1/chat/completions"

HALF_503 = b"HTTP/1.1 503 Busy\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{"


def events_of(text: str) -> list[Any]:
    """The data of a stream's events; comments are none."""
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")]


# -- half an error -----------------------------------------------------------------------------------------


async def breaks(exchange: Exchange) -> None:
    await exchange.send(HALF_503)
    exchange.end_connection()


async def pauses(exchange: Exchange) -> None:
    await exchange.send(HALF_503)
    await anyio.sleep_forever()


@pytest.mark.parametrize(
    ("reply", "limits"), [(breaks, {}), (pauses, {"first_byte_timeout": 0.2}), (pauses, {"idle_timeout": 0.2})]
)
async def test_half_an_error_is_no_answer(
    fake: StartFake, router: StartRouter, reply: Any, limits: dict[str, float]
) -> None:
    first, second = await fake(), await fake()
    first.replies[PATH] = reply
    client = await router({"first": {"url": first.url, **limits}, "second": second})
    answer = await client.post(PATH, json=CHAT)
    answer.raise_for_status()
    assert answer.json()["choices"][0]["message"]["content"] == ANSWER


async def test_half_an_error_of_the_only_target(fake: StartFake, router: StartRouter) -> None:
    target = await fake()
    target.replies[PATH] = breaks
    client = await router({"big": target})
    answer = await client.post(PATH, json=CHAT)
    assert (answer.status_code, answer.json()["error"]["code"]) == (502, "upstream_unavailable")


# -- a stream that cannot go on ----------------------------------------------------------------------------


async def greets_and_dies(exchange: Exchange) -> None:
    await exchange.start_stream()
    await exchange.send_event(b": ping\n\n")
    await anyio.sleep(0.05)
    exchange.end_connection()


@pytest.mark.parametrize(
    ("status", "code"), [(400, "upstream_rejected"), (503, "upstream_rejected"), (200, "upstream_unavailable")]
)
async def test_another_kind_of_answer_ends_the_stream(
    fake: StartFake, router: StartRouter, status: int, code: str
) -> None:
    first, second = await fake(), await fake()
    first.replies[PATH] = greets_and_dies
    second.replies[PATH] = respond_with({"error": {"code": status, "message": "own words", "type": "x"}}, status)
    client = await router({"first": first, "second": second})
    answer = await client.post(PATH, json={**CHAT, "stream": True})
    assert answer.status_code == 200
    assert [event["error"]["code"] for event in events_of(answer.text)] == [code]


async def test_nobody_goes_on_with_what_is_no_stream(fake: StartFake, router: StartRouter) -> None:
    first, second = await fake(), await fake()

    async def plays(exchange: Exchange) -> None:
        await exchange.send(b"HTTP/1.1 200 OK\r\nContent-Type: audio/mpeg\r\nContent-Length: 100\r\n\r\nla")
        await anyio.sleep(0.05)
        exchange.end_connection()

    first.replies[PATH] = plays
    client = await router({"first": first, "second": second})
    with pytest.raises(httpx.RemoteProtocolError):
        await client.post(PATH, json={**CHAT, "stream": True})
    assert not second.received(PATH)


async def test_a_fault_of_ours_within_a_stream(
    fake: StartFake, router: StartRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> bytes:
        raise ZeroDivisionError

    client = await router({"big": await fake()})
    monkeypatch.setattr("specrouter.exchange.is_accounting", broken)
    answer = await client.post(PATH, json={**CHAT, "stream": True})
    assert answer.status_code == 200
    assert events_of(answer.text)[-1]["error"]["code"] == "internal_error"


# -- what is booked ----------------------------------------------------------------------------------------


async def test_an_error_event_is_no_success(fake: StartFake, router: StartRouter) -> None:
    target = await fake()

    async def fails(exchange: Exchange) -> None:
        await exchange.start_stream()
        await exchange.send_event({"choices": []})
        await exchange.send_event({"error": {"code": 500, "message": "own words", "type": "server_error"}})
        await exchange.end_stream()

    target.replies[PATH] = target.replies["/v1/responses"] = fails
    client = await router({"big": target})
    for path in (PATH, "/v1/responses"):
        assert "own words" in (await client.post(path, json={**CHAT, "stream": True})).text
    status = (await client.get("/specrouter/status")).json()
    assert [request["error_code"] for request in status["recent"]] == ["upstream_rejected"] * 2
    assert status["routes"][0]["lately"]["failed"] == 2


async def test_what_is_nested_too_deeply_is_no_usage(fake: StartFake, router: StartRouter) -> None:
    target = await fake()
    target.replies[PATH] = respond_with(b'{"usage": ' + b"[" * 100_000 + b"]" * 100_000 + b"}")
    client = await router({"big": target})
    (await client.post(PATH, json=CHAT)).raise_for_status()
    status = (await client.get("/specrouter/status")).json()
    assert [request["tokens"] for request in status["recent"]] == [None]
    assert status["current"] == []


async def test_how_it_was_decoded_is_ours_to_say(fake: StartFake, router: StartRouter) -> None:
    """A target may be a router, too."""
    target = await fake()
    target.replies[PATH] = respond_with({"choices": []}, headers={"X-Specrouter-Decoding": "inject"})
    client = await router({"big": target})
    answer = await client.post(PATH, json=CHAT)
    assert answer.headers.get_list("x-specrouter-decoding") == ["plain"]


# -- answers without an end --------------------------------------------------------------------------------


async def test_an_answer_about_itself_that_drips(
    fake: StartFake, router: StartRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time for a small question is that for all of its answer."""

    async def drip(exchange: Exchange) -> None:
        await exchange.start_stream()
        while True:
            await exchange.send_event(b" ")
            await anyio.sleep(0.02)

    monkeypatch.setattr(upstream, "PROBE_TIMEOUT", 0.3)
    first, second = await fake(), await fake()
    first.replies["/health"] = drip
    client = await router({"first": first, "second": second})
    with anyio.fail_after(10):
        while (states := await server_states(client))["first"] == "unknown":
            await anyio.sleep(0.02)
    assert states == {"first": "down", "second": "up"}


async def server_states(client: httpx.AsyncClient) -> dict[str, str]:
    status = (await client.get("/specrouter/status")).raise_for_status().json()
    return {server["name"]: server["state"] for server in status["servers"]}
