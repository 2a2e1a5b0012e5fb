"""The page at `/specrouter/`: its files, their headers, and what else is at these paths. Real sockets."""

from __future__ import annotations

import re
import socket

import anyio.to_thread
import httpx
import pytest
from http_support import StartFake, StartRouter

from specrouter.page import FILES

pytestmark = pytest.mark.anyio

PAGE = "/specrouter/"
POLICY = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "connect-src": "'self'",
    "img-src": "'self'",
    "base-uri": "'none'",
    "form-action": "'none'",
    "frame-ancestors": "'none'",
}


@pytest.fixture
async def client(fake: StartFake, router: StartRouter) -> httpx.AsyncClient:
    return await router({"big": await fake()})


async def test_the_page(client: httpx.AsyncClient) -> None:
    response = await client.get(PAGE)
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    assert response.content == FILES["index.html"].content


@pytest.mark.parametrize("name", FILES)
async def test_headers(name: str, client: httpx.AsyncClient) -> None:
    response = await client.get(PAGE + name)
    assert response.status_code == 200
    assert response.content == FILES[name].content
    said = dict(part.strip().split(" ", 1) for part in response.headers["content-security-policy"].split(";"))
    assert said == POLICY
    assert response.headers["x-content-type-options"] == "nosniff"
    assert response.headers["referrer-policy"] == "no-referrer"
    assert (
        response.headers["content-type"].split(";")[0]
        == {
            "html": "text/html",
            "css": "text/css",
            "js": "text/javascript",
            "svg": "image/svg+xml",
        }[name.rpartition(".")[2]]
    )


async def test_validators(client: httpx.AsyncClient) -> None:
    first = await client.get(PAGE)
    tag = first.headers["etag"]
    assert first.headers["cache-control"] == "no-cache"
    for sent in (tag, f'"other", W/{tag}', "*"):
        again = await client.get(PAGE, headers={"if-none-match": sent})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
        assert "content-security-policy" in again.headers
    assert (await client.get(PAGE, headers={"if-none-match": '"other"'})).status_code == 200
    head = await client.head(PAGE)
    assert (head.status_code, head.content, head.headers["etag"]) == (200, b"", tag)


@pytest.mark.parametrize("path", ["/", "/specrouter"])
async def test_the_way_there(path: str, client: httpx.AsyncClient) -> None:
    response = await client.get(path)
    assert (response.status_code, response.headers["location"]) == (307, "specrouter/")
    assert str((await client.get(path, follow_redirects=True)).url).endswith(PAGE)


@pytest.mark.parametrize(
    "path",
    [
        "/specrouter/../pyproject.toml",
        "/specrouter/..%2f..%2fpyproject.toml",
        "/specrouter/%2e%2e/__init__.py",
        "/specrouter/..\\app.py",
        "/specrouter//etc/passwd",
        "/specrouter/files/index.html",
        "/specrouter/index.html/",
        "/specrouter/index.html%00",
        "/specrouter/INDEX.HTML",
        "/specrouter/__init__.py",
        "/specrouter/forget",
    ],
)
async def test_nothing_else_is_served(path: str, client: httpx.AsyncClient) -> None:
    """As raw bytes: a client would tidy the path."""
    answer = await anyio.to_thread.run_sync(raw_get, client.base_url, path)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.split()[1] == b"404", answer
    assert b"unknown_url" in body


def raw_get(url: httpx.URL, path: str) -> bytes:
    with socket.create_connection((url.host, url.port), timeout=20) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: {url.host}\r\nConnection: close\r\n\r\n".encode())
        answer = b""
        while part := connection.recv(65536):
            answer += part
        return answer


async def test_files_need_no_key_and_data_does(fake: StartFake, router: StartRouter) -> None:
    client = await router({"big": await fake()}, api_keys=["client-secret"])
    bare = {"authorization": ""}
    for name in ("", *FILES):
        response = await client.get(PAGE + name, headers=bare)
        assert response.status_code == 200
        assert "client-secret" not in response.text
    for path in ("/specrouter/status", "/v1/models", "/metrics"):
        assert (await client.get(path, headers=bare)).status_code == 401
    assert (await client.post("/specrouter/forget", json={"model": "fast"}, headers=bare)).status_code == 401


async def test_hosts_and_origins_are_checked(client: httpx.AsyncClient) -> None:
    rebound = await client.get(PAGE, headers={"host": "evil.example"})
    assert (rebound.status_code, rebound.json()["error"]["code"]) == (403, "host_not_allowed")
    foreign = await client.get(PAGE, headers={"origin": "https://evil.example"})
    assert (foreign.status_code, foreign.json()["error"]["code"]) == (403, "origin_not_allowed")


async def test_looking_at_it_is_no_traffic(client: httpx.AsyncClient) -> None:
    for path in (PAGE, PAGE + "main.js", "/"):
        await client.get(path)
    assert (await client.get("/specrouter/status")).json()["recent"] == []


def test_the_files_are_all_that_they_ask_for() -> None:
    """No address of another host, and no script or style within the page: the policy would not have it."""
    texts = {name: file.content.decode() for name, file in FILES.items()}
    for name, text in texts.items():
        addresses = set(re.findall(r"https?://[^\s\"')]+", text))
        assert addresses <= {"http://www.w3.org/2000/svg"}, name
        for imported in re.findall(r'from "\./([^"]+)"', text):
            assert imported in FILES
    asked = re.findall(r'(?:src|href)="([^"#]+)"', texts["index.html"])
    assert asked
    assert set(asked) <= set(FILES)
    assert not re.search(r"<script(?![^>]*\bsrc=)|\sstyle=|\son\w+=|<style", texts["index.html"])
    assert not [
        name for name, text in texts.items() if re.search(r"innerHTML|outerHTML|insertAdjacentHTML|eval\(", text)
    ]
