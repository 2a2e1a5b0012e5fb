"""Over two replicas, a conversation finds its prompt in the cache as if there were one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from llama_support import CHAT, StartRouter, StartServer, ask, client_of, until

from specrouter.demo.processes import ManagedServer

TURNS = 5


@pytest.fixture(scope="module")
def replicas(start_server: StartServer, model_file: Path) -> Iterator[dict[str, ManagedServer]]:
    """Two servers with the same model."""
    servers = {name: start_server(model_file, "-c", "8192") for name in ("first", "second")}
    yield servers
    for server in servers.values():
        server.stop()


@pytest.fixture(scope="module")
def client(start_router: StartRouter, replicas: dict[str, ManagedServer]) -> httpx.Client:
    """A client of a router before the replicas, both of which it knows."""
    alone = {name: {"target": name} for name in replicas}
    client = start_router(replicas, {"both": {"target": [*replicas], "balance": "least_busy"}, **alone})
    until(lambda: all("n_vocab" in model["meta"] for model in client.get("/v1/models").json()["data"]), seconds=20)
    return client


def has_worked(server: ManagedServer) -> bool:
    """Whether a server has had anything to do."""
    with client_of(server) as client:
        return any(slot.get("id_task", -1) >= 0 for slot in client.get("/slots").json())


def document(subject: str) -> str:
    """About 2,000 tokens."""
    return " ".join(
        f"Note {number}: there are {number * number} {subject} in county {number}." for number in range(105)
    )


class Chat:
    """A conversation about a document."""

    def __init__(self, subject: str) -> None:
        self.messages: list[dict[str, Any]] = [{"role": "system", "content": document(subject)}]

    def turn(self, client: httpx.Client, question: str) -> float:
        """Ask, and return the share of the prompt that was in the cache."""
        self.messages.append({"role": "user", "content": question})
        answer = ask(client, CHAT, {"model": "both", "messages": self.messages, "max_tokens": 8, "temperature": 0})
        self.messages.append(answer["choices"][0]["message"])
        timings = answer["timings"]
        prompt = timings["cache_n"] + timings["prompt_n"]
        assert prompt > 1900
        return float(timings["cache_n"] / prompt)


def test_conversations_find_their_caches(client: httpx.Client, replicas: dict[str, ManagedServer]) -> None:
    one, other = Chat("lighthouses"), Chat("windmills")
    alone = [one.turn(client, f"How many are in county {turn}?") for turn in range(TURNS)]
    assert alone[0] < 0.1
    assert min(alone[1:]) > 0.9
    assert other.turn(client, "How many are in county 0?") < 0.1
    for turn in range(1, TURNS):
        # Now one is first and now the other: simply taking turns would mix them up.
        for chat in (one, other) if turn % 2 else (other, one):
            assert chat.turn(client, f"How many are in county {turn}?") > 0.9
    assert all(has_worked(server) for server in replicas.values())
    # Another conversation about the same document finds that much, too.
    assert Chat("lighthouses").turn(client, "Which county has most?") > 0.9
