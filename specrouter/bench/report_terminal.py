"""A measurement on a terminal: a line for each pair of answers while it runs, tables at the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from specrouter.request_log import visible

from .figures import FEWEST_PAIRS, NEAR_TIE, Answer, Missing, Pair, Row, Series, Spread, rows
from .notes import notes, title
from .prompts import Question
from .runner import Results

_NARROW = 150
"""Columns for whoever reads the output from a file."""

_PROMPT = 34


def console_for_figures() -> Console:
    """The terminal, or something wide enough for the tables where there is none."""
    console = Console()
    return console if console.is_terminal else Console(width=max(console.width, _NARROW))


class TerminalWatcher:
    """Shows what is being done, and each pair of answers."""

    def __init__(self, console: Console) -> None:
        self._console = console
        columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
        self._progress = Progress(*columns, TimeRemainingColumn(), console=console, transient=True)
        self._task = self._progress.add_task("", total=None)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def doing(self, what: str) -> None:
        """What takes a while now."""
        self._progress.reset(self._task, total=None, description=what)
        if not self._console.is_terminal:
            self._print(what)

    def begins(self, series: Series, pairs: int) -> None:
        """A route is measured from now on, with that many pairs of answers."""
        self._progress.reset(self._task, total=pairs, description=title(series))
        self._print(title(series), "bold")

    def answered(self, pair: Pair) -> None:
        """A line with both answers."""
        self._progress.advance(self._task)
        self._print(f"  {pair_line(pair)}", "dim" if pair.is_first else "")

    def missed(self, missing: Missing) -> None:
        """A line with the reason."""
        self._progress.advance(self._task)
        self._print(f"  {_question(missing.question)}  left out: {visible(missing.reason)}", "yellow")

    def _print(self, line: str, style: str = "") -> None:
        # Text: a prompt may hold what looks like markup.
        self._console.print(Text(line, style=style), soft_wrap=True)


def pair_line(pair: Pair) -> str:
    """A pair of answers in one line."""
    ratio = "  -  " if pair.ratio is None else f"x{pair.ratio:.2f}"
    drafted = pair.drafted
    parts = [
        _question(pair.question),
        f"{_speed(pair.plain)} → {_speed(drafted)} tok/s",
        ratio,
        f"first {pair.plain.first:.2f} → {drafted.first:.2f} s",
        f"accepted {drafted.accepted} of {drafted.drafted}",
        *(["first answer"] if pair.is_first else []),
        *_verdict(pair),
    ]
    return "  ".join(parts)


def _question(question: Question) -> str:
    prompt = " ".join(visible(" ".join(question.drafted.text.split())).split())
    shown = prompt if len(prompt) <= _PROMPT else f"{prompt[: _PROMPT - 1]}…"
    return f"{question.drafted.kind:12} {shown:{_PROMPT}}"


def _speed(answer: Answer) -> str:
    return "    -" if answer.speed is None else f"{answer.speed:5.1f}"


def _verdict(pair: Pair) -> list[str]:
    said = []
    if pair.is_equal:
        said.append("equal")
    elif pair.difference is not None:
        said.append(f"{'near tie' if pair.difference < NEAR_TIE else 'OTHER TEXT'}, {pair.difference:.3f} nats")
    if pair.audit is not None:
        said.append(f"{'audited' if pair.audit.is_exact else 'AUDITED'}, worst {pair.audit.worst:.3f} nats")
    return said


# -- tables ------------------------------------------------------------------------------------------------


def report(results: Results, console: Console) -> None:
    """Tables of all series, and what to know about them."""
    for series in results.series:
        _print_series(series, console)
    for series in best_first(results.native):
        _print_series(series, console)
    console.print()
    for note in notes(results):
        console.print(Text(f"• {note}"), soft_wrap=True)


def best_first(native: Sequence[Series]) -> list[Series]:
    """llama-server's own drafting: the length that did best is its reference."""

    def speed(series: Series) -> float:
        found = rows(series.pairs)[-1][1].ratio if series.pairs else None
        return found.median if found is not None else 0.0

    return sorted(native, key=speed, reverse=True)


def _print_series(series: Series, console: Console) -> None:
    if not series.pairs:
        return
    table = Table(title=Text(f"{title(series)}: median (range)"), title_justify="left")
    headings, *lines = figures_table(series)
    for heading in headings:
        table.add_column(heading, justify="left" if heading == headings[0] else "right")
    for line in lines:
        table.add_row(*(Text(cell) for cell in line), style="bold" if line is lines[-1] else "")
    console.print()
    console.print(table)
    together = series.together()
    if series.concurrency > 1 and together is not None:
        plain, drafted = together
        console.print(f"All answers together: {plain:.1f} → {drafted:.1f} tok/s, x{drafted / plain:.2f}")


def figures_table(series: Series) -> list[list[str]]:
    """The figures of a series as text: headings, then a line for each kind. A range is below its median."""
    found = rows(series.pairs)
    columns = [["kind", *(kind for kind, _ in found)]]
    columns += [[heading, *(cell(row) for _, row in found)] for heading, cell in _COLUMNS]
    # What nobody measured has no column.
    shown = [column for column in columns if any(cell != "-" for cell in column[1:])]
    return [list(line) for line in zip(*shown, strict=True)]


def _spread(found: Spread | None, digits: int) -> str:
    if found is None:
        return "-"
    if found.n == 1:
        return f"{found.median:.{digits}f}"
    return f"{found.median:.{digits}f}\n{found.low:.{digits}f} to {found.high:.{digits}f}"


def _ratio(row: Row) -> str:
    if row.ratio is None:
        return "-"
    few = f"\nof {row.ratio.n} only" if row.ratio.n < FEWEST_PAIRS else ""
    return f"x{_spread(row.ratio, 2)}{few}"


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _equal(row: Row) -> str:
    if not row.compared:
        return "-"
    ties = f"\n{row.ties} near {'tie' if row.ties == 1 else 'ties'}" if row.ties else ""
    return f"{row.equal} of {row.compared}{ties}"


def _evaluated(row: Row) -> str:
    return "-" if row.primed is None or row.verified is None else f"{row.primed:.2f} + {row.verified:.2f}"


_COLUMNS: tuple[tuple[str, Callable[[Row], str]], ...] = (
    ("pairs", lambda row: str(row.pairs)),
    ("ratio", _ratio),
    ("alone, tok/s", lambda row: _spread(row.plain, 1)),
    ("with drafts, tok/s", lambda row: _spread(row.drafted, 1)),
    ("first token alone, s", lambda row: _spread(row.first_plain, 2)),
    ("with drafts, s", lambda row: _spread(row.first_drafted, 2)),
    ("accepted", lambda row: _number(row.acceptance, ".0%")),
    ("tokens per step", lambda row: _number(row.per_step, ".2f")),
    ("primed + verified per token", _evaluated),
    ("equal texts", _equal),
    ("worst gap, nats", lambda row: _number(row.worst, ".3f")),
)
"""Headings, and what stands below them."""
