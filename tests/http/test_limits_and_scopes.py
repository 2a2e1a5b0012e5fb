"""Concurrency limits, scopes of keys and time-outs, on real sockets."""

from __future__ import annotations

from typing import Any

import anyio
import httpx
import pytest
from http_support import ANSWER, CHAT, StartFake, StartRouter, until

from specrouter.testing import Exchange, FakeServer

PATH = "/v1/chat/completions"


class Blocked:
    """Makes a fake hold all answers until `go` is set."""

    def __init__(self, fake: FakeServer) -> None:
        self.fake = fake
        self.go = anyio.Event()
        fake.replies[PATH] = self._reply

    async def _reply(self, exchange: Exchange) -> None:
        await self.go.wait()
        message = {"role": "assistant", "content": "at last"}
        await exchange.respond({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})


async def ask(client: httpx.AsyncClient, into: list[httpx.Response], **changed: Any) -> None:
    headers = changed.pop("headers", {})
    into.append(await client.post(PATH, json={**CHAT, **changed}, headers=headers))


async def test_a_route_answers_so_many_at_a_time(fake: StartFake, router: StartRouter) -> None:
    target = await fake()
    blocked = Blocked(target)
    routes = {"fast": {"target": "big", "limits": {"concurrent": 1, "queued": 1}}, "free": {"target": "big"}}
    client = await router({"big": target}, routes)
    answers: list[httpx.Response] = []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask, client, answers)
        await until(lambda: len(target.received(PATH)) == 1)
        async with anyio.create_task_group() as later:
            later.start_soon(ask, client, answers)
            # One of two finds the queue full, whichever comes later.
            later.start_soon(ask, client, answers)
            await until(lambda: len(answers) == 1)
            refused = answers.pop()
            assert refused.status_code == 429
            assert refused.json()["error"]["type"] == "rate_limit_error"
            assert refused.json()["error"]["code"] == "rate_limit_exceeded"
            assert "the model 'fast' answers 1 request at a time, 1 are waiting" in refused.json()["error"]["message"]
            assert int(refused.headers["retry-after"]) >= 1
            assert len(target.received(PATH)) == 1
            blocked.go.set()
    assert [answer.status_code for answer in answers] == [200, 200]
    assert (await client.post(PATH, json={**CHAT, "model": "free"})).status_code == 200


async def test_a_client_that_leaves_the_queue_is_never_asked_for(fake: StartFake, router: StartRouter) -> None:
    target = await fake()
    blocked = Blocked(target)
    client = await router({"big": target}, {"fast": {"target": "big", "limits": {"concurrent": 1}}})
    answers: list[httpx.Response] = []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask, client, answers)
        await until(lambda: len(target.received(PATH)) == 1)
        with pytest.raises(httpx.ReadTimeout):
            await client.post(PATH, json=CHAT, timeout=0.2)
        blocked.go.set()
    assert (await client.post(PATH, json=CHAT)).status_code == 200
    assert len(target.received(PATH)) == 2


async def test_a_wait_has_an_end(fake: StartFake, router: StartRouter) -> None:
    target = await fake()
    blocked = Blocked(target)
    client = await router({"big": target}, {"fast": {"target": "big", "limits": {"concurrent": 1, "wait": 0.05}}})
    answers: list[httpx.Response] = []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask, client, answers)
        await until(lambda: len(target.received(PATH)) == 1)
        refused = await client.post(PATH, json=CHAT)
        assert refused.status_code == 429
        assert "no place became free within 0.05 s" in refused.json()["error"]["message"]
        blocked.go.set()


KEYS = [
    {"name": "all", "key": "key-for-all"},
    {"name": "one", "key": "key-for-one", "routes": ["slow"], "limits": {"concurrent": 1, "queued": 0}},
]


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@pytest.fixture
async def scoped(fake: StartFake, router: StartRouter) -> tuple[httpx.AsyncClient, FakeServer]:
    target = await fake()
    routes = {"fast": {"target": "big", "aliases": ["default"]}, "slow": {"target": "big", "aliases": ["other"]}}
    # The fixture takes the first key for the client's own, as a text.
    client = await router({"big": target}, routes, api_keys=["first", *KEYS])
    return client, target


async def test_a_key_opens_its_routes_only(scoped: tuple[httpx.AsyncClient, FakeServer]) -> None:
    client, _ = scoped
    listed = (await client.get("/v1/models", headers=bearer("key-for-one"))).json()["data"]
    assert [model["id"] for model in listed] == ["slow"]
    assert len((await client.get("/v1/models", headers=bearer("key-for-all"))).json()["data"]) == 2
    for model, status in (("slow", 200), ("other", 200), ("fast", 404), ("default", 404), ("nothing", 404)):
        answer = await client.post(PATH, json={**CHAT, "model": model}, headers=bearer("key-for-one"))
        assert answer.status_code == status, model
        if status == 404:
            # What it does not open does not exist, to it.
            assert answer.json()["error"]["message"] == f"model {model!r} is not served here; models here: slow"
    assert (await client.get("/v1/models/fast", headers=bearer("key-for-one"))).status_code == 404
    # The only route there is, to this key.
    unnamed = {key: value for key, value in CHAT.items() if key != "model"}
    answer = await client.post(PATH, json=unnamed, headers=bearer("key-for-one"))
    assert answer.json()["model"] == "slow"


async def test_limits_of_a_key(scoped: tuple[httpx.AsyncClient, FakeServer]) -> None:
    client, target = scoped
    blocked = Blocked(target)
    answers: list[httpx.Response] = []
    async with anyio.create_task_group() as tasks:
        before = len(target.received(PATH))
        tasks.start_soon(lambda: ask(client, answers, model="slow", headers=bearer("key-for-one")))
        await until(lambda: len(target.received(PATH)) == before + 1)
        refused = await client.post(PATH, json={**CHAT, "model": "slow"}, headers=bearer("key-for-one"))
        assert refused.status_code == 429
        assert "the API key 'one' answers 1 request at a time" in refused.json()["error"]["message"]
        assert "key-for-one" not in refused.text
        # Another key is not concerned.
        tasks.start_soon(lambda: ask(client, answers, model="slow", headers=bearer("key-for-all")))
        await until(lambda: len(target.received(PATH)) == before + 2)
        blocked.go.set()
    assert [answer.status_code for answer in answers] == [200, 200]


async def test_a_target_that_does_not_begin_is_replaced(fake: StartFake, router: StartRouter) -> None:
    silent, other = await fake(), await fake()
    Blocked(silent)
    servers = {"big": {"url": silent.url, "first_byte_timeout": 0.1}, "next": other}
    client = await router(servers)
    assert (await client.post(PATH, json=CHAT)).json()["choices"][0]["message"]["content"] == ANSWER
    await until(lambda: silent.running == 0)


async def test_no_other_target_to_replace_it(fake: StartFake, router: StartRouter) -> None:
    silent = await fake()
    Blocked(silent)
    client = await router({"big": {"url": silent.url, "first_byte_timeout": 0.1}})
    answer = await client.post(PATH, json=CHAT)
    assert answer.status_code == 504
    assert answer.json()["error"]["code"] == "upstream_timeout"
    assert answer.json()["error"]["message"] == "server 'big' did not begin to answer for 0.1 s"


async def test_a_pause_within_an_answer(fake: StartFake, router: StartRouter) -> None:
    target = await fake()

    async def pauses(exchange: Exchange) -> None:
        await exchange.start_stream()
        await exchange.send_event({"choices": [{"index": 0, "delta": {"content": "one"}, "finish_reason": None}]})
        await anyio.sleep_forever()

    target.replies[PATH] = pauses
    client = await router({"big": {"url": target.url, "idle_timeout": 0.1}})
    answer = await client.post(PATH, json={**CHAT, "stream": True})
    assert answer.status_code == 200
    events = [line for line in answer.text.splitlines() if line]
    assert len(events) == 2
    assert "server 'big' was silent within its answer for 0.1 s" in events[1]
    assert "upstream_timeout" in events[1]
    await until(lambda: target.running == 0)
