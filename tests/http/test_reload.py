"""A changed topology is taken while requests run, and nobody notices."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from http_support import ANSWER, CHAT, Held, Pair, StartFake, decoding, until, until_decoding, until_known
from router_process import Servers, write_topology

from specrouter.app import make_app, serve_in_background
from specrouter.config import load_topology
from specrouter.routing import Router
from specrouter.running import ReloadOutcome
from specrouter.service import Service
from specrouter.testing import FakeServer

pytestmark = pytest.mark.anyio

PATH = "/v1/chat/completions"


class Reloadable:
    """A router whose topology can be written anew. `client` asks it."""

    def __init__(self, stack: AsyncExitStack, file: Path) -> None:
        self.client: httpx.AsyncClient
        self.service: Service
        self._stack = stack
        self._file = file

    async def start(self, servers: Servers, routes: Mapping[str, Any], **options: Any) -> None:
        write_topology(self._file, servers, routes, **options)
        self.service = Service(Router(load_topology(self._file)), make_app)
        url = await self._stack.enter_async_context(serve_in_background(self.service))
        self.client = await self._stack.enter_async_context(httpx.AsyncClient(base_url=url, timeout=60))
        if not options.get("api_keys"):
            await until_known(self.client)

    async def change(self, servers: Servers, routes: Mapping[str, Any], **options: Any) -> ReloadOutcome:
        write_topology(self._file, servers, routes, **options)
        return await self.service.reload()


@pytest.fixture
async def router(stack: AsyncExitStack, tmp_path: Path) -> Reloadable:
    return Reloadable(stack, tmp_path / "topology.yaml")


async def text(client: httpx.AsyncClient, **changed: Any) -> str:
    """The answer to a chat request that is streamed; fails unless it is complete."""
    response = await client.post(PATH, json={**CHAT, "stream": True, **changed})
    assert response.status_code == 200, response.text
    events = [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: ")]
    assert events[-1] == "[DONE]"
    return "".join(json.loads(event)["choices"][0]["delta"].get("content") or "" for event in events[:-1])


def watches() -> int:
    """How many tasks watch servers or pairs."""
    return sum("_run_in" in task.get_name() for task in asyncio.all_tasks())


# -- requests that run -------------------------------------------------------------------------------------


async def test_running_answer_ends_where_it_began(fake: StartFake, router: Reloadable) -> None:
    old, new = await fake(), await fake(" new")
    await router.start({"old": old}, {"fast": {"target": "old"}})
    held = Held(old)
    answers: list[str] = []

    async def ask() -> None:
        answers.append(await text(router.client))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask)
        await held.reached.wait()
        outcome = await router.change({"new": new}, {"fast": {"target": "new"}})
        assert outcome.changed == "server new added, server old removed, route fast changed"
        assert await text(router.client) == " new"
        assert old.running == 1
        held.go.set()
    assert answers == [ANSWER]
    await until(lambda: old.open_connections == 0, seconds=20)
    await until(lambda: watches() == 1, seconds=20)


async def test_removed_server_is_left_at_once_when_idle(fake: StartFake, router: Reloadable) -> None:
    kept, removed = await fake(), await fake()
    routes = {"fast": {"target": "kept"}}
    await router.start({"kept": kept, "removed": removed}, {**routes, "other": {"target": "removed"}})
    assert removed.open_connections == 1
    await router.change({"kept": kept}, routes)
    await until(lambda: removed.open_connections == 0, seconds=20)
    await until(lambda: watches() == 1, seconds=20)
    assert kept.open_connections


async def test_changes_under_load_lose_no_request(fake: StartFake, router: Reloadable) -> None:
    one, other = await fake(), await fake()
    await router.start({"one": one}, {"fast": {"target": "one"}})
    asked, stop = 0, False

    async def ask(*, stream: bool) -> None:
        nonlocal asked
        while not stop:
            if stream:
                assert await text(router.client) == ANSWER
            else:
                response = await router.client.post(PATH, json=CHAT)
                assert response.json()["choices"][0]["message"]["content"] == ANSWER
            asked += 1

    async with anyio.create_task_group() as tasks:
        for number in range(6):
            tasks.start_soon(lambda stream=bool(number % 2): ask(stream=stream))
        for number in range(20):
            before = asked
            servers = {"other": other} if number % 2 else {"one": one, "other": other}
            outcome = await router.change(servers, {"fast": {"target": list(servers)}})
            assert not outcome.problems
            await until(lambda before=before: asked > before + 3, seconds=60)
        stop = True
    assert router.service.status.revision == 21
    assert one.received(PATH)
    assert other.received(PATH)
    await until(lambda: one.open_connections == 0, seconds=20)
    await until(lambda: watches() == 1, seconds=20)


# -- files that cannot be taken ----------------------------------------------------------------------------


async def test_all_problems_are_told_and_all_stays(
    fake: StartFake, router: Reloadable, caplog: pytest.LogCaptureFixture
) -> None:
    target = await fake()
    await router.start({"big": target}, {"fast": {"target": "big"}})
    outcome = await router.change({"big": target}, {"fast": {"target": "bog"}, "slow": {"taget": "big"}})
    assert len(outcome.problems) >= 2
    assert any("bog" in problem for problem in outcome.problems)
    assert any("taget" in problem for problem in outcome.problems)
    logged = [record.message for record in caplog.records if record.levelno == logging.ERROR]
    assert logged == [f"the topology stays as it was: {problem}" for problem in outcome.problems]
    assert await text(router.client) == ANSWER
    assert router.service.status.revision == 1


STRATEGY = '''
from specrouter.hookspecs import hookimpl
from specrouter.interfaces import DraftStrategy


class Mine(DraftStrategy):
    """Drafts nothing."""

    name = "mine"

    def __init__(self, options, servers):
        {init}

    def available(self):
        return {reason!r}

    def start(self, generation):
        return None


@hookimpl
def specrouter_draft_strategies():
    return [Mine]
'''


def write_plugin(folder: Path, reason: str, init: str = "super().__init__(options, servers)") -> None:
    (folder / "mine.py").write_text(STRATEGY.format(reason=reason, init=init), encoding="utf-8")


async def test_plugin_that_cannot_be_made(fake: StartFake, router: Reloadable, tmp_path: Path) -> None:
    target = await fake()
    write_plugin(tmp_path, "first")
    topology = ({"big": target}, {"fast": {"target": "big", "draft": "mine"}})
    await router.start(*topology, plugins=["mine.py"])
    write_plugin(tmp_path, "second", init="raise RuntimeError('no luck')")
    outcome = await router.change(*topology, plugins=["mine.py"])
    assert outcome.problems == ("draft plugin 'mine' (mine.py file) raised RuntimeError: no luck",)
    assert await decoding(router.client) == "plain; reason=first"


async def test_plugin_file_that_changed(fake: StartFake, router: Reloadable, tmp_path: Path) -> None:
    target = await fake()
    write_plugin(tmp_path, "first")
    topology = ({"big": target}, {"fast": {"target": "big", "draft": "mine"}})
    await router.start(*topology, plugins=["mine.py"])
    assert (await router.change(*topology, plugins=["mine.py"])).changed == "nothing changed"
    # Within the same second and of the same size: a cache of byte code would not notice.
    write_plugin(tmp_path, "other")
    assert (await router.change(*topology, plugins=["mine.py"])).changed == "route fast made anew"
    assert await decoding(router.client) == "plain; reason=other"


async def test_warnings_are_logged(fake: StartFake, router: Reloadable, caplog: pytest.LogCaptureFixture) -> None:
    target = await fake()
    await router.start({"big": target}, {"fast": {"target": "big"}})
    await router.change({"big": target, "spare": target}, {"fast": {"target": "big"}})
    assert "no route uses this server" in caplog.text


# -- drafting ----------------------------------------------------------------------------------------------


def trials(target: FakeServer) -> int:
    """How many requests a target has seen that try out whether it verifies drafts."""
    return sum(b'"logit_bias"' in request.body for request in target.requests)


async def test_unchanged_route_goes_on_drafting(fake: StartFake, pair: Pair, router: Reloadable) -> None:
    elsewhere, new = await fake(), await fake()
    servers = {**pair.servers, "elsewhere": elsewhere}
    routes = {**pair.routes, "other": {"target": "elsewhere"}}
    await router.start(servers, routes)
    await until_decoding(router.client, "inject", seconds=60)
    seen, tasks = trials(pair.target), watches()
    # Another server changes and one is added; the route itself gets what has nothing to do with drafting.
    servers["elsewhere"] = {"url": elsewhere.url, "load_wait": 7}
    servers["new"] = new
    routes["other"] = {"target": ["elsewhere", "new"]}
    routes["fast"] = {**routes["fast"], "aliases": ["quick"], "limits": {"concurrent": 9}}
    outcome = await router.change(servers, routes, max_body="2MiB")
    assert outcome.changed == (
        "listen.max_body changed, server elsewhere changed, server new added, route fast changed, route other changed"
    )
    assert await decoding(router.client, model="quick") == "inject"
    assert await decoding(router.client) == "inject"
    assert trials(pair.target) == seen
    assert watches() == tasks + 1


async def test_route_whose_server_changed_is_tried_out_again(pair: Pair, router: Reloadable) -> None:
    await router.start(pair.servers, pair.routes)
    await until_decoding(router.client, "inject", seconds=60)
    seen = trials(pair.target)
    changed = {**pair.servers, "laptop": {"url": pair.drafter.url, "load_wait": 7}}
    outcome = await router.change(changed, pair.routes)
    assert outcome.changed == "server laptop changed, route fast made anew"
    await until_decoding(router.client, "inject", seconds=60)
    assert trials(pair.target) > seen


# -- what else can change ----------------------------------------------------------------------------------


async def test_keys_limits_and_origins(fake: StartFake, router: Reloadable) -> None:
    target = await fake()
    topology = ({"big": target}, {"fast": {"target": "big"}})
    await router.start(*topology, api_keys=["the-first-of-our-keys"])
    first, second = ({"authorization": f"Bearer the-{word}-of-our-keys"} for word in ("first", "second"))
    assert (await router.client.get("/v1/models", headers=first)).status_code == 200
    outcome = await router.change(
        *topology, api_keys=["the-second-of-our-keys"], cors_origins=["http://chat.example"], max_body="64KiB"
    )
    assert outcome.changed == "listen.api_keys changed, listen.cors_origins changed, listen.max_body changed"
    assert (await router.client.get("/v1/models", headers=first)).status_code == 401
    answer = await router.client.get("/v1/models", headers={**second, "origin": "http://chat.example"})
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == "http://chat.example"
    body = {**CHAT, "messages": [{"role": "user", "content": "x" * 100_000}]}
    assert (await router.client.post(PATH, json=body, headers=second)).status_code == 413


async def test_requests_of_before_still_count(fake: StartFake, router: Reloadable) -> None:
    target = await fake()
    servers = {"big": target}
    one = {"target": "big", "limits": {"concurrent": 1, "queued": 0}}
    await router.start(servers, {"fast": one})
    held = Held(target)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(text, router.client)
        await held.reached.wait()
        await router.change(servers, {"fast": {**one, "aliases": ["quick"]}})
        assert (await router.client.post(PATH, json=CHAT)).status_code == 429
        held.go.set()
    assert await text(router.client) == ANSWER


async def test_address_needs_a_restart(fake: StartFake, router: Reloadable) -> None:
    target = await fake()
    topology = ({"big": target}, {"fast": {"target": "big"}})
    await router.start(*topology)
    said = "listen.port waits for a restart"
    assert (await router.change(*topology, port=4321, max_body="2MiB")).changed == f"listen.max_body changed, {said}"
    assert (await router.change(*topology, port=4321, max_body="2MiB")).changed == said
    assert (await router.change(*topology, max_body="2MiB")).changed == "nothing changed"
