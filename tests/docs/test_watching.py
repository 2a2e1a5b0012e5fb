"""What the pages about metrics and status say is what there is, and what the dashboard asks for."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pages
import pytest
import yaml

from specrouter.config import load_topology
from specrouter.metrics import FAMILIES, PREFIX
from specrouter.reasons import REASONS
from specrouter.routing import Router
from specrouter.running import Status
from specrouter.status import status_of
from specrouter.traffic import Traffic

DASHBOARD = pages.ROOT / "docs" / "grafana" / "specrouter.json"
WATCH_IT = pages.ROOT / "docs" / "how-to" / "watch-it.md"
REFERENCE = pages.ROOT / "docs" / "reference" / "metrics.md"


def exported() -> dict[str, set[str]]:
    """Every name that can be asked for, with its labels."""
    names: dict[str, set[str]] = {}
    for family in FAMILIES:
        suffixes = ("_bucket", "_sum", "_count") if family.kind == "histogram" else ("",)
        for suffix in suffixes:
            names[family.exported + suffix] = {*family.labels, *(["le"] if suffix == "_bucket" else [])}
    return names


def expressions() -> Iterator[tuple[str, str]]:
    """(where, PromQL) of the dashboard and the pages."""
    dashboard = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    for panel in dashboard["panels"]:
        yield from ((panel["title"], target["expr"]) for target in panel["targets"])
    text = WATCH_IT.read_text(encoding="utf-8")
    yield from (("watch-it.md", found) for found in re.findall(r"\| `([^`]*specrouter_[^`]*)` \|", text))
    for block in pages.blocks(WATCH_IT, "yaml"):
        for group in yaml.safe_load(block.text).get("groups", []):
            yield from ((rule["alert"], rule["expr"]) for rule in group["rules"])


EXPRESSIONS = list(expressions())


@pytest.mark.parametrize(("where", "expression"), EXPRESSIONS)
def test_queries_ask_for_what_there_is(where: str, expression: str) -> None:
    names = exported()
    selectors = re.findall(rf"({PREFIX}\w+)(?:\{{(.*?)\}})?", expression)
    # Whether it could be asked, Prometheus says itself.
    assert selectors or expression.startswith("up{")
    known: set[str] = set()
    for name, matchers in selectors:
        assert name in names
        known |= names[name]
        assert set(re.findall(r"(\w+)(?:=|!=|=~|!~)\"", matchers)) <= names[name]
    for grouping in re.findall(r"(?:by|ignoring|on) \((.*?)\)", expression):
        assert set(re.split(r",\s*", grouping)) <= known
    assert expression.count("(") == expression.count(")")


def test_there_are_queries_for_what_matters() -> None:
    assert len(EXPRESSIONS) > 30
    asked = " ".join(expression for _, expression in EXPRESSIONS)
    unused = [family.exported for family in FAMILIES if family.exported not in asked]
    assert unused == [f"{PREFIX}{name}" for name in ("server_requests_running", "server_slots", "build_info")]


def test_dashboard_shows_labels_that_its_queries_keep() -> None:
    for panel in json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]:
        for target in panel["targets"]:
            shown = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            kept = {
                label for found in re.findall(r"by \((.*?)\)", target["expr"]) for label in re.split(r",\s*", found)
            }
            assert shown <= kept, panel["title"]


def test_labels_and_reasons_are_explained() -> None:
    text = REFERENCE.read_text(encoding="utf-8")
    part = text.partition("### Labels")[2].partition("###")[0]
    labels = {label for family in FAMILIES for label in family.labels} - {"version"}
    assert set(re.findall(r"^\| `(\w+)` \|", part, re.MULTILINE)) == labels
    part = text.partition("### Reasons")[2].partition("###")[0]
    assert tuple(re.findall(r"^\| `(\w+)` \|", part, re.MULTILINE)) == REASONS


def test_the_keys_of_the_status_are_explained(tmp_path: Path) -> None:
    file = tmp_path / "topology.yaml"
    topology = {
        "version": 1,
        "servers": {"big": {"url": "http://127.0.0.1:9"}},
        "routes": {"chat": {"target": "big", "draft": "prompt_lookup"}},
    }
    file.write_text(json.dumps(topology), encoding="utf-8")
    status = status_of(Router(load_topology(file)), Traffic(), Status())
    text = REFERENCE.read_text(encoding="utf-8").partition("## Status")[2]
    top, route, server = re.split(r"^A (?:route|server):$", text, flags=re.MULTILINE)
    assert rows(top) == list(status)
    assert rows(route) == list(status["routes"][0])
    assert rows(server) == list(status["servers"][0])
    nested: list[dict[str, Any]] = [status["topology"], status["routes"][0]["draft"], status["routes"][0]["lately"]]
    nested += status["routes"][0]["draft"]["pairs"]
    explained = set(re.findall(r"`(\w+)`", text))
    assert {key for found in nested for key in found} <= explained


def rows(part: str) -> list[str]:
    """The keys in the first column of a table."""
    cells = re.findall(r"^\| (`.+?) \|", part, re.MULTILINE)
    return [key for cell in cells for key in re.findall(r"`(\w+)`", cell)]
