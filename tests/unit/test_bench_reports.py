"""What a measurement looks like: on a terminal, as JSON, as a page."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from io import StringIO
from xml.etree import ElementTree as ET

import pytest
from bench_support import answer, pair, results, series
from rich.console import Console

from specrouter.bench.figures import Audit, Missing, Pair
from specrouter.bench.notes import notes, title
from specrouter.bench.prompts import Prompt
from specrouter.bench.report_html import page
from specrouter.bench.report_json import as_json
from specrouter.bench.report_terminal import TerminalWatcher, best_first, figures_table, pair_line, report
from specrouter.bench.runner import Results

NASTY = Prompt("code", "[b]\x1b[2J</svg><script>alert(1)</script> & more")


def measurement() -> Results:
    """A bit of everything."""
    pairs = [pair(is_first=True), pair(), pair(drafted=answer(), plain=answer()), pair(difference=0.01)]
    nasty = pair(
        prompt=NASTY, drafted=answer((1, *(3,) * 6), ended_early="server 'laptop' <died>"), audit=Audit(9, (0.5,))
    )
    short = pair(plain=answer((1,)), drafted=answer((1,), decoding="plain; reason=nothing to draft"))
    native = [series(pair(drafted=answer(step=step)), route=f"native {step}") for step in (0.1, 0.05)]
    return results(series(*pairs, nasty, short, concurrency=2, rtt=0.01, rtt_target=0.002), native=native)


def shown(found: Results, width: int = 200) -> str:
    """The terminal report."""
    console = Console(file=StringIO(), width=width)
    report(found, console)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def test_a_series_has_a_name() -> None:
    assert title(series()) == "chat on big"
    [one] = measurement().series
    assert title(one) == "chat on big, 2 at once, 10 ms more to the drafter, 2 ms more to the target"


def test_the_table() -> None:
    headings, *lines = figures_table(series(pair(), pair(drafted=answer()), pair()))
    cells = dict(zip(headings, lines[-1], strict=True))
    assert cells["ratio"] == "x1.90\n1.00 to 1.90"
    assert cells["alone, tok/s"] == "10.0\n10.0 to 10.0"
    assert cells["accepted"] == "50%"
    assert cells["primed + verified per token"] == "0.90 + 0.60"
    assert cells["equal texts"] == "1 of 3"
    assert "worst gap, nats" not in cells, "nobody looked"


@pytest.mark.parametrize(("count", "few"), [(1, True), (2, True), (3, False)])
def test_a_ratio_of_few_pairs_says_so(count: int, few: bool) -> None:
    found = series(*[pair()] * count)
    headings, *lines = figures_table(found)
    assert (f"of {count} only" in lines[-1][headings.index("ratio")]) is few
    assert any("nothing to rely on" in note for note in notes(results(found))) is few
    assert ("only" in shown(results(found))) is few


def test_the_terminal_report() -> None:
    text = shown(measurement())
    assert "x1.90" in text
    assert "All answers together" in text
    assert text.index("native 0.05") < text.index("native 0.1"), "the best one first"
    for note in notes(measurement()):
        assert f"• {note}\n" in text


def test_notes_say_what_a_reader_has_to_know() -> None:
    text = "\n".join(notes(measurement()))
    for words in (
        "big: its n-gram pool is emptied before every answer",
        "the first answer, with nothing learned yet, is not in the medians (x1.90)",
        "1 of 5 pairs have an answer under 8 tokens and no ratio",
        "1 of 5 answers were not drafted: nothing to draft",
        "drafting ended early in 1 of 5 answers: server 'laptop' <died>",
        "1 of 5 answers hold a token that the target likes less than another, by up to 0.50 nats",
    ):
        assert words in text
    noisy = series(*(pair(plain=answer(step=step)) for step in (0.1, 0.1, 0.2)))
    assert "the target alone varied from 5.0 to 10.0 tokens/s" in "\n".join(notes(results(noisy)))


def test_quiet_measurements_have_few_notes() -> None:
    plain = answer()
    assert len(notes(results(series(*[pair(plain, plain)] * 3)))) == 1


def test_lines_of_pairs() -> None:
    line = pair_line(pair(prompt=NASTY, difference=0.01, audit=Audit(3, ())))
    assert "\x1b" not in line
    assert "10.0 →  19.0 tok/s  x1.90  first 0.50 → 0.50 s  accepted 9 of 18  near tie, 0.010 nats" in line
    assert line.endswith("audited, worst 0.000 nats")
    assert pair_line(pair(difference=0.2)).endswith("OTHER TEXT, 0.200 nats")
    assert pair_line(pair(audit=Audit(3, (0.2,)))).endswith("AUDITED, worst 0.200 nats")
    same = answer()
    assert pair_line(pair(same, same, is_first=True)).endswith("first answer  equal")


def test_watching() -> None:
    console = Console(file=StringIO(), width=200)
    with TerminalWatcher(console) as watcher:
        watcher.doing("Trying out big")
        watcher.begins(series(), 1)
        watcher.answered(pair(prompt=NASTY))
        watcher.missed(Missing(pair(prompt=NASTY).question, "the server said [b]\x1b[2J"))
    assert isinstance(console.file, StringIO)
    text = console.file.getvalue()
    assert "Trying out big\nchat on big\n" in text
    assert text.count("[b]") == 3, "not taken for markup"
    assert "left out: the server said [b]" in text
    assert "\x1b" not in text


def test_the_best_native_length_comes_first() -> None:
    found = best_first([series(), *measurement().native])
    assert [one.route for one in found] == ["native 0.05", "native 0.1", "chat"]


def test_json() -> None:
    found = json.loads(json.dumps(as_json(measurement())))
    assert found["format"] == 1
    assert found["methods"]["big"].startswith("its n-gram pool is emptied")
    [one] = found["series"]
    assert one["figures"]["all"]["ratio"]["n"] == 4
    assert one["together"]["drafted"] > 0
    assert [entry["is_first"] for entry in one["pairs"]] == [True, *[False] * 5]
    drafted = one["pairs"][1]["drafted"]
    assert drafted["steps"] == [1, *[2] * 9, 1]
    assert len(drafted["arrivals"]) == 20
    assert drafted["prompt"] == "Why is the <sky> blue & not green?"


# -- the page ----------------------------------------------------------------------------------------------


class Elements(HTMLParser):
    """The elements of a page that are open at its end, all tags, and what would be fetched."""

    VOID = frozenset({"meta", "br", "line", "rect", "circle"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.fetched: list[tuple[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.fetched += [entry for entry in attrs if entry[0] in ("src", "href", "srcset", "xlink:href", "data")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_stands_alone() -> None:
    text = page(measurement())
    found = Elements()
    found.feed(text)
    found.close()
    assert found.open == []
    assert found.fetched == []
    assert "script" not in found.tags
    assert not re.search(r"url\(|@import|https?:", text)
    assert "prefers-color-scheme: dark" in text


def test_nothing_in_a_prompt_or_answer_is_taken_for_html() -> None:
    text = page(measurement())
    assert "<script" not in text
    assert "<sky>" not in text
    assert "&lt;sky&gt;" in text
    assert "&lt;died&gt;" in text


def test_plots_are_well_formed() -> None:
    text = page(measurement())
    plots = [ET.fromstring(found) for found in re.findall(r"<svg.*?</svg>", text, re.DOTALL)]
    # Speeds, positions and a timeline of the route; of the two native ones, which accepted nothing, no positions.
    assert len(plots) == 3 + 2 * 2
    speeds = plots[0]
    assert len(speeds.findall(".//circle")) == 2 * 4, "a pair of dots for each pair with a ratio"
    assert all(plot.get("aria-label") for plot in plots)


def test_accepted_tokens_are_marked() -> None:
    typical: Pair = pair()
    text = page(results(series(typical)))
    assert len(re.findall("<mark>", text)) == typical.drafted.accepted
    timeline = ET.fromstring(re.findall(r"<svg.*?</svg>", text, re.DOTALL)[-1])
    kinds = [square.get("class") for square in timeline.findall(".//rect")]
    assert kinds.count("accepted") == typical.drafted.accepted
    assert kinds.count("own") == 20 + 20 - typical.drafted.accepted


def test_a_page_of_nothing() -> None:
    found = Elements()
    found.feed(page(results(series(), series(pair(plain=answer((1,)), drafted=answer((1,)))))))
    assert found.open == []
