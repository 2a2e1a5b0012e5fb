"""What is measured on servers, and what `specrouter check --measure` makes of it."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from http_support import ANSWER, StartFake

from specrouter import terminal
from specrouter.checking import PairReport, examine
from specrouter.cli import main
from specrouter.config import ServerConfig, load_topology
from specrouter.errors import UpstreamUnavailable
from specrouter.formats import Format
from specrouter.interfaces import Drafter, Generation
from specrouter.measuring import measure_round_trip, measure_target, seconds_per_token
from specrouter.measuring_drafts import answers_of, measure_drafts
from specrouter.simulator import Drafted
from specrouter.testing import FakeServer, NgramPool, ToyModel, ToyVocabulary, respond_with
from specrouter.types import DraftToken
from specrouter.upstream import LlamaServer

pytestmark = pytest.mark.anyio

TOKENS = 18
"""Tokens of the answer."""


@asynccontextmanager
async def known(fake: FakeServer, name: str = "big") -> AsyncIterator[LlamaServer]:
    """A fake as the router sees it."""
    server = LlamaServer(ServerConfig(name, fake.url))
    await server.probe()
    try:
        yield server
    finally:
        await server.aclose()


# -- the target --------------------------------------------------------------------------------------------


async def test_a_target(fake: StartFake) -> None:
    doing: list[str] = []
    async with known(await fake()) as server:
        speed = await measure_target(server, doing.append)
    # A fake takes a millisecond for every token, and says so.
    assert speed.plain_step == pytest.approx(0.001)
    assert speed.batches == pytest.approx({2: 2, 4: 4, 8: 8, 16: 16, 32: 32})
    assert speed.round_trip > 0
    assert doing == [f"what a token alone and what batches cost big ({turn} of 3)" for turn in (1, 2, 3)]


async def test_a_target_that_keeps_no_prompts(fake: StartFake) -> None:
    target = await fake()
    target.forgetful = True
    async with known(target) as server:
        assert (await measure_target(server)).batches == {}


async def test_a_target_that_fails_on_some_random_text(fake: StartFake) -> None:
    """Each question that it says something to is asked again."""
    target, asked = await fake(), 0
    error = {"error": {"code": 500, "message": "ends within a character", "type": "server_error"}}

    async def fickle(exchange: Any) -> None:
        nonlocal asked
        says_something = exchange.request.json["n_predict"] > 0
        asked += says_something
        fails = says_something and asked % 2
        await (respond_with(error, 500) if fails else target.unscripted(exchange))(exchange)

    target.replies["/completion"] = fickle
    async with known(target) as server:
        assert (await measure_target(server)).plain_step == pytest.approx(0.001)
    assert asked == 6, "three questions, each twice"


async def test_a_target_without_timings(fake: StartFake) -> None:
    target = await fake()
    event = {"content": "", "tokens": [], "stop": True}

    async def silent(exchange: Any) -> None:
        await exchange.start_stream()
        await exchange.send_event(event)
        await exchange.end_stream()

    target.replies["/completion"] = silent
    async with known(target) as server:
        with pytest.raises(UpstreamUnavailable, match="'big' does not say how long it takes for a token"):
            await measure_target(server)


async def test_a_round_trip_is_that_of_a_small_question(fake: StartFake) -> None:
    target = await fake()
    async with known(target) as server:
        asked = len(target.received("/health"))
        assert 0 < await measure_round_trip(server) < 10
    assert len(target.received("/health")) > asked


@pytest.mark.parametrize(
    ("timings", "seconds"),
    [
        ({"predicted_n": 11, "predicted_ms": 500}, 0.05),
        ({"predicted_n": 11, "predicted_ms": 500, "draft_n_accepted": 5}, 0.1),
        ({"predicted_n": 1, "predicted_ms": 500}, None),
        ({"predicted_n": 11, "predicted_ms": 0}, None),
        ({"predicted_n": 11, "predicted_ms": float("inf")}, None),
        ({"predicted_n": float("inf"), "predicted_ms": 500}, None),
        ({"predicted_n": 10**400, "predicted_ms": 500}, None),
        ({"predicted_n": "many", "predicted_ms": 500}, None),
        ({}, None),
        ([], None),
        (None, None),
    ],
)
def test_seconds_per_token(timings: object, seconds: float | None) -> None:
    """Nonsense is no speed, and breaks nothing."""
    assert seconds_per_token({"timings": timings}) == seconds


# -- drafts ------------------------------------------------------------------------------------------------


class Scripted(Drafter):
    """Drafts what a model says, as often as it is asked; `drafts` are the contexts behind the prompt."""

    def __init__(self, model: ToyModel, prompt: Sequence[int], drafts: list[Sequence[int]]) -> None:
        self._model = model
        self._prompt = prompt
        self._drafts = drafts

    async def draft(self, context: Sequence[int], max_tokens: int) -> AsyncGenerator[DraftToken]:
        self._drafts.append(context[len(self._prompt) :])
        said = list(context)
        for _ in range(max_tokens):
            token = self._model.next_token(said)
            if token is None:
                return
            said.append(token)
            yield DraftToken(token, b"", 0.75)


def scripted(
    model: ToyModel, drafts: list[Sequence[int]], generation: Generation, form: Format, body: Mapping[str, Any]
) -> Drafter:
    return Scripted(model, generation.prompt, drafts)


async def test_drafts_that_are_right(fake: StartFake) -> None:
    drafts: list[Sequence[int]] = []
    async with known(await fake()) as server:
        found = await measure_drafts(server, await answers_of(server), partial(scripted, ToyModel(ANSWER), drafts))
    assert found.trace == [Drafted(0.75, accepted=True)] * (3 * TOKENS)
    assert found.acceptance == 1
    # A draft goes on while it is right: one of 16 tokens and one of the rest for each prompt.
    assert [len(context) for context in drafts] == [0, 16] * 3
    assert found.token is not None
    assert found.first is not None


async def test_a_draft_ends_at_its_first_wrong_token(fake: StartFake) -> None:
    drafts: list[Sequence[int]] = []
    async with known(await fake()) as server:
        found = await measure_drafts(
            server, await answers_of(server), partial(scripted, ToyModel(ANSWER, mistakes=(3, 4, 10)), drafts)
        )
    wrong = [position for position, token in enumerate(found.trace[:TOKENS]) if not token.accepted]
    assert wrong == [3, 4, 10]
    # And the next one begins behind what the target says there.
    assert [len(context) for context in drafts[:4]] == [0, 4, 5, 11]
    assert drafts[1] == ToyModel(ANSWER).tokens[:4]
    assert found.acceptance == pytest.approx(15 / 18)


async def test_a_drafter_with_nothing_to_say(fake: StartFake) -> None:
    async with known(await fake()) as server:
        found = await measure_drafts(server, await answers_of(server), partial(scripted, ToyModel(""), []))
    assert found.trace == [Drafted(None, accepted=False)] * (3 * TOKENS)
    assert (found.token, found.first, found.acceptance) == (None, None, 0)
    assert found.silent == 3 * TOKENS


async def test_nothing_is_drafted(fake: StartFake) -> None:
    async with known(await fake()) as server:
        found = await measure_drafts(server, await answers_of(server), lambda generation, form, body: None)
    assert found.trace == []
    assert found.acceptance == 0


async def test_characters_of_several_tokens(fake: StartFake) -> None:
    says = " bako 漢字 end."
    async with known(await fake(says)) as server:
        found = await measure_drafts(server, await answers_of(server), partial(scripted, ToyModel(says), []))
    assert found.trace == [Drafted(0.75, accepted=True)] * (3 * len(ToyModel(says).tokens))


class Failing(Drafter):
    """Its draft server is gone."""

    def __init__(self, closed: list[bool]) -> None:
        self._closed = closed

    def draft(self, context: Sequence[int], max_tokens: int) -> AsyncGenerator[DraftToken]:
        raise UpstreamUnavailable("gone", server="laptop")

    async def aclose(self) -> None:
        self._closed.append(True)


async def test_drafters_are_closed_whatever_happens(fake: StartFake) -> None:
    closed: list[bool] = []
    async with known(await fake()) as server:
        with pytest.raises(UpstreamUnavailable, match="gone"):
            await measure_drafts(server, await answers_of(server), lambda generation, form, body: Failing(closed))
    assert closed == [True]


# -- specrouter check --measure ----------------------------------------------------------------------------


REMOTE = {"use": "remote", "options": {"server": "laptop"}}


def topology(folder: Path, servers: Mapping[str, FakeServer], **routes: Any) -> Path:
    file = folder / "topology.yaml"
    urls = {name: {"url": server.url} for name, server in servers.items()}
    routes = routes or {"fast": {"target": "big", "draft": REMOTE}}
    file.write_text(json.dumps({"version": 1, "servers": urls, "routes": routes}), encoding="utf-8")
    return file


async def measured_pair(file: Path, doing: list[str] | None = None) -> PairReport:
    report = await examine(load_topology(file), [].append if doing is None else doing.append, measure=True)
    return report.routes[0].pairs[0]


async def test_a_pair_is_measured(fake: StartFake, tmp_path: Path) -> None:
    servers = {"big": await fake(pool=NgramPool()), "laptop": await fake(ToyModel(ANSWER, mistakes=(3,)))}
    doing: list[str] = []
    found = (await measured_pair(topology(tmp_path, servers), doing)).measured
    assert found is not None
    assert found.drafts.acceptance == pytest.approx(17 / 18)
    assert found.target.batches[8] == 8
    ratios = {one.strategy: one.ratio for one in found.predicted}
    assert list(ratios) == ["none", "inject", "fanout", "llama-server's own"]
    assert ratios["none"] == 1
    assert all(ratio is not None and 0 < ratio < 20 for ratio in ratios.values())
    assert (
        "a batch of 8 costs the target 8.0 plain steps: with inject, which evaluates every draft token twice, "
        "no drafts of this drafter pay"
    ) in found.bounds
    assert "the target said 51 of 54 draft tokens (94%)" in found.bounds
    assert doing[:2] == [
        "trying out the route fast on big",
        "measuring what a token alone and what batches cost big (1 of 3)",
    ]
    assert "measuring what stepwise verification costs big" in doing


async def test_a_target_is_measured_once(fake: StartFake, tmp_path: Path) -> None:
    servers = {"big": await fake(pool=NgramPool()), "laptop": await fake()}
    doing: list[str] = []
    routes = {name: {"target": "big", "draft": REMOTE} for name in ("one", "two")}
    report = await examine(load_topology(topology(tmp_path, servers, **routes)), doing.append, measure=True)
    assert all(route.pairs[0].measured is not None for route in report.routes)
    assert sum("what batches cost big" in line for line in doing) == 3
    assert doing.count("measuring what stepwise verification costs big") == 1
    assert doing.count("measuring what big says (chat)") == 1
    assert doing.count("measuring drafts for what big says (chat)") == 2


async def test_a_target_that_cannot_go_back(fake: StartFake, tmp_path: Path) -> None:
    target = await fake()
    target.forgetful = True
    found = (await measured_pair(topology(tmp_path, {"big": target, "laptop": await fake()}))).measured
    assert found is not None
    assert [one.strategy for one in found.predicted if one.ratio is None] == ["inject"]
    assert found.predicted[-1].note == "the target's batches could not be measured"


async def test_a_draft_server_that_is_down(fake: StartFake, tmp_path: Path) -> None:
    drafter = await fake()
    file = topology(tmp_path, {"big": await fake(), "laptop": drafter})
    drafter.stop()
    pair = await measured_pair(file)
    assert pair.measured is None
    assert pair.unmeasured == "server laptop is down"


async def test_a_target_that_fails_meanwhile(fake: StartFake, tmp_path: Path) -> None:
    target = await fake()
    target.replies["/apply-template"] = respond_with({"error": {"message": "no template", "code": 500}}, 500)
    pair = await measured_pair(topology(tmp_path, {"big": target, "laptop": await fake()}))
    assert pair.measured is None
    assert pair.unmeasured == "server 'big' answered 500: no template"


async def test_other_vocabularies_are_not_measured(fake: StartFake, tmp_path: Path) -> None:
    other = ToyModel(ANSWER, vocabulary=ToyVocabulary(reverse=True))
    pair = await measured_pair(topology(tmp_path, {"big": await fake(pool=NgramPool()), "laptop": await fake(other)}))
    assert pair.unmeasured == "the tokenizers differ"


async def test_drafts_without_a_draft_server(fake: StartFake, tmp_path: Path) -> None:
    routes = {"fast": {"target": "big", "draft": "prompt_lookup"}}
    found = (await measured_pair(topology(tmp_path, {"big": await fake(pool=NgramPool())}, **routes))).measured
    assert found is not None
    assert "llama-server's own" not in [one.strategy for one in found.predicted]


async def test_what_it_prints(fake: StartFake, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    servers = {"big": await fake(pool=NgramPool()), "laptop": await fake()}
    with terminal.telling() as doing:
        report = await examine(load_topology(topology(tmp_path, servers)), doing, measure=True)
    terminal.print_report(report)
    said, progress = capsys.readouterr()
    assert "measuring what a token alone and what batches cost big (1 of 3)\n" in progress
    assert "    measured: 1000.0 tokens/s alone; plain steps for a batch of 2: 2.0, 4: 4.0, 8: 8.0" in said
    assert "    predicted: inject x" in said
    assert "    bound: the target said 54 of 54 draft tokens (100%)\n" in said
    assert said.endswith("\nThe speeds are predictions from a few dozen tokens. `specrouter bench` measures them.\n")
    found = json.loads(terminal.report_json(report))["routes"][0]["pairs"][0]["measured"]
    assert found["drafts"]["trace"][0]["accepted"] is True
    assert found["predicted"][0] == {"strategy": "none", "ratio": 1.0, "note": None}


def test_offline_measures_nothing(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["check", str(tmp_path / "none.yaml"), "--offline", "--measure"])
    assert result.exit_code == 2
    assert "--measure asks the servers, --offline does not" in result.output
