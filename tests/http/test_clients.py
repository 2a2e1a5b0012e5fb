"""Who is answered, and what is refused before any server hears of it."""

from __future__ import annotations

import json
import logging
from typing import Any
from urllib.parse import urlsplit

import anyio
import httpx
import pytest
from http_support import CHAT, StartFake, StartRouter, until

from specrouter.testing import FakeServer, hang, respond_with

pytestmark = pytest.mark.anyio

GENERATION = "/v1/chat/completions"


async def raw(client: httpx.AsyncClient, request: bytes) -> tuple[int, bytes]:
    """Send bytes as they are; status and everything received."""
    address = urlsplit(str(client.base_url))
    assert address.hostname is not None
    assert address.port is not None
    received = b""
    with anyio.fail_after(30):
        async with await anyio.connect_tcp(address.hostname, address.port) as stream:
            await stream.send(request)
            async for data in stream:
                received += data
    return int(received.split()[1]), received


# -- keys --------------------------------------------------------------------------------------------------


KEYS: list[tuple[dict[str, str], int]] = [
    ({"authorization": "Bearer first-key"}, 200),
    ({"authorization": "bearer second-key"}, 200),
    ({"x-api-key": "second-key"}, 200),
    ({"authorization": "Bearer wrong-key"}, 401),
    ({"authorization": "Bearer first-key2"}, 401),
    ({"authorization": "Basic first-key"}, 401),
    ({"authorization": "Bearer"}, 401),
    ({"authorization": "Bearer sch\u00f6n"}, 401),
    ({"x-api-key": "wrong-key"}, 401),
    ({"x-api-key": ""}, 401),
    ({}, 401),
]


async def test_keys(fake: StartFake, router: StartRouter) -> None:
    target = await fake()
    client = await router({"big": target}, api_keys=["first-key", "second-key"])
    del client.headers["authorization"]
    for headers, status in KEYS:
        target.requests.clear()
        encoded = {name: value.encode() for name, value in headers.items()}
        answers = [
            await client.post(GENERATION, json=CHAT, headers=encoded),
            await client.get("/v1/models", headers=encoded),
            await client.get("/v1/models/fast", headers=encoded),
        ]
        assert [answer.status_code for answer in answers] == [status] * 3, headers
        assert len(target.received(GENERATION)) == (status == 200)
        if status == 401:
            assert answers[0].json()["error"]["code"] == "invalid_api_key"
            assert not any(key in answers[0].text for key in ("first-key", "second-key", "wrong-key"))


@pytest.mark.parametrize("header", ["authorization", "x-api-key"])
async def test_keys_stay_where_they_belong(
    fake: StartFake, router: StartRouter, header: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "specrouter")
    target, drafter = await fake(), await fake()
    servers = {"big": {"url": target.url, "api_key": "target-key"}, "laptop": drafter}
    routes = {"fast": {"target": "big"}, "other": {"target": "laptop"}}
    client = await router(servers, routes, api_keys=["router-key"])
    sent = {header: "Bearer router-key" if header == "authorization" else "router-key", "cookie": "session=crumbs"}
    for model in routes:
        await client.post(GENERATION, json={**CHAT, "model": model}, headers=sent)
    # All of them, probes too.
    assert {request.header("authorization") for request in target.requests} == {"Bearer target-key"}
    assert {"/health", "/v1/models", "/props", GENERATION} <= {request.path for request in target.requests}
    assert {request.header("authorization") for request in drafter.requests} == {None}
    received = str([request.headers for request in (*target.requests, *drafter.requests)])
    assert "router-key" not in received
    assert "crumbs" not in received
    assert not any(secret in caplog.text for secret in ("router-key", "target-key", "crumbs"))


async def test_headers(fake: StartFake, router: StartRouter) -> None:
    target = await fake()
    hop = {"Connection": "keep-alive", "Keep-Alive": "timeout=5", "Proxy-Authenticate": "x", "Set-Cookie": "a=b"}
    own = {"X-Own": "stays", "Access-Control-Allow-Origin": "*"}
    target.replies[GENERATION] = respond_with({"model": "toy-model.gguf"}, headers={**hop, **own})
    # Without keys, requests from pages of others are refused.
    client = await router({"big": target}, api_keys=["k"])
    sent = {
        "cookie": "a=b", "x-conversation-id": "7", "te": "trailers", "upgrade": "h2c", "proxy-authorization": "x",
        "keep-alive": "timeout=5", "accept-encoding": "gzip", "origin": "http://localhost", "x-stainless-os": "Linux",
        "user-agent": "me/1",
    }  # fmt: skip
    response = await client.post(GENERATION, json=CHAT, headers=sent)
    forwarded = {name for name, _ in target.received(GENERATION)[0].headers}
    assert forwarded == {
        "host", "content-length", "content-type", "accept", "accept-encoding", "connection", "user-agent",
        "x-request-id", "x-stainless-os",
    }  # fmt: skip
    request = target.received(GENERATION)[0]
    assert request.header("accept-encoding") == "identity"
    assert request.header("user-agent") == "me/1"
    assert request.header("host") == urlsplit(target.url).netloc
    assert response.headers["x-own"] == "stays"
    unwanted = {name.lower() for name in hop} | {"access-control-allow-origin", "server"}
    assert not unwanted & set(response.headers)


# -- names -------------------------------------------------------------------------------------------------


async def test_an_unknown_model(fake: StartFake, router: StartRouter) -> None:
    target = await fake()
    client = await router({"big": target}, {"fast": {"target": "big"}, "slow": {"target": "big"}})
    response = await client.post(GENERATION, json={**CHAT, "model": "nobody"})
    assert response.status_code == 404
    error = response.json()["error"]
    assert error["code"] == "model_not_found"
    assert error["param"] == "model"
    assert "'nobody'" in error["message"]
    assert "fast, slow" in error["message"]
    assert not target.received(GENERATION)


async def test_no_model_and_one_route(fake: StartFake, router: StartRouter) -> None:
    target = await fake()
    client = await router({"big": target})
    response = await client.post(GENERATION, json={"messages": CHAT["messages"]})
    assert response.json()["model"] == "fast"
    assert target.received(GENERATION)[0].json["model"] == "toy-model.gguf"


@pytest.mark.parametrize("default", [True, False])
async def test_no_model_and_many_routes(fake: StartFake, router: StartRouter, default: bool) -> None:
    routes = {"fast": {"target": "big", "aliases": ["default"] if default else []}, "slow": {"target": "big"}}
    client = await router({"big": await fake()}, routes)
    response = await client.post(GENERATION, json={"messages": CHAT["messages"]})
    if default:
        assert response.json()["model"] == "fast"
    else:
        assert response.status_code == 404
        assert "fast, slow" in response.json()["error"]["message"]


async def test_the_configured_name_is_sent(fake: StartFake, router: StartRouter) -> None:
    target = await fake()
    client = await router({"big": {"url": target.url, "model": "in/the topology"}})
    await client.post(GENERATION, json=CHAT)
    assert target.received(GENERATION)[0].json["model"] == "in/the topology"


# -- bodies ------------------------------------------------------------------------------------------------


BAD_BODIES = [
    (b"", "not JSON"),
    (b"hello", "not JSON"),
    (b'{"model": "fast"', "not JSON"),
    (b'{"model": "fast"} {}', "not JSON"),
    (b'{"model": "fast", "temperature": NaN}', "NaN is no number"),
    (b'{"model": "fast", "temperature": -Infinity}', "-Infinity is no number"),
    (b'{"model": "\xff"}', "not UTF-8"),
    (b"\xff\xfe{\x00}\x00", "not UTF-8"),
    (b"[1]", "must be a JSON object, not"),
    (b"null", "must be a JSON object, not"),
    (b'{"model": 7}', "`model` must be a string, not 7"),
    (b'{"model": ["fast"]}', "`model` must be a string"),
    (b'{"model": "fast", "a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deeply"),
    (b'{"model": "fast", "a": ' + b"9" * 10_000 + b"}", "too many digits"),
]


async def test_bad_bodies(fake: StartFake, router: StartRouter) -> None:
    target = await fake()
    client = await router({"big": target})
    for content, said in BAD_BODIES:
        response = await client.post(GENERATION, content=content)
        assert response.status_code == 400
        error = response.json()["error"]
        assert said in error["message"]
        assert error["type"] == "invalid_request_error"
    assert not target.received(GENERATION)


@pytest.mark.parametrize("chunked", [False, True])
async def test_the_limit_of_a_body(fake: StartFake, router: StartRouter, chunked: bool) -> None:
    target = await fake()
    client = await router({"big": target}, max_body=2048)

    def body(size: int) -> bytes:
        content = json.dumps({**CHAT, "padding": ""}).encode()
        return content.replace(b'"padding": ""', b'"padding": "' + b"x" * (size - len(content)) + b'"')

    async def parts(content: bytes) -> Any:
        for start in range(0, len(content), 100):
            yield content[start : start + 100]

    for size, status in ((2048, 200), (2049, 413), (500_000, 413)):
        content = body(size)
        assert len(content) == size
        response = await client.post(GENERATION, content=parts(content) if chunked else content)
        assert response.status_code == status
        if status == 413:
            assert response.json()["error"]["code"] == "request_too_large"
            assert "2048" in response.json()["error"]["message"]
    assert len(target.received(GENERATION)) == 1


async def test_a_declared_size_is_refused_before_it_is_sent(fake: StartFake, router: StartRouter) -> None:
    client = await router({"big": await fake()}, max_body=2048)
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 9999999999\r\n\r\n"
    status, received = await raw(client, head)
    assert status == 413
    assert b"request_too_large" in received


# -- paths -------------------------------------------------------------------------------------------------

HIDDEN = [
    "/slots", "/slots/0?action=erase", "/props", "/lora-adapters", "/models/load", "/models/unload", "/metrics",
    "/health", "/tools", "/cors-proxy", "/v1/models", "/models", "/v1/models/load", "/v1/slots", "/v1/props",
    "/specrouter", "/specrouter/", "/specrouter/status", "/specrouter/index.html",
]  # fmt: skip

ODD = [
    "/v1/../slots", "/v1/chat/../../slots", "//slots", "/./slots", "/v1//slots", "/%73lots", "/%2e%2e/slots",
    "/v1/%2e%2e/slots", "/slots/", "/slots%2f0", "/v1/chat/completions%0d%0aX:y", "/v1/chat/completions/", "/",
    "/v1/chat/completions;slots", "/SLOTS/../slots", "/v1/chat/..%2f..%2fslots", "/%2fslots", "/x%3f/slots",
]  # fmt: skip


async def test_paths_that_lead_nowhere(fake: StartFake, router: StartRouter) -> None:
    target = await fake()
    target.replies["*"] = respond_with({"reached": True})
    client = await router({"big": {"url": target.url}}, wait=False)
    await until(lambda: target.received("/props"))
    body = json.dumps({"model": "fast"}).encode()
    for path in (*HIDDEN, *ODD):
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
        status, received = await raw(client, head.encode() + body)
        assert 400 <= status < 500, path
        assert b"reached" not in received, path
    assert {request.method for request in target.requests} == {"GET"}  # The router's own probes.


async def test_absolute_form_is_a_path_like_any_other(fake: StartFake, router: StartRouter) -> None:
    target = await fake()
    client = await router({"big": target})
    body = json.dumps({"model": "fast"}).encode()
    head = f"POST {target.url}/slots HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    status, _ = await raw(client, head.encode() + body)
    assert 400 <= status < 500
    assert not target.received("/slots")


async def test_other_methods(fake: StartFake, router: StartRouter) -> None:
    target = await fake()
    client = await router({"big": target})
    for method in ("GET", "PUT", "DELETE", "PATCH", "OPTIONS"):
        response = await client.request(method, GENERATION, content=b'{"model":"fast"}')
        assert response.status_code == 404
        assert response.json()["error"]["code"] == "unknown_url"
    assert not target.received(GENERATION)


async def test_the_routers_own_pages_are_for_reading(fake: StartFake, router: StartRouter) -> None:
    client = await router({"big": await fake()})
    for path in ("/health", "/v1/models", "/models", "/v1/models/fast"):
        for method in ("POST", "PUT", "DELETE"):
            response = await client.request(method, path, json={"model": "fast"})
            assert (response.status_code, response.json()["error"]["code"]) == (404, "unknown_url"), path


# -- browsers ----------------------------------------------------------------------------------------------


async def test_preflight(fake: StartFake, router: StartRouter) -> None:
    client = await router({"big": await fake()}, api_keys=["k"], cors_origins=["http://app.example"])
    ask = {
        "authorization": "",
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,content-type,x-stainless-os,x-stainless-lang",
    }
    allowed = await client.options(GENERATION, headers={**ask, "origin": "http://app.example"})
    assert allowed.status_code == 200
    assert allowed.headers["access-control-allow-origin"] == "http://app.example"
    assert "x-stainless-os" in allowed.headers["access-control-allow-headers"]
    refused = await client.options(GENERATION, headers={**ask, "origin": "http://other.example"})
    assert refused.status_code == 400
    assert "access-control-allow-origin" not in refused.headers


@pytest.mark.parametrize(
    ("change", "status"), [({}, 200), ({"stream": True}, 200), ({"model": "nobody"}, 404), ({"key": "wrong"}, 401)]
)
async def test_one_allowed_origin_on_every_answer(
    fake: StartFake, router: StartRouter, change: dict[str, Any], status: int
) -> None:
    client = await router({"big": await fake()}, api_keys=["k"], cors_origins=["http://app.example"])
    key = change.pop("key", "k")
    headers = {"origin": "http://app.example", "authorization": f"Bearer {key}"}
    response = await client.post(GENERATION, json={**CHAT, **change}, headers=headers)
    assert response.status_code == status
    assert response.headers.get_list("access-control-allow-origin") == ["http://app.example"]


async def test_models_are_listed_at_once(fake: StartFake, router: StartRouter) -> None:
    """One server well, one silent, one refusing."""
    silent = await fake()
    silent.replies["*"] = hang
    servers: dict[str, FakeServer | dict[str, str]] = {"big": await fake(), "silent": silent}
    servers["away"] = {"url": "http://127.0.0.1:9"}
    client = await router(servers, {name: {"target": name} for name in servers}, wait=False)
    with anyio.fail_after(0.5):
        listed = (await client.get("/v1/models")).json()["data"]
    assert [model["id"] for model in listed] == list(servers)
