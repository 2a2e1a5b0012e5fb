"""A whole measurement before fake servers: what is asked of whom, and what is made of it."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import httpx
import pytest
from http_support import ANSWER, Pair, StartFake

from specrouter.bench import figures
from specrouter.bench.plan import BenchOptions, measured_routes
from specrouter.bench.prompts import WARM_UP, Prompt
from specrouter.bench.relay import relay
from specrouter.bench.report_html import page
from specrouter.bench.report_json import as_json
from specrouter.bench.runner import DIFFERENT, FORGETS, NOTHING_REMEMBERED, Bench, Results
from specrouter.config import load_topology
from specrouter.config.model import ServerConfig
from specrouter.errors import SetupError, UpstreamError
from specrouter.forgetting import forget
from specrouter.ngram_pool import find_pool
from specrouter.testing import Exchange, FakeServer, NgramPool, ToyModel, respond_with
from specrouter.upstream import LlamaServer

pytestmark = pytest.mark.anyio

PROMPTS = [Prompt("chat", f"question {number}") for number in range(6)]
CHAT = "/v1/chat/completions"


class ForgettingPool(NgramPool):
    """Is wiped, as llama-server's is, after five drafts in a row of which less than a quarter was accepted."""

    def __init__(self, **settings: int) -> None:
        super().__init__(**settings)
        self.wiped = 0
        self._refused = 0
        self._last: tuple[list[int], list[int]] = ([], [])

    def draft(self, context: Sequence[int]) -> list[int]:
        before, draft = self._last
        if draft and list(context[: len(before)]) == before:
            came = list(context[len(before) :])
            accepted = next((n for n, token in enumerate(draft) if came[n : n + 1] != [token]), len(draft))
            self._refused = self._refused + 1 if accepted < len(draft) / 4 else 0
            if self._refused == 5:
                self._following.clear()
                self._refused, self.wiped = 0, self.wiped + 1
        self._last = (list(context), super().draft(context))
        return self._last[1]


class Watcher:
    """Notes what it sees."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def doing(self, what: str) -> None:
        self.seen.append(what)

    def begins(self, series: figures.Series, pairs: int) -> None:
        self.seen.append(f"{series.route}: {pairs}")

    def answered(self, pair: figures.Pair) -> None:
        self.seen.append(pair.question.drafted.text)

    def missed(self, missing: figures.Missing) -> None:
        self.seen.append(f"left out: {missing.question.drafted.text}")


async def measure(
    pair: Pair,
    folder: Path,
    *,
    routes: Any = None,
    servers: Any = None,
    watcher: Watcher | None = None,
    **given: Any,
) -> Results:
    """Measure the routes of a topology with the servers of the pair."""
    named, watcher = servers or pair.servers, watcher or Watcher()
    # Which verifier `auto` would choose depends on how fast a fake is today.
    inject = {name: {"verify": "inject", **route} for name, route in (routes or pair.routes).items()}
    topology = {
        "version": 1,
        "servers": {n: {"url": s.url} if isinstance(s, FakeServer) else s for n, s in named.items()},
        "routes": inject,
    }
    file = folder / "topology.yaml"
    file.write_text(json.dumps(topology))
    loaded = load_topology(file)
    results = Results(BenchOptions(**{"prompts": PROMPTS, "tokens": 18, **given}), "topology.yaml")
    with anyio.fail_after(60):
        await Bench(loaded, measured_routes(loaded, results.options), results, watcher).run()
    last = results.series[-1]
    assert last.all_pairs[-1].question.drafted.text in watcher.seen[-1 - len(last.missing) :]
    return results


def asked(server: FakeServer) -> list[str]:
    """The prompts of chat requests, in order."""
    return [request.json["messages"][0]["content"] for request in server.received(CHAT)]


@pytest.fixture
def forgetful(pair: Pair) -> Pair:
    """A pair whose target can be made to forget, and takes long enough for drafts to come first."""
    pair.target.pool = ForgettingPool()
    return pair


async def test_a_pool_that_forgets(forgetful: Pair, tmp_path: Path) -> None:
    results = await measure(forgetful, tmp_path)
    assert results.methods == {"big": FORGETS}
    [series] = results.series
    assert (series.route, series.target) == ("fast", "big")
    assert [pair.is_first for pair in series.all_pairs] == [True, *[False] * 6]
    assert [pair.question.drafted for pair in series.pairs] == PROMPTS
    for pair in series.pairs:
        assert pair.is_equal
        assert pair.plain.text == ANSWER
        assert pair.plain.tokens == pair.drafted.tokens == 18
        assert pair.plain.decoding == "plain"
        assert pair.drafted.decoding == "inject"
        assert pair.plain.accepted == 0, "nothing was there to draft it from"
    assert sum(pair.drafted.accepted for pair in series.pairs) > 0
    assert sum(pair.drafted.primed for pair in series.pairs) > 0
    # Both ways, right after each other, with the pool emptied before each.
    said = asked(forgetful.target)
    assert said == [prompt for one in [WARM_UP[0], *PROMPTS] for prompt in [one.text] * 2]
    assert isinstance(forgetful.target.pool, ForgettingPool)
    assert forgetful.target.pool.wiped >= 2 * 7
    orders = [pair.question.plain_first for pair in series.pairs]
    assert orders == [True, False] * 3
    for request in forgetful.target.received(CHAT):
        assert request.json["cache_prompt"] is False


async def test_a_pool_that_does_not_forget(pair: Pair, tmp_path: Path) -> None:
    results = await measure(pair, tmp_path)
    assert results.methods == {"big": DIFFERENT}
    [series] = results.series
    assert len(series.pairs) == 3
    assert all(found.is_equal is None for found in series.pairs)
    said = asked(pair.target)
    assert len(set(said)) == len(said) == 8
    assert any("no prompt is asked twice" in note for note in as_json(results)["notes"])


async def test_a_pool_that_does_not_forget_is_measured_once(pair: Pair, tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="cannot be made to forget"):
        await measure(pair, tmp_path, concurrency=(1, 2))
    with pytest.raises(SetupError, match="at least two prompts of a kind"):
        await measure(pair, tmp_path, prompts=PROMPTS[:1])


async def test_a_target_without_a_pool(pair: Pair, fake: StartFake, tmp_path: Path) -> None:
    """Another plain route: the same model on a server that drafts nothing."""
    pair.target.pool = ForgettingPool()
    alone = await fake()
    alone.step_seconds = 0.005
    servers = {**pair.servers, "alone": alone}
    routes = {"fast": pair.routes["fast"], "alone": {"target": "alone"}}
    results = await measure(pair, tmp_path, servers=servers, routes=routes, against="alone", prompts=PROMPTS[:2])
    assert results.methods == {"big": FORGETS, "alone": NOTHING_REMEMBERED}
    assert asked(alone) == asked(pair.target) == [WARM_UP[0].text, PROMPTS[0].text, PROMPTS[1].text]


class OwnHeads(NgramPool):
    """Drafts what a model that always says ANSWER is going to say."""

    def draft(self, context: Sequence[int]) -> list[int]:
        token = ToyModel(ANSWER).next_token(context)
        return [] if token is None else [token]


async def test_a_server_that_drafts_by_itself(fake: StartFake, pair: Pair, tmp_path: Path) -> None:
    """It answers the drafted route, the target the plain one."""
    drafting, plain = await fake(pool=OwnHeads()), await fake()
    route = {"target": "big", "draft": {"use": "rpc", "options": {"server": "big-rpc"}}}
    servers = {"big": plain, "big-rpc": drafting}
    results = await measure(pair, tmp_path, servers=servers, routes={"fast": route}, prompts=PROMPTS[:2])
    assert results.methods == dict.fromkeys(("big", "big-rpc"), NOTHING_REMEMBERED)
    [series] = results.series
    assert series.target == "big-rpc"
    assert [(found.plain.server, found.drafted.server) for found in series.pairs] == [("big", "big-rpc")] * 2
    assert all(found.is_equal and found.drafted.accepted for found in series.pairs)


async def test_drafts_that_are_verified_stepwise(fake: StartFake, pair: Pair, tmp_path: Path) -> None:
    """They live on the target's cache, so prompts cannot be evaluated anew."""
    fanout = {"use": "fanout", "options": {"stand_down": False}}
    routes = {"fast": {**pair.routes["fast"], "verify": fanout}}
    servers = {"big": await fake(), "laptop": pair.drafter}
    results = await measure(pair, tmp_path, servers=servers, routes=routes, prompts=PROMPTS[:2])
    [series] = results.series
    assert series.cached
    assert {found.drafted.decoding for found in series.pairs} == {"fanout"}
    assert all(found.is_equal for found in series.pairs)
    assert not any("cache_prompt" in request.json for request in servers["big"].received(CHAT))
    assert any("times to first token say little" in note for note in as_json(results)["notes"])


async def test_strategies_on_one_target(forgetful: Pair, tmp_path: Path) -> None:
    drafts = ["none", "remote", "prompt_lookup"]
    results = await measure(
        forgetful, tmp_path, routes={"fast": forgetful.routes["fast"]}, drafts=drafts, prompts=PROMPTS[:2]
    )
    found = {series.route: series for series in results.series}
    assert list(found) == ["fast+none", "fast+remote", "fast+prompt_lookup"]
    assert not any(pair.drafted.primed for pair in found["fast+none"].pairs)
    assert any(pair.drafted.primed for pair in found["fast+remote"].all_pairs)


async def test_several_at_once(forgetful: Pair, tmp_path: Path) -> None:
    running = 0

    async def watch(*_: object) -> None:
        nonlocal running
        # Of the answers; primes are shorter than their third word.
        running = max(running, forgetful.target.running)

    forgetful.target.before_token = watch
    results = await measure(forgetful, tmp_path, concurrency=(1, 3), prompts=PROMPTS[:3])
    assert [(series.concurrency, len(series.groups)) for series in results.series] == [(1, 4), (3, 2)]
    assert running >= 3


async def test_sampled_and_greedy_prompts(forgetful: Pair, tmp_path: Path) -> None:
    prompts = [Prompt("chat", "one"), Prompt("open", "two", 0.8)]
    results = await measure(forgetful, tmp_path, prompts=prompts)
    pairs = results.series[0].all_pairs
    assert [(pair.is_first, pair.question.drafted.temperature) for pair in pairs] == [
        (True, 0.0), (True, 0.8), (False, 0.0), (False, 0.8),
    ]  # fmt: skip
    assert [pair.is_equal for pair in pairs] == [True, None, True, None]


async def test_further_away(forgetful: Pair, tmp_path: Path) -> None:
    results = await measure(forgetful, tmp_path, rtt=(0.0, 20.0), rtt_target=30.0, prompts=PROMPTS[:2])
    assert [(series.rtt, series.rtt_target) for series in results.series] == [(0.0, 0.03), (0.02, 0.03)]
    for series in results.series:
        for pair in series.pairs:
            assert pair.plain.first >= 0.03
            assert pair.drafted.first >= 0.03


async def test_reports_of_a_measurement(forgetful: Pair, tmp_path: Path) -> None:
    results = await measure(forgetful, tmp_path, prompts=PROMPTS[:2])
    found = json.loads(json.dumps(as_json(results)))
    assert found["servers"]["big"]["model"] == "toy-model.gguf"
    for pair in found["series"][0]["pairs"]:
        assert sum(pair["drafted"]["steps"]) == 18
        assert len(pair["drafted"]["steps"]) == 18 - pair["drafted"]["accepted"]
    assert "big: toy-model.gguf (b1-fake)" in page(results)


async def test_another_text_is_noticed(forgetful: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the target thinks of it is asked of the target; the fake has no opinion, so it is given one here."""
    compared = []

    async def difference(server: LlamaServer, prompt: Sequence[int], own: str, said: str, *, ended: bool) -> float:
        compared.append((server.name, own, said, ended))
        return 0.3

    monkeypatch.setattr("specrouter.bench.exactness.difference", difference)
    words = ANSWER.split()
    models = [ToyModel(ANSWER), ToyModel(" " + " ".join(reversed(words)))]
    chats = 0

    async def change(exchange: Any, number: int) -> None:
        nonlocal chats
        if exchange.request.path == CHAT and number == 0:
            chats += 1
            forgetful.target.model = models[chats % 2]

    forgetful.target.before_token = change
    results = await measure(forgetful, tmp_path, prompts=PROMPTS[:2])
    differing = [pair for pair in results.series[0].all_pairs if pair.is_equal is False]
    assert differing
    assert [pair.difference for pair in differing] == [0.3] * len(differing)
    assert compared[0][0] == "big"
    assert any("more than a near tie" in note for note in as_json(results)["notes"])


# -- mistakes ----------------------------------------------------------------------------------------------


async def test_a_route_that_cannot_draft(pair: Pair, tmp_path: Path) -> None:
    pair.target.pool = None
    pair.target.slots = 1
    with pytest.raises(SetupError, match="route 'fast' does not draft: inject: server big has one slot") as caught:
        await measure(pair, tmp_path)
    assert "\n" not in str(caught.value)


async def test_a_drafter_that_is_down(pair: Pair, tmp_path: Path) -> None:
    pair.drafter.stop()
    with pytest.raises(SetupError, match="route 'fast' does not draft: draft server laptop is down"):
        await measure(pair, tmp_path)


async def test_no_server_to_put_further_away(forgetful: Pair, tmp_path: Path) -> None:
    routes = {"fast": {"target": "big", "draft": "prompt_lookup"}}
    with pytest.raises(SetupError, match="--rtt: the topology has no server that drafts"):
        await measure(forgetful, tmp_path, servers={"big": forgetful.target}, routes=routes, rtt=(10.0,))


async def test_a_target_that_fails_within_a_measurement(forgetful: Pair, tmp_path: Path) -> None:
    error = {"error": {"code": 500, "message": "out of memory", "type": "server_error"}}
    forgetful.target.replies[CHAT] = respond_with(error, 500)
    with pytest.raises(SetupError, match="answered 500: out of memory"):
        await measure(forgetful, tmp_path)


def refuse(target: FakeServer, *prompts: Prompt) -> None:
    """Have it answer these prompts with an error."""
    error = {"error": {"code": 500, "message": "cannot parse that", "type": "server_error"}}
    texts = {prompt.text for prompt in prompts}

    async def reply(exchange: Exchange) -> None:
        told = exchange.request.json["messages"][0]["content"]
        await (respond_with(error, 500) if told in texts else target.unscripted(exchange))(exchange)

    target.replies[CHAT] = reply


async def test_answers_that_are_missing(forgetful: Pair, tmp_path: Path) -> None:
    """They are told, with the reason, and the others are measured."""
    refused = [PROMPTS[0], PROMPTS[1], PROMPTS[3], PROMPTS[4]]
    refuse(forgetful.target, *refused)
    results = await measure(forgetful, tmp_path)
    [series] = results.series
    assert [pair.question.drafted for pair in series.pairs] == [PROMPTS[2], PROMPTS[5]]
    assert [missing.question.drafted for missing in series.missing] == refused
    reasons = {missing.reason for missing in series.missing}
    assert all(reason.endswith("answered 500: cannot parse that") for reason in reasons)
    found = as_json(results)
    assert [missing["prompt"] for missing in found["series"][0]["missing"]] == [prompt.text for prompt in refused]
    notes = [note for note in found["notes"] if "left out, for want of an answer" in note]
    assert {note.rpartition("answer: ")[2].removesuffix(".") for note in notes} == reasons


async def test_what_is_asked_together_is_missed_together(forgetful: Pair, tmp_path: Path) -> None:
    refuse(forgetful.target, PROMPTS[2])
    results = await measure(forgetful, tmp_path, concurrency=(2,))
    [series] = results.series
    assert [pair.question.drafted for pair in series.pairs] == [*PROMPTS[:2], *PROMPTS[4:]]
    assert [missing.question.drafted for missing in series.missing] == PROMPTS[2:4]


async def test_the_first_answer_is_missing(forgetful: Pair, tmp_path: Path) -> None:
    """The next one is the first, then: nothing was learned yet."""
    refuse(forgetful.target, WARM_UP[0])
    [series] = (await measure(forgetful, tmp_path)).series
    assert [pair.is_first for pair in series.all_pairs] == [True, *[False] * 5]


async def test_three_failures_are_the_end(forgetful: Pair, tmp_path: Path) -> None:
    refuse(forgetful.target, *PROMPTS[1:4])
    seen = Watcher()
    with pytest.raises(SetupError, match="answered 500: cannot parse that"):
        await measure(forgetful, tmp_path, watcher=seen)
    assert seen.seen[-4:] == [PROMPTS[0].text, *(f"left out: {prompt.text}" for prompt in PROMPTS[1:4])]


async def test_a_target_that_is_gone_for_a_moment(forgetful: Pair, tmp_path: Path) -> None:
    """It is waited for, and the answer that was lost is missing."""
    target = forgetful.target

    async def come_back() -> None:
        await anyio.sleep(0.5)
        await target.start()

    async with anyio.create_task_group() as tasks:

        async def reply(exchange: Exchange) -> None:
            if exchange.request.json["messages"][0]["content"] == PROMPTS[2].text and not gone.is_set():
                gone.set()
                tasks.start_soon(come_back)
                target.stop()
            await target.unscripted(exchange)(exchange)

        gone = anyio.Event()
        target.replies[CHAT] = reply
        [series] = (await measure(forgetful, tmp_path)).series
    assert [missing.question.drafted for missing in series.missing] == [PROMPTS[2]]
    assert [pair.question.drafted for pair in series.pairs] == [*PROMPTS[:2], *PROMPTS[3:]]


async def test_no_answer_at_all(forgetful: Pair, tmp_path: Path) -> None:
    """Also where there are fewer questions than may fail one after another."""
    error = {"error": {"code": 500, "message": "out of memory", "type": "server_error"}}
    forgetful.target.replies[CHAT] = respond_with(error, 500)
    with pytest.raises(SetupError, match="answered 500: out of memory"):
        await measure(forgetful, tmp_path, prompts=PROMPTS[:1])


# -- forgetting and relays ---------------------------------------------------------------------------------


@pytest.fixture
async def direct(pair: Pair) -> AsyncIterator[LlamaServer]:
    """The target, asked directly."""
    server = LlamaServer(ServerConfig("big", pair.target.url))
    await server.probe()
    yield server
    await server.aclose()


@pytest.mark.parametrize(("n_match", "n_min"), [(1, 1), (3, 2), (8, 1), (24, 4)])
async def test_forgetting(pair: Pair, direct: LlamaServer, n_match: int, n_min: int) -> None:
    pair.target.step_seconds = 0
    forgetting = pair.target.pool = ForgettingPool(n_match=n_match, n_min=n_min)
    pool = await find_pool(direct)
    assert pool is not None
    before = forgetting.wiped
    assert await forget(direct, pool)
    assert forgetting.wiped > before
    pair.target.pool = NgramPool(n_match=n_match, n_min=n_min)
    assert not await forget(direct, pool)


async def echo(stream: anyio.abc.SocketStream) -> None:
    async with stream:
        async for data in stream:
            await stream.send(data)


async def test_bytes_come_later_and_in_order() -> None:
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(anyio.abc.SocketAttribute.local_port)
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, echo)
        async with relay(f"http://127.0.0.1:{port}/below", 0.05) as url:
            assert url.endswith("/below")
            started = time.monotonic()
            async with await anyio.connect_tcp("127.0.0.1", int(url.rsplit(":", 1)[1].split("/")[0])) as stream:
                sent = b"".join(b"%d," % number for number in range(20_000))
                for start in range(0, len(sent), 10_000):
                    await stream.send(sent[start : start + 10_000])
                await stream.send_eof()
                received = b"".join([data async for data in stream])
            assert received == sent
            # A round trip to connect, one for the question and its answer.
            assert time.monotonic() - started >= 0.1
        tasks.cancel_scope.cancel()


async def test_a_relay_to_nobody(fake: StartFake) -> None:
    server = await fake()
    async with relay(server.url, 0.01) as url, httpx.AsyncClient(trust_env=False) as client:
        assert (await client.get(f"{url}/health")).json() == {"status": "ok"}
        server.stop()
        with pytest.raises(httpx.TransportError):
            await client.get(f"{url}/health")
    far = LlamaServer(ServerConfig("far", url))
    with pytest.raises(UpstreamError):
        await far.call("GET", "/health", timeout=5)
    await far.aclose()


async def test_https_is_not_relayed() -> None:
    with pytest.raises(SetupError, match="only http servers, not https://big"):
        async with relay("https://big:8080", 0.01):
            pass
