"""Conversations over replicas of one model: they stay, they move when they must, and new ones are spread."""

from __future__ import annotations

from typing import Any

import anyio
import httpx
import pytest
from http_support import StartFake, StartRouter, until

from specrouter.testing import Exchange, FakeServer

pytestmark = pytest.mark.anyio

PATH = "/v1/chat/completions"
SYSTEM = {"role": "system", "content": "Be brief."}


class Replicas:
    """Two replicas `a` and `b` of one model, each saying its name, and a client of a router in front of them."""

    def __init__(self, a: FakeServer, b: FakeServer, client: httpx.AsyncClient) -> None:
        self.a = a
        self.b = b
        self.client = client
        self.may_end = anyio.Event()

    def hold(self, server: FakeServer) -> None:
        """Let all answers of this server stop before their last word until `may_end` is set."""

        async def wait(_: Exchange, number: int) -> None:
            if number == 1:
                await self.may_end.wait()

        server.before_token = wait


@pytest.fixture
async def replicas(fake: StartFake, router: StartRouter) -> Replicas:
    """See Replicas. Each has one slot."""
    a, b = await fake(" baba baba", slots=1), await fake(" bebe bebe", slots=1)
    # The router waits for the first server of each route: here, for both.
    routes = {"both": {"target": ["a", "b"], "balance": "least_busy"}, "a": {"target": "a"}, "b": {"target": "b"}}
    return Replicas(a, b, await router({"a": a, "b": b}, routes))


class Chat:
    """A conversation: what was said so far."""

    def __init__(self, name: str) -> None:
        self.messages: list[dict[str, Any]] = [SYSTEM]
        self.name = name

    def question(self, *, stream: bool = False) -> dict[str, Any]:
        """The body of the next turn."""
        said = {"role": "user", "content": f"{self.name}, turn {len(self.messages)}"}
        return {"model": "both", "messages": [*self.messages, said], "stream": stream}

    async def turn(self, client: httpx.AsyncClient) -> str:
        """Ask the next question; the name of the replica that answers."""
        body = self.question()
        response = await client.post(PATH, json=body)
        response.raise_for_status()
        answer = response.json()["choices"][0]["message"]
        self.messages = [*body["messages"], answer]
        return {" baba baba": "a", " bebe bebe": "b"}[answer["content"]]


async def test_two_interleaved_chats_stay_where_they_are(replicas: Replicas) -> None:
    chats = [Chat("one"), Chat("other")]
    answered = [[await chat.turn(replicas.client) for chat in chats] for _ in range(5)]
    assert answered == [["a", "b"]] * 5


async def test_new_chats_take_turns(replicas: Replicas) -> None:
    assert [await Chat(str(number)).turn(replicas.client) for number in range(4)] == ["a", "b", "a", "b"]


async def test_new_chats_at_the_same_time_are_spread(replicas: Replicas) -> None:
    replicas.hold(replicas.a)
    replicas.hold(replicas.b)
    answered = []

    async def ask(chat: Chat) -> None:
        answered.append(await chat.turn(replicas.client))

    async with anyio.create_task_group() as tasks:
        for number in range(6):
            tasks.start_soon(ask, Chat(str(number)))
        await until(lambda: replicas.a.running + replicas.b.running == 6)
        assert replicas.a.running == replicas.b.running == 3
        replicas.may_end.set()
    assert sorted(answered) == [*"aaabbb"]


async def test_a_chat_goes_on_when_its_replica_dies_and_does_not_go_back(replicas: Replicas) -> None:
    client, chat = replicas.client, Chat("one")
    assert await chat.turn(client) == "a"
    replicas.a.stop()
    assert await chat.turn(client) == "b"
    assert [await Chat(f"new {number}").turn(client) for number in range(3)] == ["b"] * 3
    await replicas.a.start()
    with anyio.fail_after(20):
        while await Chat("when back").turn(client) != "a":
            await anyio.sleep(0.05)
    assert [await chat.turn(client) for _ in range(3)] == ["b"] * 3


async def test_a_chat_leaves_a_replica_that_is_full(replicas: Replicas) -> None:
    client, chat = replicas.client, Chat("one")
    assert await chat.turn(client) == "a"
    replicas.hold(replicas.a)
    async with client.stream("POST", PATH, json=chat.question(stream=True)) as response:
        # Its own slot is busy with it, and the other replica has nothing to do.
        assert await chat.turn(client) == "b"
        replicas.may_end.set()
        assert "[DONE]" in (await response.aread()).decode()
    assert await chat.turn(client) == "b"


async def test_equally_full_replicas_keep_their_chats(replicas: Replicas) -> None:
    client, chats = replicas.client, [Chat("one"), Chat("other")]
    assert [await chat.turn(client) for chat in chats] == ["a", "b"]
    replicas.hold(replicas.a)
    replicas.hold(replicas.b)
    answered = []

    async def ask(chat: Chat) -> None:
        answered.append((chat.name, await chat.turn(client)))

    async with anyio.create_task_group() as tasks:
        for chat in (*chats, *chats):
            tasks.start_soon(ask, chat)
        await until(lambda: replicas.a.running == replicas.b.running == 2)
        replicas.may_end.set()
    assert sorted(answered) == [("one", "a")] * 2 + [("other", "b")] * 2


async def test_a_client_that_leaves_within_an_answer_finds_its_replica_again(replicas: Replicas) -> None:
    client, chat = replicas.client, Chat("one")
    replicas.hold(replicas.a)
    body = chat.question(stream=True)
    async with client.stream("POST", PATH, json=body) as response:
        await anext(response.aiter_bytes())
    await until(lambda: not replicas.a.running)
    replicas.a.before_token = None
    chat.messages = [*body["messages"], {"role": "assistant", "content": " ba"}]
    # The other one was chosen longer ago.
    assert await chat.turn(client) == "a"


async def test_a_chat_can_have_a_name(replicas: Replicas) -> None:
    headers = {"x-conversation-id": "7f3a"}
    for question in ("Why?", "How?", "When?"):
        body = {"model": "both", "messages": [{"role": "user", "content": question}]}
        response = await replicas.client.post(PATH, json=body, headers=headers)
        assert "baba" in response.text
    assert all(request.header("x-conversation-id") is None for request in replicas.a.received(PATH))
    for name in ("b", "a", "b", "a"):
        said = {"model": "both", "prompt": "Why?", "prompt_cache_key": name}
        assert (await replicas.client.post("/v1/completions", json=said)).json()["choices"][0]["text"]
    assert [request.json["prompt_cache_key"] for request in replicas.a.received("/v1/completions")] == ["a"] * 2


async def test_an_error_of_a_replica_does_not_keep_the_chat_there(replicas: Replicas) -> None:
    async def fail(exchange: Exchange) -> None:
        await exchange.respond({"error": {"message": "out of memory", "type": "server_error", "code": 500}}, 500)

    replicas.a.replies[PATH] = fail
    chat = Chat("one")
    body = chat.question()
    assert (await replicas.client.post(PATH, json=body)).status_code == 500
    chat.messages = body["messages"]
    assert await chat.turn(replicas.client) == "b"
