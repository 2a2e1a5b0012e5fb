"""What `specrouter init` says of addresses that are not what it looks for."""

from __future__ import annotations

import asyncio
import shutil
import ssl
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import anyio
import pytest
from http_support import StartFake, StartRouter
from init_support_http import ANSWER, BIG, SMALL, big_toy, files_in, init, weighs

from specrouter import connections
from specrouter.config import load_topology
from specrouter.init import discovering
from specrouter.managed.processes import free_port
from specrouter.ngram_pool import FLAGS
from specrouter.testing import Exchange, FakeServer, NgramPool, hang, reset, respond_with

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which the command runs."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
async def target(fake: StartFake) -> FakeServer:
    """See big_toy."""
    return await big_toy(fake)


# -- addresses that cannot be used -------------------------------------------------------------------------


async def vllm(exchange: Exchange) -> None:
    answers = {"/health": b"", "/v1/models": {"object": "list", "data": [{"id": "m", "owned_by": "vllm"}]}}
    path = exchange.request.path
    await exchange.respond(answers.get(path, {"detail": "Not Found"}), 200 if path in answers else 404)


async def ollama(exchange: Exchange) -> None:
    answers: dict[str, Any] = {"/": b"Ollama is running", "/api/version": {"version": "0.9.0"}}
    answers["/v1/models"] = {"object": "list", "data": None}
    path = exchange.request.path
    await exchange.respond(answers.get(path, b"404 page not found"), 200 if path in answers else 404)


async def several_models(exchange: Exchange) -> None:
    props = {"role": "router", "build_info": "b1", "default_generation_settings": {"n_ctx": 0}, "model_path": "none"}
    answers = {"/props": props, "/health": {"status": "ok"}, "/v1/models": {"object": "list", "data": []}}
    await exchange.respond(answers.get(exchange.request.path, {}))


async def endless(exchange: Exchange) -> None:
    await exchange.start_stream()
    exchange.end_connection()


PAGE = respond_with(b"<html><h1>Welcome to nginx!</h1></html>", headers={"Content-Type": "text/html"})
NO_PROPS = {"/props": respond_with({"error": {"message": "File Not Found"}}, 404)}

STRANGE: dict[str, tuple[Mapping[str, Any], str]] = {
    "a web page": ({"*": PAGE}, "is no llama-server: it does not answer as one does"),
    "a page that is missing": ({"*": respond_with(b"<h1>404</h1>", 404)}, "is no llama-server: it answers 404"),
    "somewhere else": ({"*": respond_with(b"", 301, {"Location": "/x"})}, "is no llama-server: it answers 301"),
    "garbage": ({"*": respond_with(b"\xff\x00\xfe")}, "is no llama-server: it does not answer as one does"),
    "JSON of another kind": ({"*": respond_with([1, 2])}, "is no llama-server: it does not answer as one does"),
    "JSON without an end": ({"*": endless}, "breaks the connection off"),
    "no answer at all": ({"*": reset}, "breaks the connection off"),
    "silence": ({"*": hang}, "does not answer in time"),
    "vLLM": ({"*": vllm}, "is a vLLM server"),
    "Ollama": ({"*": ollama}, "is Ollama"),
    "a llama-server with several models": ({"*": several_models}, "is a llama-server that starts others"),
    "no props": (NO_PROPS, "is no llama-server: its /props does not say what it runs"),
    "texts for numbers": (
        {"/props": respond_with({"total_slots": "four"})},
        "says things about itself that make no sense",
    ),
    "numbers beyond all measure": (
        {"/props": respond_with({"total_slots": 10**400})},
        "says things about itself that make no sense",
    ),
    "no health": ({"/health": PAGE}, "is no llama-server"),
    "a key": ({"*": respond_with({"error": {"code": 401}}, 401)}, "asks for a key (give it as --api-key-env NAME, or"),
    "no generation": (
        {"/completion": respond_with({"error": {"code": 500, "message": "no logits"}}, 500)},
        "does not generate: no logits",
    ),
    "generated nonsense": ({"/completion": respond_with(b"data: 7\n\n")}, "does not generate: "),
}


@pytest.mark.parametrize("case", STRANGE)
async def test_strangers(fake: StartFake, target: FakeServer, here: Path, case: str) -> None:
    """They are named with the reason; the rest is written."""
    replies, reason = STRANGE[case]
    stranger = await fake()
    stranger.replies.update(replies)
    result = await init(stranger, target)
    assert result.exit_code == 3, result.output
    assert f"LEFT OUT: {stranger.url}: {reason}" in result.stdout
    assert f"# Left out: {stranger.url}: " in (here / "topology.yaml").read_text()
    assert list(load_topology(here / "topology.yaml").topology.servers) == ["Toy-20B"]


async def flood(exchange: Exchange) -> None:
    await exchange.start_stream()
    while True:
        await exchange.send_event(b" " * 65536)


async def drip(exchange: Exchange) -> None:
    await exchange.start_stream()
    while True:
        await exchange.send_event(b" ")
        await anyio.sleep(0.02)


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/v1/models", "is no llama-server: it does not answer as one does"),
        ("/completion", "does not generate: its answer makes no sense"),
    ],
)
async def test_answers_without_an_end(
    fake: StartFake, target: FakeServer, path: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are not read for longer than any answer is long."""
    monkeypatch.setattr(connections, "_LONGEST_ANSWER", 2**20)
    stranger = await fake()
    stranger.replies[path] = flood
    result = await init(stranger, target)
    assert result.exit_code == 3, result.output
    assert f"LEFT OUT: {stranger.url}: {reason}" in result.stdout


async def test_an_answer_that_drips(target: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it is asked beside everything else is not waited for as long as it says something."""
    monkeypatch.setattr(discovering, "_SMALL_SECONDS", 0.5)
    target.replies["/v1/rerank"] = target.replies["/v1/embeddings"] = drip
    result = await init(target)
    assert result.exit_code == 0, result.output


async def test_a_router(router: StartRouter, target: FakeServer) -> None:
    client = await router({"big": target})
    result = await init(str(client.base_url), options=("--output", "-"))
    assert result.exit_code == 1
    assert "is a specrouter itself (give the addresses of the llama-servers behind it)" in result.stderr


async def test_nobody_there(here: Path) -> None:
    result = await init(f"127.0.0.1:{free_port()}", "nowhere.invalid:80")
    assert result.exit_code == 1
    assert "no connection (is it running?" in result.stderr
    assert "there is no host called nowhere.invalid" in result.stderr
    assert f"llama-server -m BIG.gguf --port 8081 {FLAGS}" in result.stderr
    assert "llama-server -m SMALL.gguf" in result.stderr
    assert files_in(here) == []


async def test_a_server_that_is_loading(target: FakeServer) -> None:
    target.loading, replies, target.replies = True, target.replies, {}

    async def load() -> None:
        while not target.received("/health"):
            await anyio.sleep(0.01)
        target.loading, target.replies = False, replies

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(load)
        result = await init(target)
    assert result.exit_code == 0, result.output


async def test_one_server_with_two_addresses(target: FakeServer, here: Path) -> None:
    other = target.url.replace("127.0.0.1", "localhost")
    result = await init(target, other, target.url + "/")
    assert result.exit_code == 0, result.output
    assert f"once is enough: {other}: is the same server as {target.url}" in result.stdout
    assert len(load_topology(here / "topology.yaml").topology.servers) == 1


async def test_two_servers_behind_one_address(fake: StartFake, here: Path) -> None:
    """As a proxy has them, which goes by the name that it is called."""
    proxy = await fake(ANSWER, pool=NgramPool())
    big, small = weighs(proxy, BIG).replies["/v1/models"], weighs(proxy, SMALL).replies["/v1/models"]

    async def models(exchange: Exchange) -> None:
        await (small if exchange.request.header("host").startswith("localhost") else big)(exchange)

    proxy.replies["/v1/models"] = models
    result = await init(proxy, proxy.url.replace("127.0.0.1", "localhost"))
    assert result.exit_code == 0, result.output
    assert len(load_topology(here / "topology.yaml").topology.servers) == 2


# -- https -------------------------------------------------------------------------------------------------


@pytest.fixture
async def own_certificate(stack: AsyncExitStack, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The address of a server with a certificate that nobody vouches for."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl makes the certificate")
    folder = tmp_path_factory.mktemp("certificate")
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    files = ["-keyout", "key.pem", "-out", "certificate.pem"]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *names, *files]
    await anyio.run_process(command, cwd=folder)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "certificate.pem", folder / "key.pem")
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=context)
    await stack.enter_async_context(server)
    return f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_a_certificate_that_nobody_trusts(own_certificate: str) -> None:
    result = await init(f"https://{own_certificate}")
    assert result.exit_code == 1
    assert "has a certificate that this machine does not trust: self-signed certificate" in result.stderr


async def test_http_and_https_confused(own_certificate: str, stack: AsyncExitStack) -> None:
    async def refuse(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    server = await stack.enter_async_context(await asyncio.start_server(refuse, "127.0.0.1", 0))
    result = await init(f"http://{own_certificate}", f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    assert result.exit_code == 1
    assert f"http://{own_certificate}: breaks the connection off (does it speak https?" in result.stderr
    assert "does not speak https (write http://)" in result.stderr
