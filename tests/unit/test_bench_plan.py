"""Which routes are measured, and what a mistake is answered with: one line."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from bench_support import pair, series
from click.testing import CliRunner

from specrouter.bench.plan import (
    BenchOptions,
    Condition,
    answering_servers,
    bench_topology,
    conditions,
    measured_routes,
)
from specrouter.bench.prompts import Prompt
from specrouter.bench.runner import Bench
from specrouter.cli import main
from specrouter.config import Listen, load_topology
from specrouter.demo.processes import free_port
from specrouter.errors import SetupError

REMOTE = {"use": "remote", "options": {"server": "laptop"}}
TOPOLOGY = {
    "version": 1,
    "listen": {"api_keys": ["secret"]},
    "servers": {name: {"url": f"http://{name}:8080"} for name in ("big", "spare", "laptop", "other")},
    "routes": {
        "chat": {"target": ["big", "spare"], "aliases": ["default"], "draft": REMOTE, "limits": {"concurrent": 1}},
        "lookup": {"target": "big", "draft": "prompt_lookup"},
        "bare": {"target": "other"},
        "itself": {"target": "big", "draft": {"use": "rpc", "options": {"server": "laptop"}}},
    },
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A topology with two routes that draft and one that does not."""
    file = tmp_path / "topology.yaml"
    file.write_text(json.dumps(TOPOLOGY))
    return file


def plan(file: Path, **given: Any) -> list[tuple[str, str, str]]:
    """The names of routes and of the plain ones beside them, and the drafting strategies."""
    found = measured_routes(load_topology(file), BenchOptions(prompts=[Prompt("own", "x")], **given))
    return [(one.route.name, one.route.draft.name, one.plain.targets[0]) for one in found]


def test_all_routes_that_draft(file: Path) -> None:
    assert plan(file) == [("chat", "remote", "big"), ("lookup", "prompt_lookup", "big"), ("itself", "rpc", "big")]


def test_named_routes_and_aliases(file: Path) -> None:
    assert plan(file, routes=["default"]) == [("chat", "remote", "big")]


def test_strategies_are_compared(file: Path) -> None:
    found = plan(file, routes=["bare"], drafts=["none", "remote", "prompt_lookup"])
    assert found == [(f"bare+{name}", name, "other") for name in ("none", "remote", "prompt_lookup")]
    assert [name for name, *_ in plan(file, drafts=["none"])] == ["chat+none", "lookup+none", "itself+none"]
    [measured] = measured_routes(load_topology(file), BenchOptions(prompts=[], routes=["bare"], drafts=["remote"]))
    assert measured.route.draft.options == {"server": "laptop"}, "as another route has it"


def test_another_route_as_the_plain_one(file: Path) -> None:
    assert plan(file, routes=["chat"], against="bare") == [("chat", "remote", "other")]


def test_who_may_answer(file: Path) -> None:
    loaded = load_topology(file)
    measured = measured_routes(loaded, BenchOptions(prompts=[], routes=["chat"], against="bare"))
    assert answering_servers(loaded, measured) == {"big", "spare", "other"}, "and laptop only drafts"
    measured = measured_routes(loaded, BenchOptions(prompts=[], routes=["itself"]))
    assert answering_servers(loaded, measured) == {"big", "laptop"}, "one that drafts by itself answers too"


def test_the_topology_of_the_measured_router(file: Path) -> None:
    loaded = load_topology(file)
    measured = measured_routes(loaded, BenchOptions(prompts=[], routes=["chat"]))
    topology = bench_topology(loaded, measured, {"laptop": "http://127.0.0.1:1"}).topology
    assert topology.listen == Listen()
    assert topology.servers["laptop"].url == "http://127.0.0.1:1"
    assert topology.servers["big"] == loaded.topology.servers["big"]
    assert list(topology.routes) == ["chat", "chat without drafts"]
    assert all(route.limits.concurrent is None and not route.aliases for route in topology.routes.values())


def test_conditions() -> None:
    options = BenchOptions(prompts=[], concurrency=(1, 4), rtt=(0.0, 10.0), rtt_target=2.0)
    assert conditions(options) == [Condition(concurrency, rtt, 0.002) for concurrency in (1, 4) for rtt in (0.0, 0.01)]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"routes": ["nope"]}, "has no route 'nope'; there are chat, lookup, bare, itself"),
        ({"against": "nope"}, "has no route 'nope'"),
        ({"routes": ["bare"]}, "route 'bare' declares no drafts"),
        (
            {"drafts": ["guess"]},
            "--draft guess: no such strategy; there are first_of, none, prompt_lookup, remote, rpc",
        ),
        ({"drafts": ["first_of"]}, "--draft first_of: no route of the topology says its option 'strategies'"),
    ],
)
def test_what_cannot_be_measured(file: Path, given: dict[str, Any], said: str) -> None:
    with pytest.raises(SetupError) as caught:
        plan(file, **given)
    assert said in str(caught.value)


def test_a_topology_without_drafts(file: Path) -> None:
    file.write_text(json.dumps({**TOPOLOGY, "routes": {"bare": {"target": "other"}}}))
    with pytest.raises(SetupError, match=r"no route of .* declares drafts"):
        plan(file)


def run(*arguments: object) -> tuple[int, str]:
    """The exit code and what is said on standard error."""
    result = CliRunner().invoke(main, ["bench", *map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result.exit_code, result.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--rtt", "0,fast"], "'fast' is no number of milliseconds from 0 to 10000"),
        (["--rtt", "-1"], "'-1' is no number of milliseconds"),
        (["--rtt", "nan"], "'nan' is no number of milliseconds"),
        (["--concurrency", "0"], "'0' is no number from 1 to 64"),
        (["--draft", "none,"], "a name is missing between two commas"),
        (["--native-flags", "'-t 1"], "No closing quotation"),
    ],
)
def test_options_that_make_no_sense(file: Path, arguments: list[str], said: str) -> None:
    code, error = run(file, *arguments)
    assert code == 2
    assert said in " ".join(error.split())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nope"], "has no route 'nope'"),
        (["--kind", "nope"], "--kind nope: no prompt is of this kind"),
        (["--prompts", "nope.txt"], "--prompts nope.txt: No such file or directory"),
        (["--json", "nope/report.json"], "cannot write nope/report.json: there is no such folder"),
        (["--html", "."], "cannot write .: it is a folder"),
        (["--native-draft", "nope.gguf"], "--native-draft nope.gguf: there is no such file"),
    ],
)
def test_mistakes_are_answered_in_one_line(file: Path, arguments: list[str], said: str) -> None:
    code, error = run(file, *arguments)
    assert code == 1
    assert said in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("error", "code"),
    [(KeyboardInterrupt(), 130), (asyncio.CancelledError(), 143), (SetupError("the target is gone"), 1)],
)
def test_what_was_measured_is_not_lost(
    file: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int
) -> None:
    async def run(bench: Bench) -> None:
        bench._results.series.append(series(pair()))
        raise error

    monkeypatch.setattr(Bench, "run", run)
    report, page = file.with_name("report.json"), file.with_name("page.html")
    result = CliRunner().invoke(main, ["bench", str(file), "--json", str(report), "--html", str(page)])
    assert result.exit_code == code
    assert "x1.90" in result.stdout
    assert result.stderr.strip() in ("Interrupted.", "the target is gone")
    assert len(json.loads(report.read_text())["series"]) == 1
    assert page.read_text().startswith("<!doctype html>")


def test_a_first_answer_is_not_lost_either(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run(bench: Bench) -> None:
        bench._results.series.append(series(pair(is_first=True)))
        raise SetupError("the target is gone")

    monkeypatch.setattr(Bench, "run", run)
    report = file.with_name("report.json")
    result = CliRunner().invoke(main, ["bench", str(file), "--json", str(report)])
    assert "(x1.90)" in result.stdout
    assert "its ratio is of 0 pairs" in result.stdout
    assert [one["is_first"] for one in json.loads(report.read_text())["series"][0]["pairs"]] == [True]


def test_a_target_that_is_down(file: Path) -> None:
    servers = {name: {"url": f"http://127.0.0.1:{free_port()}"} for name in ("big", "laptop")}
    routes = {"chat": {"target": "big", "draft": REMOTE}}
    file.write_text(json.dumps({"version": 1, "servers": servers, "routes": routes}))
    code, error = run(file)
    assert code == 1
    assert error == "route 'chat' has no target that is up: server 'big': no connection (see `specrouter check`)\n"
