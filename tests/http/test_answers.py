"""The target's answer reaches the client as it is, but for the model's name."""

from __future__ import annotations

import json
from typing import Any

import anyio
import httpx
import pytest
from http_support import ANSWER, CHAT, StartFake, StartRouter

from specrouter.testing import Exchange, FakeServer, respond_with

pytestmark = pytest.mark.anyio

BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi 👩‍👩‍👧"}]},
    "/v1/completions": {"prompt": "The sky is"},
    "/completion": {"prompt": "The sky is"},
}


async def directly(server: FakeServer, path: str, body: dict[str, Any]) -> bytes:
    """What the server itself answers."""
    async with httpx.AsyncClient(base_url=server.url) as client:
        return (await client.post(path, json=body)).content


def renamed(answer: bytes, name: str) -> bytes:
    return answer.replace(b'"model":"toy-model.gguf"', f'"model":{json.dumps(name)}'.encode())


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("segment", [1, 100_000])
async def test_only_the_model_name_differs(
    fake: StartFake, router: StartRouter, path: str, stream: bool, segment: int
) -> None:
    target = await fake("<think> bako</think>é 👩‍👩‍👧 日本語 deli\n\ndata: x")
    target.cut = lambda data: (data[i : i + segment] for i in range(0, len(data), segment))
    client = await router({"big": target})
    body = {**BODIES[path], "stream": stream, "cache_prompt": False, "stream_options": {"include_usage": True}}
    response = await client.post(path, json={**body, "model": "quick/one"})
    expected = await directly(target, path, {**body, "model": "toy-model.gguf"})
    assert response.content == renamed(expected, "quick/one")
    assert b"quick/one" in response.content
    assert target.received(path)[0].json["model"] == "toy-model.gguf"


async def test_the_head_of_a_stream(fake: StartFake, router: StartRouter) -> None:
    client = await router({"big": await fake()})
    response = await client.post("/v1/chat/completions", json={**CHAT, "stream": True})
    assert response.headers["content-type"] == "text/event-stream"
    assert response.headers["x-specrouter-decoding"] == "plain"
    assert "content-length" not in response.headers


async def test_the_bytes_of_the_request_stay(fake: StartFake, router: StartRouter) -> None:
    target = await fake()
    client = await router({"big": target})
    sent = b'{ "min_p" : 0.050, "mod\\u0065l":"fast","messages":[{"role":"user","content":"\\u00e9 \\ud83d\\ude00"}],\n'
    sent += b'"n":1.0e0 , "chat_template_kwargs": {"model": "fast"}, "seed": 12345678901234567890 }'
    assert (await client.post("/v1/chat/completions", content=sent)).status_code == 200
    received = target.received("/v1/chat/completions")[0].body
    assert received == sent.replace(b'"mod\\u0065l":"fast"', b'"mod\\u0065l":"toy-model.gguf"')


async def test_unknown_fields_survive_both_ways(fake: StartFake, router: StartRouter) -> None:
    target = await fake()
    answer = {"model": "toy-model.gguf", "choices": [], "new_field": {"model": "inner", "deep": [1.50, None]}}
    target.replies["/v1/chat/completions"] = respond_with(answer)
    client = await router({"big": target})
    response = await client.post("/v1/chat/completions", json={**CHAT, "new_option": {"a": [1]}})
    assert response.json() == {**answer, "model": "fast"}
    assert target.received("/v1/chat/completions")[0].json["new_option"] == {"a": [1]}


async def test_an_unknown_generation_path_is_proxied(fake: StartFake, router: StartRouter) -> None:
    target = await fake()
    answer = {"model": "toy-model.gguf", "data": [{"embedding": [0.5]}]}
    target.replies["/v1/embeddings"] = respond_with(answer)
    client = await router({"big": target})
    response = await client.post("/v1/embeddings", json={"model": "fast", "input": "hi"})
    assert response.json() == {**answer, "model": "fast"}
    assert response.headers["x-specrouter-decoding"] == "plain"


async def test_the_model_is_renamed_where_an_api_repeats_it(fake: StartFake, router: StartRouter) -> None:
    target = await fake()

    async def responses(exchange: Exchange) -> None:
        await exchange.start_stream()
        created = {"type": "response.created", "response": {"id": "r", "model": "toy-model.gguf"}}
        await exchange.send_event(b"event: response.created\ndata: " + json.dumps(created).encode() + b"\n\n")
        await exchange.end_stream()

    target.replies["/v1/responses"] = responses
    client = await router({"big": target})
    response = await client.post("/v1/responses", json={"model": "fast", "input": "hi", "stream": True})
    lines = response.content.splitlines()
    assert lines[0] == b"event: response.created"
    assert json.loads(lines[1].removeprefix(b"data: "))["response"] == {"id": "r", "model": "fast"}


async def test_a_body_that_is_not_json_comes_back_as_it_is(fake: StartFake, router: StartRouter) -> None:
    target = await fake()
    sound = bytes(range(256)) * 40
    target.replies["/v1/audio/speech"] = respond_with(sound, headers={"Content-Type": "audio/wav"})
    client = await router({"big": target})
    response = await client.post("/v1/audio/speech", json={"model": "fast"})
    assert response.content == sound
    assert response.headers["content-type"] == "audio/wav"


async def test_comments_pass(fake: StartFake, router: StartRouter) -> None:
    target = await fake()

    async def reply(exchange: Exchange) -> None:
        await exchange.start_stream()
        await exchange.send_event(b":\n\n")
        await exchange.send_event({"choices": [], "model": "toy-model.gguf"})
        await exchange.send_event(b"data: [DONE]\n\n")
        await exchange.end_stream()

    target.replies["/v1/chat/completions"] = reply
    client = await router({"big": target})
    response = await client.post("/v1/chat/completions", json={**CHAT, "stream": True})
    assert response.content == b':\n\ndata: {"choices":[],"model":"fast"}\n\ndata: [DONE]\n\n'


async def test_a_stream_cut_short_is_no_whole_answer(fake: StartFake, router: StartRouter) -> None:
    """A server that closes its answer properly, but too early, is a server that died."""
    target = await fake()

    async def reply(exchange: Exchange) -> None:
        await exchange.start_stream()
        await exchange.send_event({"choices": [{"index": 0, "delta": {"content": "half"}}]})
        await exchange.send_event(b"proxy error")
        await exchange.end_stream()

    target.replies["/v1/chat/completions"] = reply
    client = await router({"big": target})
    response = await client.post("/v1/chat/completions", json={**CHAT, "stream": True})
    assert "half" in response.text
    assert "proxy error" not in response.text
    assert '"code": "upstream_unavailable"' in response.text
    assert "[DONE]" not in response.text


@pytest.mark.parametrize(
    ("include", "empty"), [({"stream_options": {"include_usage": True}}, 1), ({}, 0)], ids=["usage", "no usage"]
)
async def test_usage_only_for_those_who_ask(
    fake: StartFake, router: StartRouter, include: dict[str, Any], empty: int
) -> None:
    client = await router({"big": await fake()})
    response = await client.post("/v1/chat/completions", json={**CHAT, **include, "stream": True})
    events = [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: {")]
    assert len([event for event in events if event["choices"] == []]) == empty
    assert response.text.endswith("data: [DONE]\n\n")


async def test_events_are_not_held_back(fake: StartFake, router: StartRouter) -> None:
    """The first event arrives while the second has not been written."""
    target = await fake()
    client = await router({"big": target})
    seen: list[str] = []

    async def before(exchange: Exchange, number: int) -> None:
        if number == 1:
            await until_seen()

    async def until_seen() -> None:
        with anyio.fail_after(30):
            while "bada" not in "".join(seen):
                await anyio.sleep(0.005)

    target.before_token = before
    async with client.stream("POST", "/v1/chat/completions", json={**CHAT, "stream": True}) as response:
        async for text in response.aiter_text():
            seen.append(text)
    assert "[DONE]" in "".join(seen)


async def test_a_large_body(fake: StartFake, router: StartRouter) -> None:
    target = await fake(n_ctx=1 << 30)
    target.replies["/v1/chat/completions"] = respond_with({"model": "toy-model.gguf"})
    client = await router({"big": target})
    image = "data:image/png;base64," + "A" * 20_000_000
    body = {**CHAT, "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": image}}]}]}
    content = json.dumps(body).encode()
    curl = {"content-type": "application/x-www-form-urlencoded"}
    for headers in ({"content-type": "application/json"}, curl, {}):
        response = await client.post("/v1/chat/completions", content=content, headers=headers)
        assert response.json() == {"model": "fast"}
        received = target.received("/v1/chat/completions")[-1]
        assert received.body == content.replace(b'"fast"', b'"toy-model.gguf"', 1)
        # llama-server takes only 1 MiB of a form.
        assert received.header("content-type") == "application/json"


async def test_models(fake: StartFake, router: StartRouter) -> None:
    target = await fake()
    routes = {"fast": {"target": "big", "aliases": ["org/model:q4"]}, "org/other": {"target": "big"}}
    client = await router({"big": target}, routes)
    listed = (await client.get("/v1/models")).json()
    assert [model["id"] for model in listed["data"]] == ["fast", "org/other"]
    assert listed["object"] == "list"
    meta = {"vocab_type": 2, "n_vocab": 6664, "n_ctx": 4096, "n_ctx_train": 4096, "n_params": 1000}
    assert listed["data"][0]["meta"] == meta
    assert (await client.get("/v1/models/org/other")).json()["id"] == "org/other"
    assert (await client.get("/v1/models/org/model:q4")).json()["id"] == "fast"
    missing = await client.get("/v1/models/nobody")
    assert missing.status_code == 404
    assert missing.json()["error"]["code"] == "model_not_found"


async def test_health(router: StartRouter) -> None:
    client = await router({"big": {"url": "http://127.0.0.1:9"}}, wait=False, api_keys=["secret"])
    response = await client.get("/health", headers={"authorization": ""})
    assert (response.status_code, response.json()) == (200, {"status": "ok"})


async def test_the_answer_is_the_toy_models(fake: StartFake, router: StartRouter) -> None:
    client = await router({"big": await fake()})
    answer = (await client.post("/v1/chat/completions", json=CHAT)).json()
    assert answer["choices"][0]["message"]["content"] == ANSWER


async def test_an_upload_names_its_model_in_a_form(fake: StartFake, router: StartRouter) -> None:
    target = await fake()
    target.replies["/v1/audio/transcriptions"] = respond_with({"text": "hello", "model": "toy-model.gguf"})
    client = await router({"ears": target})
    sound = bytes(range(256)) * 20
    answer = await client.post(
        "/v1/audio/transcriptions", data={"model": "fast", "language": "de"}, files={"file": ("a.wav", sound)}
    )
    assert answer.json() == {"text": "hello", "model": "fast"}
    [received] = target.received("/v1/audio/transcriptions")
    assert (received.header("content-type") or "").startswith("multipart/form-data; boundary=")
    assert sound in received.body
    assert b"\r\n\r\ntoy-model.gguf\r\n" in received.body
    unknown = await client.post("/v1/audio/transcriptions", data={"model": "x"}, files={"file": ("a.wav", sound)})
    assert unknown.status_code == 404
    broken = await client.post(
        "/v1/audio/transcriptions", content=b"{}", headers={"content-type": "multipart/form-data"}
    )
    assert broken.status_code == 400
