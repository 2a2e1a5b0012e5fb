"""The command line of `specrouter bench`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
import shlex
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from specrouter import terminal
from specrouter.config import LoadedTopology, load_topology
from specrouter.errors import SetupError, SpecrouterError

if TYPE_CHECKING:
    from .plan import Measured
    from .runner import Results

_FILE = click.Path(path_type=Path)

_Callback = Callable[[click.Context, click.Parameter, str | None], tuple[Any, ...]]


def _list_of(read: Callable[[str], Any]) -> _Callback:
    """For values with commas between them, each read by `read`, which raises ValueError."""

    def parse(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[Any, ...]:
        try:
            return () if value is None else tuple(read(part.strip()) for part in value.split(","))
        except ValueError as error:
            raise click.BadParameter(str(error), ctx, param) from error

    return parse


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 64:
        raise ValueError(f"{text!r} is no number from 1 to 64")
    return int(text)


def _milliseconds(text: str) -> float:
    value = float(text) if re.fullmatch(r"[0-9]+(\.[0-9]+)?", text) else -1
    if not 0 <= value <= 10_000:
        raise ValueError(f"{text!r} is no number of milliseconds from 0 to 10000")
    return value


def _name(text: str) -> str:
    if not text:
        raise ValueError("a name is missing between two commas")
    return text


def _flags(ctx: click.Context, param: click.Parameter, value: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(value))
    except ValueError as error:
        raise click.BadParameter(str(error), ctx, param) from error


@click.command()
@click.argument("topology", type=_FILE)
@click.argument("routes", metavar="[ROUTE]...", nargs=-1)
@click.option("--prompts", type=_FILE, metavar="FILE", help="Ask these: a prompt per line, plain or as JSON.")
@click.option("--kind", "kinds", metavar="KINDS", callback=_list_of(_name), help="Only prompts of these kinds.")
@click.option(
    "--limit",
    type=click.IntRange(1),
    help="At most this many prompts of each kind, and one before them that does not count.",
)
@click.option("--tokens", type=click.IntRange(16), default=128, show_default=True, help="Longest answer.")
@click.option(
    "--temperature",
    type=click.FloatRange(0, 5),
    help="For all prompts.  [default: 0, and 0.8 for prompts of the kind open]",
)
@click.option(
    "--concurrency",
    metavar="N,…",
    default="1",
    show_default=True,
    callback=_list_of(_count),
    help="Ask that many at once; the whole set for each N.",
)
@click.option(
    "--draft", "drafts", metavar="NAMES", callback=_list_of(_name), help="Compare these draft strategies on each route."
)
@click.option("--against", metavar="ROUTE", help="Compare with this route instead of the target without drafts.")
@click.option(
    "--rtt",
    metavar="MS,…",
    default="0",
    callback=_list_of(_milliseconds),
    help="Put draft servers that much further away.",
)
@click.option(
    "--rtt-target",
    metavar="MS",
    type=click.FloatRange(0, 10_000),
    default=0.0,
    show_default=True,
    help="Put the target that much further away.",
)
@click.option("--audit", is_flag=True, help="Have the target score every token of every greedy answer. Slow.")
@click.option("--native-draft", type=_FILE, metavar="FILE", help="Measure llama-server's own drafting with this model.")
@click.option("--native-target", type=_FILE, metavar="FILE", help="The target's model, where it does not say so.")
@click.option(
    "--native-flags",
    metavar="FLAGS",
    default="",
    callback=_flags,
    help="More flags for the servers that are started, in quotes.",
)
@click.option("--llama-server", type=_FILE, metavar="PATH", help="The program that is started for it.")
@click.option("--json", "json_file", type=_FILE, metavar="FILE", help="Write everything that was measured.")
@click.option("--html", "html_file", type=_FILE, metavar="FILE", help="Write a page with figures and plots.")
def bench(
    topology: Path,
    routes: tuple[str, ...],
    prompts: Path | None,
    kinds: tuple[str, ...],
    limit: int | None,
    temperature: float | None,
    json_file: Path | None,
    html_file: Path | None,
    native_draft: Path | None,
    native_target: Path | None,
    native_flags: tuple[str, ...],
    llama_server: Path | None,
    **options: Any,
) -> None:
    """Measure what the drafts of a TOPOLOGY's routes are worth.

    A router is started in this process. Each prompt is answered by the route and by its target without drafts,
    by turns, and speeds, acceptance and texts are compared; only ratios within one run mean anything. All
    routes that draft are measured, or those named. Nobody else should use the servers meanwhile.
    """
    from .plan import BenchOptions, NativeOptions, measured_routes  # slow to import, and no other command needs it
    from .prompts import chosen, read_prompts, shipped
    from .runner import Results

    loaded = load_topology(topology)
    asked = chosen(shipped() if prompts is None else read_prompts(prompts), kinds, limit, temperature)
    native = None
    for option, file in (("--native-draft", native_draft), ("--native-target", native_target)):
        if file is not None and not file.is_file():
            raise SetupError(f"{option} {file}: there is no such file")
    if native_draft is not None:
        native = NativeOptions(native_draft, llama_server, native_target, native_flags)
    given = BenchOptions(prompts=asked, routes=routes, native=native, **options)
    results = Results(given, str(topology))
    measured = measured_routes(loaded, results.options)
    for file in (json_file, html_file):
        _require_folder(file)
    terminal.warn(loaded.warnings)
    _log_faults()
    _run(loaded, measured, results, json_file, html_file)


def _run(
    loaded: LoadedTopology, measured: list[Measured], results: Results, json_file: Path | None, html_file: Path | None
) -> None:
    from .native import measure_native
    from .report_html import page
    from .report_json import as_json
    from .report_terminal import TerminalWatcher, console_for_figures, report
    from .runner import Bench

    console = console_for_figures()

    async def run() -> None:
        task = asyncio.current_task()
        assert task is not None
        with contextlib.suppress(NotImplementedError):  # Windows
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        await Bench(loaded, measured, results, watcher).run()
        if results.options.native is not None:
            await measure_native(loaded, results.options.native, results, watcher)

    failure: SpecrouterError | KeyboardInterrupt | asyncio.CancelledError | None = None
    try:
        with TerminalWatcher(console) as watcher:
            asyncio.run(run())
    except (SpecrouterError, KeyboardInterrupt, asyncio.CancelledError) as error:
        failure = error
    # Hours may have gone into what there is.
    if any(series.all_pairs for series in results.series):
        report(results, console)
        _write(json_file, lambda: json.dumps(as_json(results), ensure_ascii=False, indent=1))
        _write(html_file, lambda: page(results))
    if isinstance(failure, SpecrouterError):
        raise failure
    if failure is not None:
        click.echo("\nInterrupted.", err=True)
        sys.exit(128 + (signal.SIGINT if isinstance(failure, KeyboardInterrupt) else signal.SIGTERM))


def _require_folder(file: Path | None) -> None:
    """Hours later is too late to find out."""
    if file is not None and (file.is_dir() or not file.parent.is_dir()):
        raise SetupError(f"cannot write {file}: {'it is a folder' if file.is_dir() else 'there is no such folder'}")


def _write(file: Path | None, content: Callable[[], str]) -> None:
    if file is None:
        return
    try:
        file.write_text(content(), encoding="utf-8")
    except OSError as error:
        raise SetupError(f"cannot write {file}: {error.strerror}") from error


def _log_faults() -> None:
    """What a server or a plugin does wrong is in the figures; what we do wrong is not."""
    handler = terminal.log_handler("auto")
    handler.setLevel(logging.ERROR)
    logging.basicConfig(handlers=[handler])
