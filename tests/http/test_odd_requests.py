"""Requests that are well-formed HTTP and JSON, and odd all the same: none may harm the router or another client."""

from __future__ import annotations

from contextlib import aclosing

import pytest
from http_support import CHAT, Pair, StartFake, StartRouter, until_decoding
from raw_http import ask, connect, post

from specrouter.config.model import ServerConfig
from specrouter.errors import UpstreamRejected
from specrouter.types import ServerState
from specrouter.upstream import LlamaServer

pytestmark = pytest.mark.anyio

PATH = "/v1/chat/completions"


# -- names -------------------------------------------------------------------------------------------------


async def test_a_models_name_has_a_length(fake: StartFake, router: StartRouter) -> None:
    client = await router({"big": await fake()})
    answer = await client.post(PATH, json={**CHAT, "model": "m" * 513})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "model")
    assert "at most 512 characters, this one has 513" in answer.json()["error"]["message"]
    assert (await client.post(PATH, json={**CHAT, "model": "m" * 512})).status_code == 404
    await client.get("/" + "p" * 5000)
    recent = (await client.get("/specrouter/status")).json()["recent"]
    assert {len(request["model"]) for request in recent if request["model"]} == {201}
    assert max(len(request["path"]) for request in recent) == 201


async def test_half_a_surrogate_pair(fake: StartFake, router: StartRouter) -> None:
    """JSON can say what UTF-8 cannot."""
    client = await router({"big": await fake()})
    answer = await client.post(PATH, content=b'{"model": "\\ud800"}')
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")
    status = await client.get("/specrouter/status")
    status.raise_for_status()
    assert "\ud800" in [request["model"] for request in status.json()["recent"]]


# -- bodies ------------------------------------------------------------------------------------------------


async def test_millions_of_values_are_not_read(fake: StartFake, router: StartRouter) -> None:
    client = await router({"big": await fake()})
    answer = await client.post(PATH, content=b'{"model": "fast", "x": [' + b"[]," * 1_000_001 + b"0]}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "request_too_large")
    assert "2000000" in answer.json()["error"]["message"]


@pytest.mark.parametrize("said", [1, "yes", [True], {"a": 1}])
async def test_a_stream_that_is_no_boolean_is_the_targets_business(
    pair: Pair, router: StartRouter, said: object
) -> None:
    """Some builds refuse it, others take it for false: the target sees what the client wrote."""
    client = await router(pair.servers, pair.routes)
    await until_decoding(client, "inject")
    answer = await client.post(PATH, json={**CHAT, "stream": said})
    assert answer.headers["x-specrouter-decoding"] == "plain; reason=a stream that is no boolean"
    assert pair.target.received(PATH)[-1].json["stream"] == said


# -- headers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["", " ", "\t", " \t "])
async def test_white_space_behind_a_header(fake: StartFake, router: StartRouter, end: str) -> None:
    target = await fake()
    client = await router({"big": target}, api_keys=["right-key"])
    async with connect(client) as raw:
        await raw.send(post(CHAT, more=f"X-Foo: bar{end}\r\nX-Api-Key: right-key{end}\r\n"))
        assert (await raw.answer()).status == 200
    assert target.received(PATH)[0].header("x-foo") == "bar"


async def test_a_header_that_cannot_be_sent_is_no_fault_of_the_server(fake: StartFake) -> None:
    target = await fake()
    async with aclosing(LlamaServer(ServerConfig("big", target.url))) as server:
        server.set_state(ServerState.UP, "up")
        with pytest.raises(UpstreamRejected, match="'big' cannot be sent this request") as caught:
            async with server.open("POST", PATH, headers=[(b"x-foo", b"bar ")]):
                pass
        assert caught.value.status == 400
        assert server.state is ServerState.UP
    assert not target.received(PATH)


@pytest.mark.parametrize("authorization", ["Bearer", "bearer", "Basic dXNlcg=="])
async def test_an_empty_bearer_hides_no_key(fake: StartFake, router: StartRouter, authorization: str) -> None:
    client = await router({"big": await fake()}, api_keys=["right-key"])
    headers = {"authorization": authorization, "x-api-key": "right-key"}
    assert (await client.get("/v1/models", headers=headers)).status_code == 200
    assert (await client.get("/v1/models", headers={**headers, "x-api-key": "wrong"})).status_code == 401


async def test_what_is_no_request_has_an_id(fake: StartFake, router: StartRouter) -> None:
    client = await router({"big": await fake()})
    assert (await ask(client, b"220 mail ready\r\n\r\n")).headers["x-request-id"]
    known = b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: mine-1\r\nX-More: y\r\nno colon\r\n\r\n"
    answer = await ask(client, known)
    assert (answer.status, answer.headers["x-request-id"]) == (400, "mine-1")


async def test_a_page_may_read_when_to_come_back(fake: StartFake, router: StartRouter) -> None:
    client = await router({"big": await fake()}, cors_origins=["http://page.example"])
    answer = await client.get("/health", headers={"origin": "http://page.example"})
    assert "retry-after" in answer.headers["access-control-expose-headers"].lower().split(", ")
