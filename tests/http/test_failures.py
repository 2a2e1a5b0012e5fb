"""Targets that are away, loading, slow, wrong or die: what the client sees of it."""

from __future__ import annotations

import json
import time
from typing import Any

import anyio
import httpx
import pytest
from http_support import ANSWER, CHAT, StartFake, StartRouter, until, until_known

from specrouter.testing import Exchange, ToyModel, hang, reset, respond_with

pytestmark = pytest.mark.anyio

PATH = "/v1/chat/completions"


def content(response: httpx.Response) -> str:
    """The text of an unstreamed answer."""
    response.raise_for_status()
    return str(response.json()["choices"][0]["message"]["content"])


async def until_refused(client: httpx.AsyncClient, model: str = "fast") -> None:
    """Wait until the router has noticed that nobody listens any more."""
    with anyio.fail_after(30):
        while "no connection" not in (await client.post(PATH, json={**CHAT, "model": model})).text:
            pass


# -- another target takes over -----------------------------------------------------------------------------


async def loading(exchange: Exchange) -> None:
    await exchange.respond({"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}}, 503)


async def close_at_once(exchange: Exchange) -> None:
    exchange.end_connection(rst=False)


async def half_a_head(exchange: Exchange) -> None:
    await exchange.send(b"HTTP/1.1 200 OK\r\nContent-Ty")
    exchange.end_connection(rst=False)


async def no_http(exchange: Exchange) -> None:
    await exchange.send(b"220 mail ready\r\n\r\n")
    exchange.end_connection(rst=False)


async def head_only(exchange: Exchange) -> None:
    await exchange.start_stream()
    exchange.end_connection()


@pytest.mark.parametrize("stream", [False, True])
async def test_the_second_target_takes_over(fake: StartFake, router: StartRouter, stream: bool) -> None:
    first, second = await fake(), await fake(name="second.gguf")
    client = await router({"first": {"url": first.url, "load_wait": 0}, "second": second})
    for fault in (reset, close_at_once, half_a_head, no_http, head_only, loading):
        first.requests.clear()
        second.requests.clear()
        first.replies[PATH] = fault
        response = await client.post(PATH, json={**CHAT, "stream": stream})
        response.raise_for_status()
        assert "bada" in response.text, fault
        assert second.received(PATH)[0].json["model"] == "second.gguf"
        assert b"second.gguf" not in response.content
        assert len(second.received(PATH)) == 1
        # Once more on a fresh connection, if the first broke in a kept one.
        assert 1 <= len(first.received(PATH)) <= 2


async def test_a_target_that_refuses_is_passed_over(fake: StartFake, router: StartRouter) -> None:
    first, second = await fake("first"), await fake("second")
    client = await router({"first": first, "second": second})
    assert content(await client.post(PATH, json=CHAT)) == "first"
    first.stop()
    assert content(await client.post(PATH, json=CHAT)) == "second"
    await first.start()
    with anyio.fail_after(30):
        while content(await client.post(PATH, json=CHAT)) != "first":
            await anyio.sleep(0.05)


async def test_a_target_that_is_back_is_used_again(fake: StartFake, router: StartRouter) -> None:
    target = await fake()
    client = await router({"big": target})
    target.stop()
    refused = await client.post(PATH, json=CHAT)
    assert refused.status_code == 502
    assert refused.json()["error"]["code"] == "upstream_unavailable"
    assert "'big'" in refused.json()["error"]["message"]
    await target.start()
    assert content(await client.post(PATH, json=CHAT)) == ANSWER


async def test_all_targets_are_away(router: StartRouter) -> None:
    away = {"url": "http://127.0.0.1:9"}
    client = await router({"one": away, "other": away}, wait=False)
    response = await client.post(PATH, json={**CHAT, "stream": True})
    assert response.status_code == 502
    assert response.json()["error"]["code"] == "upstream_unavailable"


async def test_a_kept_connection_that_the_server_closed_is_no_fault(fake: StartFake, router: StartRouter) -> None:
    """llama-server closes idle connections; the next request must not fall into the gap."""
    target = await fake()
    client = await router({"big": target})

    async def answer_and_close(exchange: Exchange) -> None:
        await exchange.respond({"model": "toy-model.gguf"})
        exchange.end_connection(rst=False)

    target.replies[PATH] = answer_and_close
    for _ in range(5):
        response = await client.post(PATH, json=CHAT)
        assert response.status_code == 200


async def test_all_kept_connections_may_be_stale(fake: StartFake, router: StartRouter) -> None:
    target = await fake()
    client = await router({"big": target})

    async def answer_and_reset(exchange: Exchange) -> None:
        await exchange.respond({"model": "toy-model.gguf"})
        exchange.end_connection()

    target.replies[PATH] = answer_and_reset
    statuses: list[int] = []

    async def ask() -> None:
        statuses.append((await client.post(PATH, json=CHAT)).status_code)

    for _ in range(3):
        async with anyio.create_task_group() as tasks:
            for _ in range(8):
                tasks.start_soon(ask)
    assert statuses == [200] * 24


# -- loading -----------------------------------------------------------------------------------------------


async def test_loading_is_waited_for(fake: StartFake, router: StartRouter) -> None:
    target = await fake()
    client = await router({"big": target})
    target.loading = True

    async def finish() -> None:
        await anyio.sleep(0.4)
        target.loading = False

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(finish)
        assert content(await client.post(PATH, json=CHAT)) == ANSWER


async def test_loading_for_too_long(fake: StartFake, router: StartRouter) -> None:
    target = await fake()
    target.loading = True
    client = await router({"big": {"url": target.url, "load_wait": 0.3}}, wait=False)
    started = time.monotonic()
    response = await client.post(PATH, json={**CHAT, "stream": True})
    assert time.monotonic() - started < 10
    assert response.status_code == 503
    assert int(response.headers["retry-after"]) > 0
    assert response.json()["error"]["type"] == "unavailable_error"


async def test_a_busy_server_is_not_a_loading_one(fake: StartFake, router: StartRouter) -> None:
    target = await fake()
    client = await router({"big": target})
    target.replies[PATH] = respond_with({"error": "no slot"}, 503)
    response = await client.post(PATH, json=CHAT)
    assert (response.status_code, response.json()) == (503, {"error": "no slot"})
    assert len(target.received(PATH)) == 1


# -- slow --------------------------------------------------------------------------------------------------


async def test_slow_is_not_dead(fake: StartFake, router: StartRouter) -> None:
    """Longer than any time-out there is: the connect time-out is 0.2 s here."""
    target = await fake()
    target.prompt_seconds = 0.8
    client = await router({"big": {"url": target.url, "connect_timeout": 0.2}})
    assert content(await client.post(PATH, json=CHAT)) == ANSWER


async def test_silent_probes_of_a_busy_server_do_not_take_it_away(fake: StartFake, router: StartRouter) -> None:
    target = await fake()
    client = await router({"big": target})
    target.replies["/health"] = hang
    assert content(await client.post(PATH, json=CHAT)) == ANSWER


# -- death within an answer --------------------------------------------------------------------------------


def dying_after(pieces: int, *, rst: bool) -> Any:
    async def die(exchange: Exchange, number: int) -> None:
        if number == pieces:
            exchange.end_connection(rst=rst)

    return die


@pytest.mark.parametrize("rst", [True, False])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/completion"])
async def test_death_within_a_stream(fake: StartFake, router: StartRouter, path: str, rst: bool) -> None:
    target = await fake()
    target.before_token = dying_after(3, rst=rst)
    client = await router({"big": target})
    response = await client.post(path, json={**CHAT, "prompt": "x", "stream": True})
    assert response.status_code == 200
    events = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    assert "[DONE]" not in events
    objects = [json.loads(event) for event in events]
    assert [list(event) for event in objects if "error" in event] == [["error"]]
    assert objects[-1]["error"]["code"] == "upstream_unavailable"
    assert "'big'" in objects[-1]["error"]["message"]
    said = [event for event in objects if "bada" in str(event)]
    assert len(said) == 1
    assert not any(choice.get("finish_reason") for event in objects for choice in event.get("choices", ()))


@pytest.mark.parametrize("rst", [True, False])
async def test_death_within_an_event(fake: StartFake, router: StartRouter, rst: bool) -> None:
    """Half an event must not run into the error event."""
    target = await fake()

    async def reply(exchange: Exchange) -> None:
        await exchange.start_stream()
        await exchange.send_event({"choices": [], "n": 1})
        await exchange.send_event(b'data: {"choices": [], "n')
        await anyio.sleep(0.05)
        exchange.end_connection(rst=rst)

    target.replies[PATH] = reply
    client = await router({"big": target})
    response = await client.post(PATH, json={**CHAT, "stream": True})
    events = [json.loads(line[6:]) for line in response.text.split("\n\n") if line]
    assert [sorted(event) for event in events] == [["choices", "n"], ["error"]]


async def test_death_within_an_unstreamed_answer(fake: StartFake, router: StartRouter) -> None:
    first, second = await fake(), await fake("second")

    async def reply(exchange: Exchange) -> None:
        await exchange.send(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{")
        exchange.end_connection()

    first.replies[PATH] = reply
    client = await router({"first": first, "second": second})
    # Nothing has reached the client: the second target may answer.
    assert content(await client.post(PATH, json=CHAT)) == "second"


async def test_an_error_event_passes(fake: StartFake, router: StartRouter) -> None:
    target = await fake()
    error = {"error": {"code": 500, "message": "context shift is disabled", "type": "server_error"}}

    async def before(exchange: Exchange, number: int) -> None:
        if number == 2:
            await exchange.send_event(error)
            await exchange.end_stream()
            exchange.end_connection(rst=False)

    target.before_token = before
    client = await router({"big": target})
    response = await client.post(PATH, json={**CHAT, "stream": True})
    events = [json.loads(line[6:]) for line in response.text.split("\n\n") if line]
    assert events[-1] == error
    assert len([event for event in events if "error" in event]) == 1
    assert "koda" not in response.text


# -- errors of the target ----------------------------------------------------------------------------------


async def test_error_statuses_pass(fake: StartFake, router: StartRouter) -> None:
    first, second = await fake(), await fake()
    client = await router({"first": first, "second": second})
    for status in (400, 401, 404, 413, 422, 429, 500, 501, 502, 504):
        body = b'{"error": {"code": %d,  "message":"own words"}}' % status
        first.replies[PATH] = respond_with(body, status, {"X-Why": "because", "Retry-After": "7"})
        for stream in (False, True):
            response = await client.post(PATH, json={**CHAT, "stream": stream})
            assert (response.status_code, response.content) == (status, body)
            assert response.headers["x-why"] == "because"
            assert response.headers["retry-after"] == "7"
    assert not second.received(PATH)


async def test_too_long_a_prompt(fake: StartFake, router: StartRouter) -> None:
    client = await router({"big": await fake(n_ctx=8)})
    response = await client.post(PATH, json={**CHAT, "stream": True})
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "exceed_context_size_error"


async def test_redirects_are_not_followed(fake: StartFake, router: StartRouter) -> None:
    target, other = await fake(), await fake()
    target.replies[PATH] = respond_with(b"", 307, {"Location": f"{other.url}{PATH}"})
    client = await router({"big": {"url": target.url, "api_key": "secret"}})
    response = await client.post(PATH, json=CHAT)
    assert response.status_code == 307
    assert not other.requests


async def test_the_model_changes(fake: StartFake, router: StartRouter) -> None:
    """A server that was restarted with another model is asked under that one's name."""
    target = await fake()
    client = await router({"big": target})
    target.stop()
    await until_refused(client)
    target.name, target.model = "other.gguf", ToyModel("other")
    await target.start()
    with anyio.fail_after(30):
        while not target.received("/props"):
            await anyio.sleep(0.02)
        while target.received(PATH)[-1:] == [] or target.received(PATH)[-1].json["model"] != "other.gguf":
            assert content(await client.post(PATH, json=CHAT)) == "other"


async def test_a_server_that_knows_little(fake: StartFake, router: StartRouter) -> None:
    """Not a llama-server: no /props, no meta, another shape of /health."""
    target = await fake()
    target.replies["/health"] = respond_with({"fine": True})
    target.replies["/props"] = respond_with({"detail": "Not Found"}, 404)
    target.replies["/v1/models"] = respond_with({"object": "list", "data": [{"id": "theirs"}]})
    client = await router({"big": target}, wait=False)
    with anyio.fail_after(30):
        while not target.received(PATH) or target.received(PATH)[-1].json["model"] != "theirs":
            assert content(await client.post(PATH, json=CHAT)) == ANSWER


NONSENSE = [b"", b"[]", b"null", b'{"data": [7]}', b'{"data": {"0": 1}}', b"<html>", b'{"data": []}', b'{"data": "no"}']


async def test_nonsense_about_itself(fake: StartFake, router: StartRouter) -> None:
    """Whatever servers say about themselves, the router goes on, and takes it when it makes sense again."""
    servers = {f"s{index}": await fake() for index in range(len(NONSENSE))}
    for server, body in zip(servers.values(), NONSENSE, strict=True):
        server.replies["/v1/models"] = server.replies["/props"] = respond_with(body)
    client = await router(servers, {name: {"target": name} for name in servers}, wait=False)
    for name, server in servers.items():
        await until(lambda server=server: server.received("/v1/models"))
        assert content(await client.post(PATH, json={**CHAT, "model": name})) == ANSWER
        server.replies.clear()
        server.stop()
        await until_refused(client, name)
        await server.start()
    await until_known(client)
