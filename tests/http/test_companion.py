"""Whatever happens on the draft side, the client gets the target's answer, whole and in time."""

from __future__ import annotations

import json
import logging
import shutil
import time
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from http_support import ANSWER, CHAT, Pair, StartFake, StartRouter, decoding, until_decoding

from specrouter.testing import Exchange, Reply, ToyModel, hang, reset, respond_with

pytestmark = pytest.mark.anyio

PATH = "/v1/chat/completions"
DRAFTED = {**CHAT, "stream": True}


def comparable(answer: bytes) -> Any:
    """An answer without what drafting may change: how long it took, how much was drafted, and in which slot."""
    events = [event.removeprefix(b"data: ") for event in answer.split(b"\n\n")]
    objects = [json.loads(event) if event.startswith(b"{") else event for event in events]
    for event in objects:
        if isinstance(event, dict):
            event.pop("timings", None)
            event.pop("id_slot", None)
    return objects


async def answers(client: httpx.AsyncClient, *, stream: bool = True) -> tuple[bytes, bytes, float]:
    """The answer of the drafted route, that of the plain one under the same name, and the first one's seconds."""
    body = {**CHAT, "stream": stream}
    started = time.monotonic()
    drafted = await client.post(PATH, json=body)
    seconds = time.monotonic() - started
    plain = await client.post(PATH, json={**body, "model": "plain"})
    drafted.raise_for_status()
    return drafted.content, plain.content.replace(b'"model":"plain"', b'"model":"fast"'), seconds


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/completion"])
@pytest.mark.parametrize("stream", [True, False])
async def test_the_answer_stays_and_comes_sooner(pair: Pair, router: StartRouter, path: str, stream: bool) -> None:
    client = await router(pair.servers, pair.routes)
    await until_decoding(client, "inject")
    words = [f" {a}{b}" for a in ("ba", "ko", "mi", "tu", "ze", "ra") for b in ("da", "fo", "li", "ne", "pu", "so")]
    pair.target.model = pair.drafter.model = ToyModel("".join(words) + " 👩‍👩‍👧 é日本\n" + "".join(reversed(words)))
    pair.drafter.step_seconds = 0.001
    body = {**CHAT, "prompt": "x", "stream": stream}
    drafted = await client.post(path, json=body)
    assert drafted.headers["x-specrouter-decoding"] == "inject"
    primes = len([r for r in pair.target.received("/completion") if r.json.get("n_predict") == 0])
    plain = await client.post(path, json={**body, "model": "plain"})
    expected = plain.content.replace(b'"model":"plain"', b'"model":"fast"')
    assert primes
    assert comparable(drafted.content) == comparable(expected)
    events = [event for event in drafted.content.split(b"data: ") if b"timings" in event]
    assert json.loads(events[-1])["timings"]["draft_n_accepted"] > 0


async def nonsense_html(exchange: Exchange) -> None:
    await exchange.respond(b"<html>hello</html>", headers={"Content-Type": "text/html"})


def stream_of(*events: object) -> Reply:
    async def reply(exchange: Exchange) -> None:
        await exchange.start_stream()
        for event in events:
            await exchange.send_event(event)
        await exchange.end_stream()

    return reply


async def dying(exchange: Exchange) -> None:
    await exchange.start_stream()
    for index in range(3):
        await exchange.send_event({"content": " bada", "tokens": [300], "tokens_predicted": index + 1, "stop": False})
    exchange.end_connection()


async def hanging_within(exchange: Exchange) -> None:
    await exchange.start_stream()
    await exchange.send_event({"content": " ba", "tokens": [300], "tokens_predicted": 1, "stop": False})
    await anyio.sleep_forever()


FAULTS: dict[str, Reply] = {
    "hangs": hang,
    "hangs within": hanging_within,
    "resets": reset,
    "dies within": dying,
    "loads": respond_with({"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}}, 503),
    "fails": respond_with({"error": {"code": 500, "message": "out of memory", "type": "server_error"}}, 500),
    "html": nonsense_html,
    "no json": stream_of(b"data: hello\n\n"),
    "a list": stream_of([1, 2]),
    "a number": stream_of(7),
    "wrong types": stream_of({"content": 7, "tokens": "abc", "tokens_predicted": "many"}),
    "tokens of text": stream_of({"content": "x", "tokens": ["a"], "tokens_predicted": 1}),
    "probabilities of text": stream_of(
        {"content": " bada", "tokens": [300], "tokens_predicted": 1, "completion_probabilities": [{"logprob": "high"}]}
    ),
    "probabilities of nothing": stream_of(
        {"content": " bada", "tokens": [300], "tokens_predicted": 1, "completion_probabilities": [7]}
    ),
    "id too large": stream_of({"content": " bada", "tokens": [10**9], "tokens_predicted": 1}),
    "id negative": stream_of({"content": " bada", "tokens": [-5], "tokens_predicted": 1}),
    "an error": stream_of({"error": {"code": 500, "message": "no", "type": "server_error"}}),
    "nothing": stream_of(),
    "no end": stream_of({"content": "", "tokens": [], "tokens_predicted": 0, "stop": True}),
}


SILENT = {"hangs", "hangs within", "html", "nothing", "no end", "id too large", "id negative"}
"""Faults that end no draft: there is just nothing to prime."""


async def test_a_faulty_drafter_costs_nothing(
    pair: Pair, router: StartRouter, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "specrouter")
    client = await router(pair.servers, pair.routes)
    await until_decoding(client, "inject")
    expected = {stream: (await answers(client, stream=stream))[1] for stream in (True, False)}
    for name, fault in FAULTS.items():
        caplog.clear()
        pair.drafter.replies["/completion"] = fault
        for stream, plain in expected.items():
            started = time.monotonic()
            drafted = await client.post(PATH, json={**CHAT, "stream": stream})
            assert time.monotonic() - started < 5, name
            assert comparable(drafted.content) == comparable(plain), name
        assert "an error in specrouter" not in caplog.text, name
        if name not in SILENT:
            # An answer may be over before the fault shows.
            with anyio.fail_after(20):
                while "ended early" not in caplog.text:
                    await client.post(PATH, json=CHAT)
        # Without a restart of anything, drafts flow again.
        pair.drafter.replies.clear()
        await until_decoding(client, "inject")
        before = len(pair.drafter.received("/completion"))
        # Not with every answer: drafting may rest, where the machine is busy.
        with anyio.fail_after(20):
            while len(pair.drafter.received("/completion")) == before:
                assert (await client.post(PATH, json=DRAFTED)).status_code == 200


async def test_a_drafter_that_comes_and_goes(pair: Pair, router: StartRouter) -> None:
    pair.drafter.stop()
    client = await router(pair.servers, pair.routes)
    await until_decoding(client, "plain; reason=draft server laptop is down")
    await pair.drafter.start()
    await until_decoding(client, "inject")

    async def stop(exchange: Exchange, number: int) -> None:
        if number == 10:
            pair.drafter.stop()

    pair.target.before_token = stop
    drafted, plain, _ = await answers(client)
    pair.target.before_token = None
    assert comparable(drafted) == comparable(plain)
    await until_decoding(client, "plain; reason=draft server laptop is down")
    await pair.drafter.start()
    await until_decoding(client, "inject")


async def test_a_drafter_that_loads_at_start(pair: Pair, router: StartRouter) -> None:
    pair.drafter.loading = True
    client = await router(pair.servers, pair.routes)
    await until_decoding(client, "plain; reason=draft server laptop is loading")
    pair.drafter.loading = False
    await until_decoding(client, "inject")


async def test_a_silent_drafter_at_start(pair: Pair, router: StartRouter) -> None:
    pair.drafter.replies["*"] = hang
    client = await router(pair.servers, pair.routes)
    started = time.monotonic()
    assert "draft server laptop is unknown" in await decoding(client)
    assert time.monotonic() - started < 4


async def test_a_prompt_beyond_the_drafters_context(pair: Pair, router: StartRouter, fake: StartFake) -> None:
    small = await fake(n_ctx=16)
    client = await router({"big": pair.target, "laptop": small}, pair.routes)
    await until_decoding(client, "nothing to draft")
    body = {**CHAT, "messages": [{"role": "user", "content": " bako" * 40}]}
    response = await client.post(PATH, json=body)
    assert response.headers["x-specrouter-decoding"] == "plain; reason=nothing to draft"
    assert response.json()["choices"][0]["message"]["content"] == ANSWER
    assert not small.received("/completion")


async def test_a_context_that_ends_within_the_answer(pair: Pair, router: StartRouter, fake: StartFake) -> None:
    small = await fake(n_ctx=40)
    client = await router({"big": pair.target, "laptop": small}, pair.routes)
    await until_decoding(client, "inject")
    drafted, plain, _ = await answers(client)
    assert comparable(drafted) == comparable(plain)
    assert small.received("/completion")


async def test_ids_the_target_lacks_are_never_sent(pair: Pair, router: StartRouter) -> None:
    client = await router(pair.servers, pair.routes)
    await until_decoding(client, "inject")
    size = len(pair.target.model.vocabulary)
    for wrong in (size, 10**9, -5):
        drafted = [{"content": "?", "tokens": [wrong], "tokens_predicted": count} for count in range(1, 13)]
        pair.drafter.replies["/completion"] = stream_of(*drafted)
        await client.post(PATH, json=DRAFTED)
        for request in pair.target.received("/completion"):
            assert set(request.json["prompt"]) <= set(range(size)), wrong


TARGET_FAULTS = [hang, reset, respond_with(b"nonsense"), respond_with([1]), respond_with({}, 500)]


@pytest.mark.parametrize("path", ["/tokenize", "/apply-template"])
async def test_side_requests_to_the_target_that_fail(
    pair: Pair, router: StartRouter, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    client = await router(pair.servers, pair.routes)
    await until_decoding(client, "inject")
    for fault in TARGET_FAULTS:
        pair.target.replies[path] = fault
        drafted, plain, seconds = await answers(client)
        assert comparable(drafted) == comparable(plain)
        assert seconds < 1
    assert "an error in specrouter" not in caplog.text


async def test_primes_that_fail(pair: Pair, router: StartRouter) -> None:
    client = await router(pair.servers, pair.routes)
    await until_decoding(client, "inject")
    for fault in TARGET_FAULTS:
        pair.target.replies["/completion"] = fault
        drafted, plain, seconds = await answers(client)
        assert comparable(drafted) == comparable(plain)
        assert seconds < 2


async def test_the_target_is_asked_at_once(pair: Pair, router: StartRouter) -> None:
    """Time to first token does not wait for the companion's questions."""
    client = await router(pair.servers, pair.routes)
    await until_decoding(client, "inject")
    before = len(pair.target.requests)
    await client.post(PATH, json=DRAFTED)
    after = [request.path for request in pair.target.requests[before:]]
    assert after.index(PATH) <= 1


BROKEN = ["available", "draft_server", "start", "draft", "draft later", "observe", "aclose"]


@pytest.mark.parametrize("where", [*BROKEN, "inspect", "accompany", "covers", "check"])
async def test_a_plugin_that_raises(
    fake: StartFake, pair: Pair, router: StartRouter, tmp_path: Path, where: str
) -> None:
    shutil.copy(Path(__file__).with_name("broken_plugins.py"), tmp_path / "broken_plugins.py")
    broken = {"use": "broken", "options": {"raises": where}}
    route: dict[str, Any] = {"target": "big", "draft": {"use": "remote", "options": {"server": "laptop"}}}
    if where in BROKEN:
        route["draft"] = broken
    elif where == "covers":
        route["accept"] = "broken"
    elif where == "check":
        route["tokenizer_checks"] = ["broken"]
    else:
        route["verify"] = broken
    client = await router(pair.servers, {"fast": route}, plugins=["broken_plugins.py"])
    if where in ("available", "draft_server", "start", "inspect", "check", "covers"):
        await until_decoding(client, "plugin 'broken' (broken_plugins.py file) raised Broken")
    elif where != "accompany":
        await until_decoding(client, "inject")
    for stream in (True, False):
        response = await client.post(PATH, json={**CHAT, "stream": stream})
        assert response.status_code == 200
        assert "rali" in response.text


async def test_chats_in_turns_keep_their_caches(pair: Pair, router: StartRouter) -> None:
    """Primes of one chat after the other take one slot, and leave the others to the chats."""
    client = await router(pair.servers, pair.routes)
    await until_decoding(client, "inject")
    pair.drafter.step_seconds = 0.001
    openings = [letter * 100 for letter in "xyz"]

    async def ask(prompt: str) -> Any:
        body = {**CHAT, "prompt": prompt, "cache_prompt": True}
        return (await client.post("/v1/completions", json=body)).json()

    primes = len(pair.target.received("/completion"))
    for opening in openings:
        await ask(opening)
    assert len(pair.target.received("/completion")) > primes
    for opening in openings:
        answer = await ask(opening + ANSWER + opening)
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] > 100
