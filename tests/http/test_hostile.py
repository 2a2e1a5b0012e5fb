"""Requests that mean harm: framing, targets, hosts and origins. None of them may reach a server."""

from __future__ import annotations

import json
import ssl
from typing import Any

import anyio
import httpx
import pytest
from http_support import CHAT, StartFake, StartRouter
from raw_http import HEALTH, PATIENCE, ask, connect, post

pytestmark = pytest.mark.anyio

PATH = "/v1/chat/completions"

POST = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"

BODY = json.dumps(CHAT).encode()

LENGTH = b"Content-Length: %d\r\n" % len(BODY)

CHUNKED = b"Transfer-Encoding: chunked\r\n"

CHUNKS = b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)


# -- framing -----------------------------------------------------------------------------------------------


AMBIGUOUS = [
    POST + LENGTH + CHUNKED + b"\r\n" + CHUNKS,
    POST + CHUNKED + LENGTH + b"\r\n" + CHUNKS,
    POST + LENGTH + LENGTH + b"\r\n" + BODY,
    POST + LENGTH + b"Content-Length: 0\r\n\r\n" + BODY,
    POST + b"Content-Length: 5, 5\r\n\r\n" + BODY,
    POST + b"Content-Length: +5\r\n\r\n" + BODY,
    POST + b"Content-Length: -5\r\n\r\n" + BODY,
    POST + b"Content-Length: 0x5\r\n\r\n" + BODY,
    POST + b"Content-Length: 99999999999999999999\r\n\r\n" + BODY,
    POST + b"Content-Length : 5\r\n\r\n" + BODY,
    POST + b"Content-Length:\r\n 5\r\n\r\n" + BODY,
    POST + b"X: y\r\n folded\r\n" + LENGTH + b"\r\n" + BODY,
    POST + b" X: y\r\n" + LENGTH + b"\r\n" + BODY,
    POST + b"X: y\n" + LENGTH + b"\r\n" + BODY,
    POST + b"X: y\r" + LENGTH + b"\r\n" + BODY,
    POST + b"X: y\x00z\r\n" + LENGTH + b"\r\n" + BODY,
    POST + b"X\x00: y\r\n" + LENGTH + b"\r\n" + BODY,
    POST + b": y\r\n" + LENGTH + b"\r\n" + BODY,
    POST + b"no colon\r\n" + LENGTH + b"\r\n" + BODY,
    POST + LENGTH + b"\n" + BODY,
    POST.replace(b"\r\n", b"\n") + LENGTH.replace(b"\r\n", b"\n") + b"\n" + BODY,
    POST + b"Transfer-Encoding: xchunked\r\n\r\n" + CHUNKS,
    POST + b"Transfer-Encoding: chunked, identity\r\n\r\n" + CHUNKS,
    POST + CHUNKED + b"Transfer-Encoding: identity\r\n\r\n" + CHUNKS,
    POST + b"Transfer-Encoding: \x0bchunked\r\n\r\n" + CHUNKS,
    POST + b"Transfer-Encoding : chunked\r\n\r\n" + CHUNKS,
    POST + CHUNKED + b"\r\n-1\r\n" + BODY,
    POST + CHUNKED + b"\r\n0x1\r\n{\r\n0\r\n\r\n",
    POST + CHUNKED + b"\r\n1\n{\n0\n\n",
    POST + CHUNKED + b"\r\n1 \r\n{\r\n0\r\n\r\n",
    POST + CHUNKED + b"\r\n1\r\n{}\r\n0\r\n\r\n",
    POST + CHUNKED + b"\r\n\r\n{}\r\n0\r\n\r\n",
    POST + CHUNKED + b"\r\n10000000000000001\r\n{\r\n0\r\n\r\n",
    POST + CHUNKED + b"\r\n1;a\nb\r\n{\r\n0\r\n\r\n",
    POST + CHUNKED + b"\r\n" + CHUNKS[:-2] + b"Content-Length: 5\r\n\r\n",
]


async def test_an_ambiguous_request_is_refused(fake: StartFake, router: StartRouter) -> None:
    """Where two readers could see two ends of a request, somebody's next request could be smuggled in."""
    target = await fake()
    client = await router({"big": target})
    for data in AMBIGUOUS:
        answer = await ask(client, data + post(CHAT))
        assert (answer.status, answer.error["code"]) == (400, 400), data
        assert not target.received(PATH), data


@pytest.mark.parametrize("trailer", [b"X-Api-Key: right-key", b"Authorization: Bearer right-key"])
async def test_trailers_are_no_headers(fake: StartFake, router: StartRouter, trailer: bytes) -> None:
    client = await router({"big": await fake()}, api_keys=["right-key"])
    async with connect(client) as raw:
        await raw.send(POST + CHUNKED + b"\r\n" + CHUNKS[:-2] + trailer + b"\r\n\r\n" + HEALTH)
        assert (await raw.answer()).error["code"] == "invalid_api_key"
        assert (await raw.answer()).status == 200


async def test_trailers_are_not_passed_on(fake: StartFake, router: StartRouter) -> None:
    target = await fake()
    client = await router({"big": target})
    async with connect(client) as raw:
        await raw.send(POST + CHUNKED + b"\r\n" + CHUNKS[:-2] + b"X-Late: yes\r\n\r\n")
        assert (await raw.answer()).status == 200
    assert target.received(PATH)[0].header("x-late") is None


# -- not HTTP/1 --------------------------------------------------------------------------------------------


NOT_HTTP = [
    (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00", "this is HTTP/2"),
    (b"GET /health HTTP/9.9\r\n\r\n", "not an HTTP/1.1 request"),
    (b"get /health HTTP/1.1\r\n\r\n", "not an HTTP/1.1 request"),
    (b"\x00" * 100, "not an HTTP/1.1 request"),
    (b"SSH-2.0-OpenSSH_9.6\r\n", "not an HTTP/1.1 request"),
    (b'{"jsonrpc": "2.0"}\n', "not an HTTP/1.1 request"),
]


async def test_what_is_not_http_is_told_so(
    fake: StartFake, router: StartRouter, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    client = await router({"big": await fake()})
    for data, says in NOT_HTTP:
        caplog.clear()
        answer = await ask(client, data)
        assert answer.status == 400, data
        assert says in answer.error["message"]
        assert says in caplog.text
        assert "Traceback" not in caplog.text


async def test_a_tls_client_is_told_so_in_the_log(
    fake: StartFake, router: StartRouter, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    client = await router({"big": await fake()})
    with pytest.raises((ssl.SSLError, OSError)), anyio.fail_after(PATIENCE):
        await anyio.connect_tcp("127.0.0.1", client.base_url.port or 0, tls=True)
    assert "the router speaks plain HTTP" in caplog.text
    assert "Traceback" not in caplog.text


# -- targets -----------------------------------------------------------------------------------------------


NO_PATHS = [
    ("http://localhost/v1/chat/completions", 400),
    ("http://evil.example/v1/chat/completions", 400),
    ("https://evil.example:443", 400),
    ("*", 400),
    ("evil", 400),
    ("@evil.example/", 400),
    ("", 400),
    ("/v1/chat/../../slots", 404),
    ("/v1/./chat/completions", 404),
    ("/..", 404),
    ("//evil.example/v1/chat/completions", 404),
    ("/v1//chat/completions", 404),
    ("/v1/chat/completions/", 404),
    ("/v1%2fchat/completions", 404),
    ("/v1/chat%2Fcompletions", 404),
    ("/v1/chat/%63ompletions", 404),
    ("/%2e%2e/slots", 404),
    ("/v1/chat/completions%00", 404),
    ("/v1/chat/completions%0d%0aX:%20y", 404),
    ("/v1/chat/completions%ff", 404),
    ("/v1/chat/completions;a=b", 404),
    ("/v1/chat\\completions", 404),
    ("/slots", 404),
    ("/v1/props", 404),
    ("/sl%6fts", 404),
    ("/lora-adapters/", 404),
    ("/models/load", 404),
]


async def test_a_target_that_is_no_plain_path_reaches_no_server(fake: StartFake, router: StartRouter) -> None:
    server = await fake()
    client = await router({"big": server})
    server.requests.clear()
    for target, status in NO_PATHS:
        for method in ("POST", "PUT", "GET"):
            async with connect(client) as raw:
                await raw.send(post(CHAT).replace(b"POST /v1/chat/completions", f"{method} {target}".encode()))
                answer = await raw.answer()
            assert answer.status == status, (method, target)
            assert answer.error["message"]
    assert not [request for request in server.requests if request.method != "GET"]


async def test_connect_is_refused(fake: StartFake, router: StartRouter) -> None:
    client = await router({"big": await fake()})
    for target in (b"evil.example:443", b"/v1/chat/completions"):
        answer = await ask(client, b"CONNECT " + target + b" HTTP/1.1\r\nHost: localhost\r\n\r\n" + HEALTH)
        assert answer.status == 400
        assert answer.error["message"]


async def test_a_query_is_passed_on_as_it_is(fake: StartFake, router: StartRouter) -> None:
    target = await fake()
    client = await router({"big": target})
    async with connect(client) as raw:
        await raw.send(post(CHAT, path="/v1/embeddings?a=%2F..%00&b=%zz&a[]"))
        await raw.answer()
    assert target.requests[-1].path == "/v1/embeddings?a=%2F..%00&b=%zz&a[]"


# -- hosts -------------------------------------------------------------------------------------------------


async def status_for(client: httpx.AsyncClient, head: str, *, version: str = "1.1") -> tuple[int, Any]:
    """Status and error code of a POST with these header lines."""
    async with connect(client) as raw:
        await raw.send(f"POST {PATH} HTTP/{version}\r\n{head}".encode("latin-1") + LENGTH + b"\r\n" + BODY)
        answer = await raw.answer()
        return answer.status, answer.error["code"] if answer.status != 200 else None


OURS = [
    "localhost", "LOCALHOST:8080", "localhost.", "127.0.0.1", "127.0.0.1:1", "[::1]", "[::1]:8080", "[::ffff:10.0.0.1]",
    "192.168.1.20:8000", "laptop", "laptop:80", "my_container", "a.localhost", "box.local", "Box.Local.:80",
    "router.internal", "router.home.arpa", "ai.example.org", "AI.example.org.:8080",
]  # fmt: skip

NOT_OURS = [
    "evil.example", "evil.example:8080", "evil.example.", "localhost.evil.example", "127.0.0.1.evil.example",
    "ai.example.org.evil.example", "xai.example.org", "example.org", "evillocal.example", "127.0.0.1@evil.example",
    "evil.example/localhost", "evil.example#.local", "evil.example\\.local", "[evil.example]", "1.2.3", "0x7f.1",
    "a b.local", "localhost:80:80", "localhost:x",
]  # fmt: skip


async def test_only_names_that_nobody_else_can_have(fake: StartFake, router: StartRouter) -> None:
    """A stranger's page has a name of its own, which it may let point to this router."""
    client = await router({"big": await fake()}, allowed_hosts=["ai.example.org"])
    for host in OURS:
        assert await status_for(client, f"Host: {host}\r\n") == (200, None), host
    for host in NOT_OURS:
        assert await status_for(client, f"Host: {host}\r\n") == (403, "host_not_allowed"), host
    for path in ("/health", "/v1/models", "/nothing"):
        answer = await client.get(path, headers={"host": "evil.example"})
        assert answer.status_code == 403
        assert "'evil.example'" in answer.json()["error"]["message"]
        assert "listen.allowed_hosts" in answer.json()["error"]["message"]


async def test_one_host_and_no_more(fake: StartFake, router: StartRouter) -> None:
    client = await router({"big": await fake()})
    assert await status_for(client, "Host: localhost\r\nHost: localhost\r\n") == (400, 400)
    assert await status_for(client, "") == (400, 400)
    assert await status_for(client, "Host:\r\n") == (400, 400)
    assert await status_for(client, "", version="1.0") == (200, None)


# -- origins -----------------------------------------------------------------------------------------------


async def test_pages_of_other_sites(fake: StartFake, router: StartRouter) -> None:
    target = await fake()
    client = await router({"big": target}, cors_origins=["https://app.example.org"])
    for host, origin in (
        ("127.0.0.1:8080", "http://127.0.0.1:8080"),
        ("Laptop:8080", "http://laptop:8080"),
        ("laptop", "http://laptop"),
        ("laptop:80", "http://laptop"),
        ("laptop", "https://laptop"),
        ("laptop:443", "https://laptop"),
        ("[::1]:8080", "http://[::1]:8080"),
        ("laptop", "https://app.example.org"),
    ):
        assert await status_for(client, f"Host: {host}\r\nOrigin: {origin}\r\n") == (200, None), origin
    target.requests.clear()
    for origin in (
        "https://evil.example", "http://app.example.org", "https://app.example.org.evil.example", "null", "",
        "http://laptop:3000", "http://laptop.evil.example:8080", "http://evil.example@laptop:8080", "file://",
        "laptop:8080", "chrome-extension://laptop:8080", "http://[", "http://127.0.0.1:8080",
    ):  # fmt: skip
        refused = await status_for(client, f"Host: laptop:8080\r\nOrigin: {origin}\r\n")
        assert refused == (403, "origin_not_allowed"), origin
    two = "Host: laptop\r\nOrigin: http://laptop\r\nOrigin: https://evil.example\r\n"
    assert await status_for(client, two) == (403, "origin_not_allowed")
    assert not target.received(PATH)


async def test_a_router_without_a_name_has_no_pages(fake: StartFake, router: StartRouter) -> None:
    client = await router({"big": await fake()})
    assert await status_for(client, "Origin: http://[\r\n", version="1.0") == (403, "origin_not_allowed")
    assert await status_for(client, "Origin: http://\r\n", version="1.0") == (403, "origin_not_allowed")


async def test_all_origins_where_the_topology_says_so(fake: StartFake, router: StartRouter) -> None:
    client = await router({"big": await fake()}, cors_origins=["*"])
    assert await status_for(client, "Host: laptop\r\nOrigin: https://any.example\r\n") == (200, None)


async def test_what_a_page_can_send_without_asking_first(fake: StartFake, router: StartRouter) -> None:
    """A form, or `fetch` in the mode `no-cors`: no preflight, a body of any text, and always an Origin."""
    target = await fake()
    client = await router({"big": target})
    target.requests.clear()
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"):
        answer = await client.post(PATH, content=BODY, headers={"content-type": kind, "origin": "https://evil.example"})
        assert answer.json()["error"]["code"] == "origin_not_allowed"
        assert "listen.cors_origins" in answer.json()["error"]["message"]
        # The same from a program is no matter of the origin.
        answer = await client.post(PATH, content=BODY, headers={"content-type": kind})
        assert answer.status_code == (400 if "multipart" in kind else 200)
    assert len(target.received(PATH)) == 2


async def test_with_keys_hosts_and_origins_are_free(fake: StartFake, router: StartRouter) -> None:
    """A page has no key, and no browser adds one by itself."""
    client = await router({"big": await fake()}, api_keys=["a-key"])
    head = "Host: ai.example.org\r\nOrigin: https://any.example\r\n"
    assert await status_for(client, head) == (401, "invalid_api_key")
    assert await status_for(client, head + "Authorization: Bearer a-key\r\n") == (200, None)
