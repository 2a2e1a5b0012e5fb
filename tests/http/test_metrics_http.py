"""`/metrics` over HTTP: what it counts is what the answers said, and who may read it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from http_support import ANSWER, CHAT, Held, Pair, StartFake, StartRouter, until, until_decoding
from prometheus_client.parser import text_string_to_metric_families

from specrouter.app import make_app, serve_in_background
from specrouter.config import load_topology
from specrouter.metrics import FAMILIES, PREFIX
from specrouter.routing import Router
from specrouter.service import Service
from specrouter.testing import Exchange, FakeServer, ToyModel, reset, respond_with

pytestmark = pytest.mark.anyio

PATH = "/v1/chat/completions"


class Figures:
    """All samples of one moment."""

    def __init__(self, text: str) -> None:
        families = text_string_to_metric_families(text)
        self.samples = [sample for family in families for sample in family.samples]

    def sum(self, name: str, **labels: str) -> float:
        """Over all samples of the name (without the prefix) that have these labels."""
        found = [
            sample.value
            for sample in self.samples
            if sample.name == PREFIX + name and labels.items() <= sample.labels.items()
        ]
        return sum(found)

    def labels(self) -> set[str]:
        """All values of labels of our families, bounds of buckets left out."""
        return {
            value
            for sample in self.samples
            if sample.name.startswith(PREFIX)
            for name, value in sample.labels.items()
            if name != "le"
        }


async def figures(client: httpx.AsyncClient, **headers: str) -> Figures:
    response = await client.get("/metrics", headers=headers)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].count("charset") == 1
    return Figures(response.text)


async def until_counted(client: httpx.AsyncClient, requests: int) -> Figures:
    """Wait until so many requests have been counted: an answer may be read before its request has ended."""
    with anyio.fail_after(20):
        while (found := await figures(client)).sum("requests_total") < requests:
            await anyio.sleep(0.01)
    assert found.sum("requests_total") == requests
    return found


# -- what is counted ---------------------------------------------------------------------------------------


async def test_drafted_answers(pair: Pair, router: StartRouter) -> None:
    client = await router(pair.servers, pair.routes)
    await until_decoding(client, "inject")
    pair.target.model = pair.drafter.model = ToyModel(ANSWER * 4)
    asked = len(pair.target.received(PATH))
    before = await until_counted(client, asked)
    answers = [(await client.post(PATH, json={**CHAT, "n_probs": 0})).json() for _ in range(3)]
    streamed = await client.post(PATH, json={**CHAT, "stream": True})
    events = [line.removeprefix("data: ") for line in streamed.text.splitlines() if line.startswith("data: {")]
    timings = [*(answer["timings"] for answer in answers), json.loads(events[-1])["timings"]]
    after = await until_counted(client, asked + 4)

    def gained(name: str) -> float:
        return after.sum(name, route="fast", server="big", decoding="inject") - before.sum(
            name, route="fast", server="big", decoding="inject"
        )

    assert gained("requests_total") == 4
    assert gained("generation_tokens_total") == sum(answer["predicted_n"] for answer in timings) == 4 * 72
    assert gained("spec_decode_num_draft_tokens_total") == sum(answer["draft_n"] for answer in timings)
    assert gained("spec_decode_num_accepted_tokens_total") == sum(answer["draft_n_accepted"] for answer in timings) > 0
    assert gained("prompt_tokens_total") == sum(answer["prompt_n"] + answer["cache_n"] for answer in timings)
    assert gained("time_to_first_token_seconds_count") == 1
    assert gained("request_time_per_output_token_seconds_count") == 4
    measured = sum(answer["predicted_ms"] / 1000 / (answer["predicted_n"] - 1) for answer in timings)
    assert gained("request_time_per_output_token_seconds_sum") == pytest.approx(measured)
    for name in ("primed_tokens_total", "drafted_tokens_total", "spec_decode_num_drafts_total"):
        assert gained(name) > 0
    accepted = gained("spec_decode_num_accepted_tokens_per_pos_total")
    assert 0 < accepted <= gained("generation_tokens_total")
    assert after.sum("drafting_available", route="fast", server="big") == 1


async def test_answers_without_drafts(pair: Pair, router: StartRouter) -> None:
    client = await router(pair.servers, pair.routes)
    await until_decoding(client, "inject")
    pair.drafter.stop()
    await until_decoding(client, "draft server laptop is down")
    (await client.post(PATH, json={**CHAT, "max_tokens": 3})).raise_for_status()
    await until_decoding(client, "draft server laptop is down")
    found = await figures(client)
    assert found.sum("fallbacks_total", route="fast", server="big", reason="request") == 1
    assert found.sum("fallbacks_total", route="fast", server="big", reason="draft_server") >= 1
    assert found.sum("fallbacks_total", reason="other") == 0
    assert found.sum("server_state", server="laptop", state="down") == 1
    assert found.sum("server_state", server="laptop", state="up") == 0


async def test_errors(fake: StartFake, router: StartRouter) -> None:
    target, other = await fake(), await fake()
    routes = {"fast": {"target": ["big", "other"]}, "away": {"target": "away"}}
    client = await router({"big": target, "other": other, "away": {"url": "http://127.0.0.1:9"}}, routes, wait=False)
    await client.post(PATH, json={**CHAT, "model": "gpt"})
    await client.post(PATH, json={**CHAT, "model": "away"})
    target.replies[PATH] = respond_with({"error": {"code": 400, "message": "no", "type": "t"}}, 400)
    await client.post(PATH, json=CHAT)
    target.replies[PATH] = reset
    (await client.post(PATH, json=CHAT)).raise_for_status()
    found = await until_counted(client, 4)
    assert found.sum("request_errors_total", code="model_not_found", route="", server="") == 1
    assert found.sum("request_errors_total", code="upstream_unavailable", route="away", server="away") == 1
    assert found.sum("request_errors_total", code="target", route="fast", server="big") == 1
    assert found.sum("takeovers_total", route="fast", server="other") == 1
    assert [found.sum("requests_total", status=status) for status in ("2xx", "4xx", "5xx")] == [1, 2, 1]
    assert found.sum("request_errors_total") == 3


async def test_a_stream_that_breaks_and_a_client_that_leaves(fake: StartFake, router: StartRouter) -> None:
    target = await fake(ANSWER * 1000)
    target.step_seconds = 0.005
    client = await router({"big": target})

    async def die(exchange: Exchange, number: int) -> None:
        if number == 5:
            exchange.end_connection()

    target.before_token = die
    await client.post(PATH, json={**CHAT, "stream": True})
    broken = await until_counted(client, 1)
    assert broken.sum("request_errors_total", route="fast", server="big") == 1
    target.before_token = None
    async with client.stream("POST", PATH, json={**CHAT, "stream": True}) as response:
        await anext(response.aiter_raw())
    left = await until_counted(client, 2)
    assert left.sum("clients_left_total", route="fast", server="big") == 1
    assert left.sum("request_errors_total") == 1
    assert left.sum("num_requests_running", route="fast") == 0


async def test_running_waiting_and_refused(fake: StartFake, router: StartRouter) -> None:
    target = await fake()
    held = Held(target)
    limits = {"concurrent": 1, "queued": 1}
    client = await router({"big": target}, {"fast": {"target": "big", "limits": limits}})
    statuses: list[int] = []

    async def ask() -> None:
        statuses.append((await client.post(PATH, json=CHAT)).status_code)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask)
        await held.reached.wait()
        tasks.start_soon(ask)
        with anyio.fail_after(20):
            while (now := await figures(client)).sum("num_requests_waiting", route="fast") != 1:
                await anyio.sleep(0.01)
        assert now.sum("num_requests_running", route="fast") == 1
        assert now.sum("server_requests_running", server="big") == 1
        await ask()
        held.go.set()
    assert sorted(statuses) == [200, 200, 429]
    found = await until_counted(client, 3)
    assert found.sum("request_errors_total", route="fast", code="rate_limit_exceeded") == 1
    assert found.sum("num_requests_running") == found.sum("num_requests_waiting") == 0
    assert found.sum("request_queue_time_seconds_sum", route="fast") > 0


HOSTILE = ['"} 1\nevil 1', "\x00", "a" * 5000, "fast\n", "…", "${KEY}", "\\", "route=", "gpt-4"]


async def test_no_label_has_what_a_client_wrote(fake: StartFake, router: StartRouter) -> None:
    client = await router({"big": await fake()})
    before = (await figures(client)).labels()
    for name in HOSTILE:
        headers = {"x-request-id": "client-text", "user-agent": "client-text"}
        await client.post(PATH, json={**CHAT, "model": name, "user": "client-text"}, headers=headers)
    await client.post("/v1/client-text", json=CHAT)
    await client.get("/client-text")
    found = await until_counted(client, len(HOSTILE) + 2)
    added = {"", "4xx", "2xx", "400", "model_not_found", "unknown_url", "target", "plain"}
    assert found.labels() - before <= added


# -- over reloads ------------------------------------------------------------------------------------------


def write(file: Path, servers: dict[str, FakeServer], routes: dict[str, Any]) -> None:
    topology = {"version": 1, "servers": {name: {"url": fake.url} for name, fake in servers.items()}, "routes": routes}
    file.write_text(json.dumps(topology), encoding="utf-8")


async def test_reloads(fake: StartFake, tmp_path: Path) -> None:
    big, old = await fake(), await fake()
    file = tmp_path / "topology.yaml"
    write(file, {"big": big, "old": old}, {"fast": {"target": "big"}, "slow": {"target": "old"}})
    service = Service(Router(load_topology(file)), make_app)
    async with serve_in_background(service) as url, httpx.AsyncClient(base_url=url, timeout=20) as client:
        for model in ("fast", "slow"):
            (await client.post(PATH, json={**CHAT, "model": model})).raise_for_status()
        await until_counted(client, 2)
        write(file, {"big": big}, {"fast": {"target": "big"}})
        assert not (await service.reload()).problems
        file.write_text("version: 2", encoding="utf-8")
        assert (await service.reload()).problems
        (await client.post(PATH, json=CHAT)).raise_for_status()
        found = await until_counted(client, 3)
    assert found.sum("requests_total", route="fast") == 2
    assert found.sum("requests_total", route="slow") == 1
    assert found.sum("topology_revision") == 2
    assert found.sum("reloads_total", result="taken") == found.sum("reloads_total", result="refused") == 1
    gauges = {family.exported for family in FAMILIES if family.kind == "gauge"}
    stale = [s for s in found.samples if s.name in gauges and {"slow", "old"} & set(s.labels.values())]
    assert stale == []


async def test_requests_of_the_topology_before_are_counted(fake: StartFake, tmp_path: Path) -> None:
    target = await fake()
    held = Held(target)
    file = tmp_path / "topology.yaml"
    write(file, {"big": target}, {"fast": {"target": "big"}})
    service = Service(Router(load_topology(file)), make_app)
    async with (
        serve_in_background(service) as url,
        httpx.AsyncClient(base_url=url, timeout=20) as client,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(lambda: client.post(PATH, json=CHAT))
        await held.reached.wait()
        write(file, {"big": target}, {"fast": {"target": "big", "aliases": ["quick"]}})
        assert not (await service.reload()).problems
        assert (await figures(client)).sum("num_requests_running", route="fast") == 1
        held.go.set()
        assert (await until_counted(client, 1)).sum("generation_tokens_total", route="fast") == 18
    await until(lambda: service.traffic.running["fast"] == 0)


# -- who may read it ---------------------------------------------------------------------------------------

KEYS = ["all-routes-secret", {"name": "phone", "key": "phone-secret", "routes": ["fast"]}]


@pytest.mark.parametrize("path", ["/metrics", "/specrouter/status"])
async def test_keys(fake: StartFake, router: StartRouter, path: str) -> None:
    client = await router({"big": {"url": (await fake()).url, "api_key": "server-secret"}}, api_keys=KEYS)
    (await client.post(PATH, json=CHAT)).raise_for_status()
    shown = await client.get(path)
    assert shown.status_code == 200
    assert shown.headers["cache-control"] == "no-store"
    assert not [secret for secret in ("all-routes-secret", "phone-secret", "server-secret") if secret in shown.text]
    assert (await client.get(path, headers={"authorization": "Bearer wrong"})).status_code == 401
    refused = await client.get(path, headers={"authorization": "Bearer phone-secret"})
    assert refused.status_code == 403
    assert refused.json()["error"]["code"] == "key_not_allowed"
    assert "big" not in refused.text


async def test_only_get(fake: StartFake, router: StartRouter) -> None:
    target = await fake()
    client = await router({"big": target})
    assert (await client.post("/metrics", json=CHAT)).json()["error"]["code"] == "unknown_url"
    assert (await client.head("/metrics")).status_code == 200
    assert not target.received("/metrics")


async def test_the_newer_format(fake: StartFake, router: StartRouter) -> None:
    client = await router({"big": await fake()})
    response = await client.get("/metrics", headers={"accept": "application/openmetrics-text;version=1.0.0"})
    assert response.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert response.text.endswith("# EOF\n")
