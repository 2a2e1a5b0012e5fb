"""A server that drafts by itself answers, and plain targets are what is left when it or its workers are gone."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from http_support import ANSWER, CHAT, StartFake, StartRouter, decoding, dies_after, until, until_decoding
from router_process import write_topology

from specrouter import terminal
from specrouter.checking import PairReport, Report, examine
from specrouter.config import load_topology
from specrouter.testing import Exchange, FakeServer, NgramPool, ToyModel, ToyVocabulary

pytestmark = pytest.mark.anyio

PATH = "/v1/chat/completions"


class OwnHeads(NgramPool):
    """Drafts what a model that always says ANSWER is going to say."""

    def __init__(self) -> None:
        super().__init__()
        self._model = ToyModel(ANSWER)

    def draft(self, context: Any) -> list[int]:
        token = self._model.next_token(context)
        return [] if token is None else [token]


def rpc(target: Any = "big", **options: Any) -> dict[str, Any]:
    """A route with a server that drafts by itself, and that is counted on again at once."""
    return {"target": target, "draft": {"use": "rpc", "options": {"server": "big-rpc", "settle": 0, **options}}}


class Pair:
    """A plain target, and a server with the same model that drafts by itself."""

    def __init__(self, plain: FakeServer, drafting: FakeServer) -> None:
        self.plain = plain
        self.drafting = drafting
        self.servers: dict[str, FakeServer | Mapping[str, Any]] = {"big": plain, "big-rpc": drafting}


@pytest.fixture
async def pair(fake: StartFake) -> Pair:
    return Pair(await fake(), await fake(pool=OwnHeads()))


async def start(router: StartRouter, pair: Pair, route: Mapping[str, Any]) -> httpx.AsyncClient:
    client = await router(pair.servers, {"fast": route})
    await until_decoding(client, "rpc")
    return client


def text_of(event: Mapping[str, Any]) -> str:
    choices = [choice.get("text") or choice.get("delta", {}).get("content") for choice in event.get("choices", ())]
    return "".join([event.get("content") or "", *(text or "" for text in choices)])


async def test_it_answers_while_it_drafts(pair: Pair, router: StartRouter) -> None:
    client = await start(router, pair, rpc())
    answer = await client.post(PATH, json=CHAT)
    assert answer.headers["x-specrouter-decoding"] == "rpc"
    assert answer.json()["choices"][0]["message"]["content"] == ANSWER
    assert answer.json()["timings"]["draft_n_accepted"] > 0
    assert not pair.plain.received("/completion")
    [route] = (await client.get("/specrouter/status")).json()["routes"]
    assert route["served_by"] == "big-rpc"
    assert route["draft"]["strategy"] == "rpc"
    assert route["draft"]["pairs"] == [
        {"target": "big-rpc", "verifier": "rpc", "obstacle": None, "crosses_as_text": False}
    ]
    last = (await client.get("/specrouter/status")).json()["recent"][0]
    assert (last["server"], last["decoding"]) == ("big-rpc", "rpc")
    assert last["draft_n_accepted"] > 0


async def test_every_request_is_its_business(pair: Pair, router: StartRouter) -> None:
    """It verifies by itself: whatever a companion could not follow is drafted for all the same."""
    client = await start(router, pair, rpc())
    for change in ({"logprobs": True}, {"n": 2}, {"max_tokens": 2}, {"response_format": {"type": "json_object"}}):
        assert await decoding(client, **change) == "rpc"
    other = await client.post("/v1/embeddings", json={"model": "fast", "input": "hi"})
    assert other.headers["x-specrouter-decoding"] == "rpc"


async def test_without_it_targets_answer_until_it_is_back(pair: Pair, router: StartRouter) -> None:
    client = await start(router, pair, rpc())
    pair.drafting.stop()
    await until_decoding(client, "plain; reason=server big-rpc is down (")
    await pair.drafting.start()
    await until_decoding(client, "rpc")


@pytest.mark.parametrize("path", [PATH, "/v1/completions", "/completion"])
async def test_it_dies_within_a_stream(pair: Pair, router: StartRouter, path: str) -> None:
    client = await start(router, pair, rpc())
    dies_after(pair.drafting, path, 7)
    body = {"model": "fast", "prompt": "hi", "messages": CHAT["messages"], "temperature": 0, "stream": True}
    answer = await client.post(path, json=body)
    assert answer.headers["x-specrouter-decoding"] == "rpc"
    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    assert "".join(text_of(event) for event in events) == ANSWER
    [record, *_] = (await client.get("/specrouter/status")).json()["recent"]
    assert (record["server"], record["takeovers"]) == ("big", 1)
    assert (record["decoding"], record["reason"]) == ("plain", "took over within the answer")
    # The next one is answered at once, by who is left.
    assert (await decoding(client)).startswith("plain; reason=server big-rpc is down (")


async def test_a_server_with_another_model_does_not_answer(fake: StartFake, router: StartRouter) -> None:
    other = Pair(await fake(ToyModel(ANSWER, vocabulary=ToyVocabulary(padding=8))), await fake(pool=OwnHeads()))
    size = len(ToyVocabulary())
    client = await router(other.servers, {"fast": rpc()})
    await until_decoding(
        client, f"plain; reason=server big-rpc has another model than big: n_vocab {size}, not {size + 8}"
    )
    other.plain.model = ToyModel(ANSWER)
    other.plain.chat_template = "{{ other }}"
    await until_decoding(client, "plain; reason=server big-rpc has another chat template than big")
    assert not other.drafting.received("/completion")


async def test_it_dies_before_an_unstreamed_answer(pair: Pair, router: StartRouter) -> None:
    client = await start(router, pair, rpc())

    async def dies(exchange: Exchange) -> None:
        exchange.end_connection()

    pair.drafting.replies[PATH] = dies
    answer = await client.post(PATH, json=CHAT)
    assert answer.json()["choices"][0]["message"]["content"] == ANSWER
    assert answer.headers["x-specrouter-decoding"] == "plain; reason=server big-rpc failed within this request"


async def test_a_server_that_does_not_draft_is_not_asked(pair: Pair, router: StartRouter) -> None:
    pair.drafting.pool = None
    client = await router(pair.servers, {"fast": rpc()})
    await until_decoding(client, "plain; reason=server big-rpc drafts nothing")
    assert not pair.drafting.received(PATH)


async def test_it_is_asked_where_nobody_else_is(pair: Pair, router: StartRouter) -> None:
    pair.drafting.pool = None
    client = await router(pair.servers, {"fast": rpc()})
    await until_decoding(client, "plain; reason=server big-rpc drafts nothing")
    pair.plain.stop()
    answer = await client.post(PATH, json=CHAT)
    assert answer.json()["choices"][0]["message"]["content"] == ANSWER
    assert len(pair.drafting.received(PATH)) == 1


async def test_a_target_that_drafts_by_itself(fake: StartFake, router: StartRouter) -> None:
    alone = await fake(pool=OwnHeads())
    client = await router({"big-rpc": alone}, {"fast": rpc("big-rpc")})
    await until_decoding(client, "rpc")
    alone.stop()
    assert (await client.post(PATH, json=CHAT)).status_code == 502
    await alone.start()
    await until_decoding(client, "rpc")


async def test_workers_count_as_much_as_the_server(pair: Pair, router: StartRouter) -> None:
    with socket.create_server(("127.0.0.1", 0)) as worker:
        port = worker.getsockname()[1]
        client = await start(router, pair, rpc(workers=[f"127.0.0.1:{port}"]))
        pair.drafting.stop()
        await until_decoding(client, "plain; reason=server big-rpc is down")
    await until_decoding(client, "plain; reason=the RPC workers of big-rpc are away")
    with socket.create_server(("127.0.0.1", port)):
        await pair.drafting.start()
        await until_decoding(client, "rpc")


STRANGER = """
import anyio
from specrouter.hookspecs import hookimpl
from specrouter.interfaces import DraftStrategy

class Watcher(DraftStrategy):
    \"\"\"Notes in the background what it is told to.\"\"\"

    name = "watcher"
    options_schema = {"type": "object", "properties": {"file": {"type": "string"}}, "required": ["file"]}

    def _note(self, what):
        with open(self.options["file"], "a") as file:
            file.write(what)

    async def watch(self):
        self._note("<")
        try:
            await anyio.sleep_forever()
        finally:
            self._note(">")

    def start(self, generation):
        return None

class Faulty(DraftStrategy):
    \"\"\"Has a watch that ends with a fault.\"\"\"

    name = "faulty"

    async def watch(self):
        raise RuntimeError("gone")

    def start(self, generation):
        return None

@hookimpl
def specrouter_draft_strategies():
    return [Watcher, Faulty]
"""


async def test_a_strangers_strategy_is_watched(
    fake: StartFake, router: StartRouter, tmp_path: Path, stack: AsyncExitStack
) -> None:
    """Also where another strategy has it; as long as there is a router."""
    (tmp_path / "watcher.py").write_text(STRANGER, encoding="utf-8")
    notes = tmp_path / "notes"
    watcher = {"use": "watcher", "options": {"file": str(notes)}}
    route = {"target": "big", "draft": {"use": "first_of", "options": {"strategies": [watcher]}}}
    await router({"big": await fake()}, {"fast": route}, plugins=["watcher.py"])
    await until(lambda: notes.exists() and notes.read_text() == "<")
    await stack.aclose()
    assert notes.read_text() == "<>"


async def test_a_watch_that_fails_is_logged(
    fake: StartFake, router: StartRouter, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "watcher.py").write_text(STRANGER, encoding="utf-8")
    client = await router({"big": await fake()}, {"fast": {"target": "big", "draft": "faulty"}}, plugins=["watcher.py"])
    with anyio.fail_after(30):
        while "the watch of draft plugin 'faulty' (watcher.py file) has ended" not in caplog.text:
            await anyio.sleep(0.01)
    assert "RuntimeError: gone" in caplog.text
    assert (await client.post(PATH, json=CHAT)).status_code == 200


# -- what `specrouter check` finds ---------------------------------------------------------------------------


async def checked(pair: Pair, folder: Path) -> Report:
    """What a live check says."""
    return await examine(load_topology(write_topology(folder / "topology.yaml", pair.servers, {"fast": rpc()})))


async def pair_report(pair: Pair, folder: Path) -> PairReport:
    """What it says of the server that drafts by itself."""
    [route] = (await checked(pair, folder)).routes
    [found] = route.pairs
    return found


@pytest.mark.parametrize(("seconds", "best"), [(0.002, 2.0), (0.004, 1.0), (0.008, 0.5)])
async def test_how_fast_it_is_at_its_best(
    pair: Pair, tmp_path: Path, capsys: pytest.CaptureFixture[str], seconds: float, best: float
) -> None:
    """A step of the plain target takes 4 ms, and the fake's clock gives an accepted token as much."""
    pair.plain.step_seconds, pair.drafting.step_seconds = 0.004, seconds
    report = await checked(pair, tmp_path)
    [found] = report.routes[0].pairs
    assert report.is_fine
    assert found.details["best_speed"] == best
    slower = "even with drafts that are all accepted, only x0.50 of the speed of big"
    assert found.loss == (slower if best < 1 else None)
    terminal.print_report(report)
    said = capsys.readouterr().out
    assert (f"    SLOWER: {slower}\n    to change that: start it with --flash-attn off --cache-ram 0" in said) is (
        best < 1
    )


class Wrong(OwnHeads):
    """Each second draft is refused."""

    asked = 0

    def draft(self, context: Any) -> list[int]:
        self.asked += 1
        return [token + self.asked % 2 for token in super().draft(context)]


async def test_drafts_that_are_refused_say_nothing(fake: StartFake, pair: Pair, tmp_path: Path) -> None:
    slow = Pair(pair.plain, await fake(pool=Wrong()))
    slow.drafting.step_seconds = 0.05
    found = await pair_report(slow, tmp_path)
    assert (found.loss, found.details.get("best_speed")) == (None, None)


@pytest.mark.parametrize("timings", [{}, {"predicted_n": 10, "predicted_ms": 0}, None])
async def test_a_target_that_does_not_say_how_fast_it_is(pair: Pair, tmp_path: Path, timings: object) -> None:
    """Also one that fails when it is asked."""

    async def reply(exchange: Exchange) -> None:
        if timings is None:
            await exchange.respond({"error": {"code": 500, "message": "no", "type": "server_error"}}, 500)
            return
        await exchange.start_stream()
        await exchange.send_event({"stop": True, "content": "", "timings": timings})
        await exchange.end_stream()

    pair.plain.replies["/completion"] = reply
    found = await pair_report(pair, tmp_path)
    assert (found.obstacle, found.loss, found.details.get("best_speed")) == (None, None, None)


async def test_nobody_to_compare_it_with(pair: Pair, tmp_path: Path) -> None:
    pair.plain.stop()
    found = await pair_report(pair, tmp_path)
    assert (found.obstacle, found.loss, found.details.get("best_speed")) == (None, None, None)
