"""One log record per request, whatever becomes of it, and one id for client, router, target and log."""

from __future__ import annotations

import json
import logging
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from http_support import ANSWER, CHAT, Pair, StartFake, StartRouter, until, until_decoding

from specrouter.log_formats import HumanFormatter, JsonFormatter
from specrouter.request_log import RequestRecord
from specrouter.testing import Exchange, ToyModel, reset, respond_with

pytestmark = pytest.mark.anyio

PATH = "/v1/chat/completions"


class Log:
    """All that `specrouter serve -v` logs."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        for name in ("specrouter", "specrouter_plugins", "uvicorn"):
            caplog.set_level(logging.DEBUG, name)
        self._caplog = caplog

    @property
    def records(self) -> list[logging.LogRecord]:
        """As they are now."""
        return self._caplog.records

    def requests(self, request_id: str) -> list[RequestRecord]:
        found = [record.request for record in self.records if hasattr(record, "request")]
        return [request for request in found if request.request_id == request_id]

    async def of(self, request_id: str) -> RequestRecord:
        """The record of the request with this id, once it is there."""
        await until(lambda: self.requests(request_id), seconds=10)
        (request,) = self.requests(request_id)
        return request

    async def ask(self, client: httpx.AsyncClient, body: dict[str, Any], path: str = PATH) -> RequestRecord:
        """Send a request, and return its record."""
        response = await client.post(path, json=body)
        return await self.of(response.headers["x-request-id"])

    def text(self) -> str:
        """Everything, in both formats."""
        return "\n".join(
            formatter.format(record) for formatter in (HumanFormatter(), JsonFormatter()) for record in self.records
        )


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Log:
    return Log(caplog)


def words(record: RequestRecord) -> tuple[object, ...]:
    """What tells kinds of requests apart."""
    return record.status, record.route, record.model, record.server, record.decoding, record.error_code


# -- what is in it -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [True, False])
async def test_a_plain_request(fake: StartFake, router: StartRouter, log: Log, stream: bool) -> None:
    client = await router({"big": await fake()})
    record = await log.ask(client, {**CHAT, "model": "quick/one", "stream": stream})
    assert words(record) == (200, "fast", "quick/one", "big", "plain", None)
    assert (record.method, record.path) == ("POST", PATH)
    assert (record.is_stream, record.is_complete, record.client_left, record.takeovers) == (stream, True, False, 0)
    assert record.tokens == 18
    assert record.prompt_tokens is not None
    assert record.prompt_tokens > 1
    assert (record.reason, record.drafted, record.api_key, record.prompt) == (None, None, None, None)
    assert (record.first_token is not None) is stream
    assert 0 <= (record.first_token or 0) <= record.duration
    assert record.started.utcoffset() is not None


@pytest.mark.parametrize("stream", [True, False])
async def test_a_drafted_request(pair: Pair, router: StartRouter, log: Log, stream: bool) -> None:
    client = await router(pair.servers, pair.routes)
    await until_decoding(client, "inject")
    pair.target.model = pair.drafter.model = ToyModel(ANSWER * 4)
    record = await log.ask(client, {**CHAT, "stream": stream})
    assert words(record) == (200, "fast", "fast", "big", "inject", None)
    assert record.is_complete
    assert record.drafted
    assert record.primed
    assert record.confirmed
    assert record.draft_n
    assert record.draft_n_accepted
    assert record.tokens == 18 * 4
    assert record.reason is None


async def test_why_a_request_is_not_drafted_for(pair: Pair, router: StartRouter, log: Log) -> None:
    client = await router(pair.servers, pair.routes)
    await until_decoding(client, "inject")
    record = await log.ask(client, {**CHAT, "max_tokens": 3})
    assert record.decoding == "plain"
    assert record.reason == "only 3 tokens wanted"


async def test_why_drafting_ended_early(pair: Pair, router: StartRouter, log: Log) -> None:
    client = await router(pair.servers, pair.routes)
    await until_decoding(client, "inject")
    pair.target.model = ToyModel(ANSWER * 20)
    pair.drafter.replies["/completion"] = reset
    record = await log.ask(client, {**CHAT, "stream": True})
    assert words(record) == (200, "fast", "fast", "big", "inject", None)
    assert record.is_complete
    assert record.ended_early is not None
    assert "'laptop'" in record.ended_early


async def test_refused_requests(fake: StartFake, router: StartRouter, log: Log) -> None:
    keys = ["first-secret", {"name": "phone", "key": "second-secret"}]
    client = await router({"big": await fake()}, api_keys=keys)
    unknown = await log.ask(client, {**CHAT, "model": "gpt"})
    assert words(unknown) == (404, None, "gpt", None, None, "model_not_found")
    assert words(await log.ask(client, CHAT, "/slots")) == (404, None, None, None, None, "unknown_url")
    assert words(await log.ask(client, {"model": 1})) == (400, None, None, None, None, "400")
    client.headers["authorization"] = "Bearer second-secret"
    assert (await log.ask(client, CHAT)).api_key == "phone"
    client.headers["authorization"] = "Bearer wrong-secret"
    refused = await log.ask(client, CHAT)
    assert words(refused) == (401, None, None, None, None, "invalid_api_key")
    assert refused.api_key is None
    assert refused.is_complete


async def test_requests_that_need_no_server(fake: StartFake, router: StartRouter, log: Log) -> None:
    client = await router({"big": await fake()})
    for path in ("/health", "/v1/models", "/v1/models/fast"):
        response = await client.get(path)
        record = await log.of(response.headers["x-request-id"])
        assert words(record) == (200, None, None, None, None, None)
        assert (record.method, record.path, record.is_complete) == ("GET", path, True)
        assert record.level == logging.DEBUG


async def test_an_error_of_the_target(fake: StartFake, router: StartRouter, log: Log) -> None:
    target = await fake()
    client = await router({"big": target})
    target.replies[PATH] = respond_with({"error": {"code": 400, "message": "no", "type": "t"}}, 400)
    record = await log.ask(client, CHAT)
    assert words(record) == (400, "fast", "fast", "big", "plain", None)
    assert record.is_failed
    assert record.tokens is None


async def test_no_target_answers(router: StartRouter, log: Log) -> None:
    away = {"url": "http://127.0.0.1:9"}
    client = await router({"one": away, "other": away}, wait=False)
    record = await log.ask(client, CHAT)
    assert words(record) == (502, "fast", "fast", "other", "plain", "upstream_unavailable")
    assert record.takeovers == 1
    assert record.level == logging.WARNING


async def test_a_takeover(fake: StartFake, router: StartRouter, log: Log) -> None:
    first, second = await fake(), await fake()
    client = await router({"first": first, "second": second})
    first.replies[PATH] = reset
    record = await log.ask(client, {**CHAT, "stream": True})
    assert words(record) == (200, "fast", "fast", "second", "plain", None)
    assert (record.takeovers, record.is_complete) == (1, True)


async def test_a_stream_that_breaks(fake: StartFake, router: StartRouter, log: Log) -> None:
    target = await fake()
    client = await router({"big": target})

    async def die(exchange: Exchange, number: int) -> None:
        if number == 5:
            exchange.end_connection()

    target.before_token = die
    record = await log.ask(client, {**CHAT, "stream": True})
    assert words(record) == (200, "fast", "fast", "big", "plain", "upstream_unavailable")
    assert (record.is_complete, record.client_left) == (False, False)
    assert record.level == logging.WARNING


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves(fake: StartFake, router: StartRouter, log: Log, stream: bool) -> None:
    target = await fake(ANSWER * 1000)
    target.step_seconds = 0.01
    client = await router({"big": target})
    request = client.stream("POST", PATH, json={**CHAT, "stream": stream}, headers={"x-request-id": "gone"})
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as tasks:

            async def leave_in_mid_answer() -> None:
                await until(lambda: target.running, seconds=10)
                if not stream:
                    scope.cancel()

            tasks.start_soon(leave_in_mid_answer)
            async with request as response:
                await anext(response.aiter_raw())
                scope.cancel()
    record = await log.of("gone")
    assert words(record) == (200 if stream else None, "fast", "fast", "big", "plain", None)
    assert (record.is_complete, record.client_left, record.is_stream) == (False, True, stream)
    assert record.level == logging.INFO


# -- what is never in it -----------------------------------------------------------------------------------


async def test_no_secret_and_no_text_is_logged(pair: Pair, router: StartRouter, log: Log) -> None:
    secrets = ["client-secret", "server-secret", "cookie-secret", "wrong-secret", "promptsecret", "query-secret"]
    servers = {"big": {"url": pair.target.url, "api_key": "server-secret"}, "laptop": pair.drafter}
    client = await router(servers, pair.routes, api_keys=["client-secret"])
    client.cookies.set("session", "cookie-secret")
    await until_decoding(client, "inject")
    body = {**CHAT, "messages": [{"role": "user", "content": "promptsecret"}], "user": "promptsecret"}
    for stream in (True, False):
        assert (await log.ask(client, {**body, "stream": stream})).decoding == "inject"
    await log.ask(client, body, f"{PATH}?key=query-secret")
    pair.target.replies[PATH] = respond_with({"error": {"code": 400, "message": "bad: promptsecret", "type": "t"}}, 400)
    await log.ask(client, body)
    await log.ask(client, {**body, "model": "gpt"})
    client.headers["authorization"] = "Bearer wrong-secret"
    await log.ask(client, body)
    text = log.text()
    assert "invalid_api_key" in text
    assert [secret for secret in [*secrets, ANSWER.strip()] if secret in text] == []


# -- ids ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [True, False])
async def test_the_clients_id_goes_all_the_way(fake: StartFake, router: StartRouter, log: Log, stream: bool) -> None:
    target = await fake()
    client = await router({"big": target})
    response = await client.post(PATH, json={**CHAT, "stream": stream}, headers={"X-Request-Id": "mine-1"})
    assert response.headers.get_list("x-request-id") == ["mine-1"]
    assert [value for name, value in target.received(PATH)[0].headers if name == "x-request-id"] == ["mine-1"]
    assert (await log.of("mine-1")).model == "fast"


async def test_an_id_that_is_none_is_replaced(fake: StartFake, router: StartRouter, log: Log) -> None:
    target = await fake()
    client = await router({"big": target})
    response = await client.post(PATH, json=CHAT, headers={"x-request-id": "two words"})
    (made,) = response.headers.get_list("x-request-id")
    assert int(made, 16)
    assert [value for name, value in target.received(PATH)[0].headers if name == "x-request-id"] == [made]


async def test_a_target_does_not_change_the_id(fake: StartFake, router: StartRouter) -> None:
    target = await fake()
    client = await router({"big": target})

    async def with_its_own(exchange: Exchange) -> None:
        await exchange.respond({"model": "toy"}, headers={"X-Request-Id": "the target's"})

    target.replies[PATH] = with_its_own
    response = await client.post(PATH, json=CHAT, headers={"x-request-id": "mine-2"})
    assert response.headers.get_list("x-request-id") == ["mine-2"]


# -- the command -------------------------------------------------------------------------------------------


def start(topology: Path, port: int, *options: str) -> tuple[subprocess.Popen[bytes], Path]:
    errors = topology.with_suffix(".log")
    command = [sys.executable, "-c", "from specrouter.cli import main; main()", "serve", str(topology)]
    with errors.open("wb") as file:
        process = subprocess.Popen([*command, "--port", str(port), *options], stdout=file, stderr=file)
    return process, errors


@asynccontextmanager
async def served(topology: Path, *options: str) -> AsyncIterator[tuple[httpx.AsyncClient, Path]]:
    """`specrouter serve` in a process of its own; the file is its standard error."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process, errors = start(topology, port, *options)
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=20) as client:
            with anyio.fail_after(30):
                while True:
                    assert process.poll() is None, errors.read_text()
                    try:
                        await client.get("/health")
                        break
                    except httpx.ConnectError:
                        await anyio.sleep(0.05)
            yield client, errors
    finally:
        process.terminate()
        process.wait(20)


@pytest.fixture
async def topology(fake: StartFake, tmp_path: Path) -> Path:
    target = await fake()
    file = tmp_path / "served.yaml"
    routes = {"fast": {"target": "big"}}
    file.write_text(json.dumps({"version": 1, "servers": {"big": {"url": target.url}}, "routes": routes}))
    return file


async def test_standard_error_that_is_no_terminal_is_json(topology: Path) -> None:
    async with served(topology) as (client, errors):
        (await client.post(PATH, json=CHAT)).raise_for_status()
        await client.post(PATH, json={**CHAT, "model": "forged\n\x1b[2J"})
        await until(lambda: "forged" in errors.read_text(), seconds=10)
    lines = [json.loads(line) for line in errors.read_text().splitlines()]
    assert all(line["level"] and line["time"] and line["logger"] for line in lines)
    requests = [line for line in lines if line["logger"] == "specrouter.requests"]
    # A line is written when the answer is out, which may be later than the next request.
    assert sorted((line["status"], line["tokens"], line["model"]) for line in requests) == [
        (200, 18, "fast"),
        (404, None, "forged\n\x1b[2J"),
    ]
    assert not any("prompt" in line for line in requests)


async def test_lines_for_people_and_prompts_on_demand(topology: Path) -> None:
    async with served(topology, "--log-format", "human", "--log-prompts") as (client, errors):
        (await client.post(PATH, json=CHAT)).raise_for_status()
        await until(lambda: "prompt:" in errors.read_text(), seconds=10)
    text = errors.read_text()
    assert "\x1b" not in text
    (number,) = [
        index for index, line in enumerate(text.splitlines()) if "fast  200  big  plain  18 tokens in " in line
    ]
    assert text.splitlines()[number + 1] == '    prompt: [{"role": "user", "content": "hi"}]'
