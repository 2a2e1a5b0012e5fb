"""`/specrouter/status`, and `specrouter status` that shows it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import httpx
import pytest
from http_support import ANSWER, CHAT, Held, Pair, StartFake, StartRouter, until, until_decoding
from rich.console import Console
from router_process import RouterProcess, served, specrouter, write_topology

from specrouter.app import make_app, serve_in_background
from specrouter.config import load_topology
from specrouter.errors import SetupError
from specrouter.routing import Router
from specrouter.service import Service
from specrouter.status_view import Address, StatusView, fetch
from specrouter.testing import ToyModel

pytestmark = pytest.mark.anyio

CHAT_PATH = "/v1/chat/completions"
PATH = "/specrouter/status"


async def status(client: httpx.AsyncClient) -> dict[str, Any]:
    response = await client.get(PATH)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


async def until_ended(client: httpx.AsyncClient, answer: httpx.Response) -> dict[str, Any]:
    """The status when the request with this answer is remembered."""
    identity = answer.headers["x-request-id"]
    with anyio.fail_after(20):
        while True:
            found = await status(client)
            if identity in [record["request_id"] for record in found["recent"]]:
                return found
            await anyio.sleep(0.01)


# -- what it says ------------------------------------------------------------------------------------------


async def test_a_drafted_route(pair: Pair, router: StartRouter) -> None:
    client = await router(pair.servers, pair.routes)
    await until_decoding(client, "inject")
    pair.target.model = pair.drafter.model = ToyModel(ANSWER * 4)
    for model in ("fast", "fast", "plain"):
        answer = await client.post(CHAT_PATH, json={**CHAT, "model": model, "stream": True})
        answer.raise_for_status()
    found = await until_ended(client, answer)
    fast, plain = found["routes"]
    assert (fast["name"], fast["targets"], fast["served_by"]) == ("fast", ["big"], "big")
    assert fast["draft"] == {
        "strategy": "remote",
        "servers": ["laptop"],
        "workers": None,
        "obstacle": None,
        "pairs": [{"target": "big", "verifier": "inject", "obstacle": None, "crosses_as_text": False}],
    }
    assert (fast["running"], fast["waiting"]) == (0, 0)
    lately = fast["lately"]
    assert lately["failed"] == 0
    assert 0 < lately["acceptance_rate"] <= 1
    assert lately["acceptance_length"] > 1
    assert lately["first_token"] is not None
    assert lately["speed"]["inject"] > 0
    assert plain["draft"] is None
    assert plain["lately"]["speed"]["plain"] > 0
    assert [server["name"] for server in found["servers"]] == ["big", "laptop"]
    big = found["servers"][0]
    assert (big["state"], big["model"], big["slots"], big["running"]) == ("up", "toy-model.gguf", 4, 0)
    assert found["topology"] == {"revision": 1, "reloads": 0, "last_reload": None}
    newest = found["recent"][0]
    assert (newest["model"], newest["server"], newest["decoding"], newest["tokens"]) == ("plain", "big", "plain", 72)


async def test_what_is_in_the_way(pair: Pair, router: StartRouter) -> None:
    pair.target.pool = None
    client = await router(pair.servers, pair.routes)
    pair.drafter.stop()
    await until_decoding(client, "draft server laptop is down")
    found = await status(client)
    draft = found["routes"][0]["draft"]
    assert "draft server laptop is down" in draft["obstacle"]
    assert draft["pairs"][0]["verifier"] is None
    assert draft["pairs"][0]["obstacle"]
    laptop = found["servers"][1]
    assert laptop["state"] == "down"
    assert laptop["reason"]
    assert laptop["since"] >= found["started"]


async def test_requests_of_now(pair: Pair, router: StartRouter) -> None:
    client = await router(pair.servers, pair.routes)
    await until_decoding(client, "inject")
    held = Held(pair.target)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: client.post(CHAT_PATH, json=CHAT, headers={"x-request-id": "now-1"}))
        await held.reached.wait()
        found = await status(client)
        (current,) = [entry for entry in found["current"] if entry["request_id"] == "now-1"]
        assert (current["route"], current["server"], current["decoding"]) == ("fast", "big", "inject")
        assert current["duration"] > 0
        assert found["routes"][0]["running"] == 1
        held.go.set()
    with anyio.fail_after(20):
        while (found := await status(client))["current"]:
            await anyio.sleep(0.01)
    assert found["recent"][0]["request_id"] == "now-1"


async def test_reloads(fake: StartFake, tmp_path: Path) -> None:
    target = await fake()
    file = write_topology(tmp_path / "served.yaml", {"big": target}, {"fast": {"target": "big"}})
    service = Service(Router(load_topology(file)), make_app)
    async with serve_in_background(service) as url, httpx.AsyncClient(base_url=url) as client:
        write_topology(file, {"big": target}, {"more": {"target": "big"}})
        await service.reload()
        file.write_text("version: 2")
        await service.reload()
        found = await status(client)
    problems = found["topology"]["last_reload"]["problems"]
    assert problems >= 1
    assert found["topology"] == {"revision": 2, "reloads": 2, "last_reload": {"changed": "", "problems": problems}}
    assert [route["name"] for route in found["routes"]] == ["more"]


async def test_no_secret_and_no_text(pair: Pair, tmp_path: Path) -> None:
    servers = {
        "big": {"url": pair.target.url, "api_key": "server-secret"},
        "laptop": {"url": pair.drafter.url, "api_key": "laptop-secret"},
    }
    file = write_topology(tmp_path / "served.yaml", servers, pair.routes, api_keys=["client-secret"])
    service = Service(Router(load_topology(file), log_prompts=True), make_app)
    headers = {"authorization": "Bearer client-secret"}
    async with serve_in_background(service) as url, httpx.AsyncClient(base_url=url, headers=headers) as client:
        await until_decoding(client, "inject")
        body = {**CHAT, "messages": [{"role": "user", "content": "promptsecret"}]}
        await client.post(f"{CHAT_PATH}?key=query-secret", json=body)
        answer = await client.post(CHAT_PATH, json=body)
        answer.raise_for_status()
        await until_ended(client, answer)
        shown = [(await client.get(path)).text for path in (PATH, "/metrics")]
    secrets = ["server-secret", "laptop-secret", "client-secret", "promptsecret", "query-secret", pair.target.url]
    assert [secret for secret in [*secrets, ANSWER.strip()] for text in shown if secret in text] == []


# -- the command -------------------------------------------------------------------------------------------


@pytest.fixture
async def process(fake: StartFake, tmp_path: Path, runtime: Path) -> AsyncIterator[tuple[RouterProcess, Path]]:
    target = await fake()
    keys = [{"name": "phone", "key": "phone-secret", "routes": ["fast"]}, "all-secret"]
    file = write_topology(tmp_path / "served.yaml", {"big": target}, {"fast": {"target": "big"}}, api_keys=keys)
    async with served(file) as running:
        running.client.headers["authorization"] = "Bearer all-secret"
        yield running, file


async def test_command(process: tuple[RouterProcess, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPECROUTER_API_KEY", raising=False)
    router, file = process
    answer = await router.client.post(CHAT_PATH, json=CHAT)
    answer.raise_for_status()
    url = str(router.client.base_url).rstrip("/")
    await until_ended(router.client, answer)
    code, out, err = await specrouter("status", str(file))
    assert (code, err) == (0, "")
    assert out.startswith(f"specrouter {(await status(router.client))['version']} at {url}, up ")
    for word in ("fast", "big", "toy-model.gguf", "18 tokens in"):
        assert word in out
    code, out, err = await specrouter("status", f"{url}/v1", "--key", "all-secret", "--json")
    assert (code, err) == (0, "")
    assert [route["name"] for route in json.loads(out)["routes"]] == ["fast"]
    for key, words in ((None, "no API key was sent"), ("phone-secret", "opens some routes only")):
        code, out, err = await specrouter("status", url, *(["--key", key] if key else []))
        assert (code, out) == (1, "")
        assert words in err
        assert "--key" in err
    async with served(file) as second:
        code, _, err = await specrouter("status", str(file))
        assert code == 1
        assert url in err
        assert str(second.client.base_url).rstrip("/") in err


async def test_command_without_a_router(tmp_path: Path, fake: StartFake) -> None:
    target = await fake()
    file = write_topology(tmp_path / "served.yaml", {"big": target}, {"fast": {"target": "big"}})
    code, _, err = await specrouter("status", str(file))
    assert (code, err) == (
        1,
        f"no router that is known here serves {file} (start one with: specrouter serve {file}); a demo's or a "
        "container's is asked by its URL, such as http://127.0.0.1:8080\n",
    )
    for where, words in (
        ("http://127.0.0.1:9", "no router answers at http://127.0.0.1:9"),
        (target.url, "is no specrouter"),
        ("http://[", "no router answers at http://["),
        (str(tmp_path / "missing.yaml"), "missing.yaml"),
    ):
        code, out, err = await specrouter("status", where)
        assert (code, out) == (1, "")
        assert words in err
        assert "Traceback" not in err


def rendered(view: StatusView) -> str:
    console = Console(width=200, force_terminal=False)
    with console.capture() as capture:
        console.print(view())
    return capture.get()


async def test_tables(pair: Pair, router: StartRouter) -> None:
    pair.routes["away"] = {"target": "away"}
    client = await router({**pair.servers, "away": {"url": "http://127.0.0.1:9"}}, pair.routes, wait=False)
    await until_decoding(client, "inject")
    pair.target.model = pair.drafter.model = ToyModel(ANSWER * 4)
    (await client.post(CHAT_PATH, json={**CHAT, "stream": True})).raise_for_status()
    await until_ended(client, await client.post(CHAT_PATH, json={**CHAT, "model": "forged\n\x1b[2J[red]"}))
    held = Held(pair.target)
    view = StatusView(Address(str(client.base_url).rstrip("/")))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: client.post(CHAT_PATH, json=CHAT))
        await held.reached.wait()
        shown = await anyio.to_thread.run_sync(rendered, view)
        held.go.set()
    assert "\x1b" not in shown
    for words in (
        "remote from laptop",
        "big: inject",
        "model_not_found",
        "down (",
        "since 0.",
        "forged\\n\\x1b[2J[red]",
    ):
        assert words in shown
    assert any("inject" in line and "/s" in line for line in shown.splitlines())


async def test_a_router_that_has_gone(fake: StartFake, tmp_path: Path) -> None:
    file = write_topology(tmp_path / "served.yaml", {"big": await fake()}, {"fast": {"target": "big"}})
    async with serve_in_background(file) as url:
        view = StatusView(Address(url))
        assert "fast" in await anyio.to_thread.run_sync(rendered, view)
    shown = await anyio.to_thread.run_sync(rendered, view)
    assert "fast" in shown
    assert f"no router answers at {url}" in shown
    with pytest.raises(SetupError, match="no router answers"):
        await anyio.to_thread.run_sync(fetch, Address(url))


async def test_a_status_of_another_version(fake: StartFake) -> None:
    target = await fake()

    async def other(exchange: Any) -> None:
        await exchange.respond({"routes": [{}], "topology": {}})

    target.replies[PATH] = other
    view = StatusView(Address(target.url))
    with pytest.raises(SetupError, match="not of this version"):
        await anyio.to_thread.run_sync(view)
    await until(lambda: target.open_connections == 0)
