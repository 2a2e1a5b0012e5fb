"""What commands show to people."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

import click
from rich.console import Console, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from . import predicting
from .checking import PairReport, Report, ServerReport
from .config import LoadedTopology, PluginUse, RouteConfig, answers_itself, server_options
from .log_formats import HumanFormatter, JsonFormatter, StandardErrorHandler
from .plugins import PluginInfo, PluginRegistry
from .types import ServerState

log = logging.getLogger(__name__)


def warn(messages: Iterable[str]) -> None:
    """Warnings go to standard error, one line each, so that they never mix with output for programs."""
    for message in messages:
        click.echo(f"warning: {message}", err=True)


@contextlib.contextmanager
def telling(console: Console | None = None) -> Iterator[Callable[[str], None]]:
    """Yields a function that is told what takes a while now.

    It shows it beside a spinner, or where nobody looks, in a line; on standard error if no `console` is given.
    """
    console = console or Console(stderr=True)
    if not console.is_terminal:
        yield lambda what: console.print(Text(what), soft_wrap=True)
        return
    with console.status("") as status:
        yield lambda what: status.update(Text(what))


def route_line(route: RouteConfig, registry: PluginRegistry) -> str:
    """A route in one line: `small (alias default): target big, draft remote from laptop, verify auto`."""
    aliases = f" (alias {', '.join(route.aliases)})" if route.aliases else ""
    line = f"{route.name}{aliases}: target {', then '.join(route.targets)}"
    if route.draft.name == "none":
        return f"{line}, no drafts"
    info = registry.find("draft", route.draft.name)
    if info is not None and answers_itself(info.cls.options_schema):
        return f"{line}, draft {_draft(route.draft, registry)}"
    checks = ", ".join(check.name for check in route.tokenizer_checks) or "none"
    return (
        f"{line}, draft {_draft(route.draft, registry)}, verify {route.verify.name}, "
        f"accept {route.accept.name}, tokenizer checks {checks}"
    )


def _draft(use: PluginUse, registry: PluginRegistry) -> str:
    info = registry.find("draft", use.name)
    servers = server_options(info.cls.options_schema, use.options) if info is not None else []
    if info is not None and answers_itself(info.cls.options_schema):
        return f"{use.name} by {', '.join(servers)}"
    return f"{use.name} from {', '.join(servers)}" if servers else use.name


def print_topology(loaded: LoadedTopology) -> None:
    """A topology that is in order, with a line for each route."""
    click.echo(f"{loaded.topology.path}: ok")
    for route in loaded.topology.routes.values():
        click.echo(f"  {route_line(route, loaded.registry)}")


def print_report(report: Report) -> None:
    """What a live check found, a block for the servers and one for the routes."""
    click.echo("\nservers")
    for server in report.servers:
        click.echo(f"  {server.name}: {_server_words(server)}")
    click.echo("\nroutes")
    for route in report.routes:
        served = f"answered by {route.served_by}" if route.served_by else "NOT SERVED: no target is up"
        click.echo(f"  {route.name}: {served}")
        for pair in route.pairs:
            for line in (*_pair_lines(pair), *_measured_lines(pair)):
                click.echo(f"    {line}")
    if any(pair.measured for route in report.routes for pair in route.pairs):
        click.echo("\nThe speeds are predictions from a few dozen tokens. `specrouter bench` measures them.")


def _server_words(server: ServerReport) -> str:
    if server.state is not ServerState.UP:
        word = server.state.value if server.state is ServerState.STOPPED else server.state.value.upper()
        return f"{word}, {server.reason}" + (f" ({server.url})" if server.url else "")
    info = server.info
    facts = {
        "": info.model,
        "context": info.n_ctx,
        "slots": info.slots,
        "vocabulary": info.n_vocab,
        "parameters": None if info.n_params is None else f"{info.n_params / 1e6:.0f}M",
        "build": info.build,
    }
    known = [f"{name} {value}".strip() for name, value in facts.items() if value is not None]
    return f"up, {', '.join(known)} ({server.url})"


_ON_MISMATCH = {
    "plain": "requests are answered without drafts (on_tokenizer_mismatch: plain; with `text`, drafts cross as text)",
    "text": "drafts would cross as text (on_tokenizer_mismatch: text)",
    "refuse": "requests are refused (on_tokenizer_mismatch: refuse)",
}


def _pair_lines(pair: PairReport) -> Iterator[str]:
    details = ", ".join(f"{key}={value}" for key, value in pair.details.items())
    if pair.drafts_itself and pair.obstacle is None:
        yield f"{pair.target} drafts by itself ({pair.verifier}: {details})"
        if pair.loss is not None:
            yield f"SLOWER: {pair.loss}"
            yield f"to change that: {pair.advice}"
        return
    if pair.obstacle is None:
        yield f"drafts are verified by {pair.target} ({pair.verifier}{': ' if details else ''}{details})"
        if pair.mismatches:
            yield f"drafts cross as text: tokenizers differ: {pair.mismatches[0]}"
            yield from pair.mismatches[1:]
        return
    if pair.is_stopped:
        yield f"drafts on {pair.target}: not known yet, {pair.obstacle}"
        return
    yield f"NO DRAFTS on {pair.target}: {pair.obstacle}{f' ({details})' if details else ''}"
    yield from pair.mismatches[1:]
    if pair.on_mismatch is not None:
        yield _ON_MISMATCH[pair.on_mismatch]
    if pair.advice:
        yield f"to change that: {pair.advice}"


def _measured_lines(pair: PairReport) -> Iterator[str]:
    if pair.measured is not None:
        yield from predicting.lines(pair.measured)
    elif pair.unmeasured is not None:
        yield f"not measured: {pair.unmeasured}"


def report_json(report: Report) -> str:
    """The same for programs."""
    return json.dumps(
        {
            "ok": report.is_fine,
            "servers": [
                {**asdict(server), "state": server.state.value, "info": asdict(server.info)}
                for server in report.servers
            ],
            "routes": [{**asdict(route), "ok": route.is_fine} for route in report.routes],
        },
        indent=2,
    )


LOG_FORMATS = ("auto", "human", "json")


def log_handler(log_format: str) -> logging.Handler:
    """Writes to standard error in one of the formats.

    `auto` is a line for people on a terminal, else one JSON object per line. `NO_COLOR` is respected.
    """
    human = log_format == "human" or (log_format == "auto" and sys.stderr.isatty())
    handler = StandardErrorHandler(colours=not os.environ.get("NO_COLOR"))
    handler.setFormatter(HumanFormatter() if human else JsonFormatter())
    return handler


def log_to_stderr(log_format: str, *, verbose: bool) -> None:
    """Log to standard error: ours from `info` on (all of it if `verbose`), others' and Python's from `warning` on."""
    logging.basicConfig(level=logging.WARNING, handlers=[log_handler(log_format)])
    logging.captureWarnings(True)
    set_level(logging.DEBUG if verbose else logging.INFO)
    # That answers are cut at the end of `shutdown_wait` is no error, and each of them has a line of its own.
    logging.getLogger("uvicorn.error").addFilter(lambda record: "graceful shutdown exceeded" not in record.getMessage())


def set_level(level: int) -> None:
    """From which level on our own loggers log, those of the bundled plugins included."""
    for name in ("specrouter", "specrouter_plugins"):
        logging.getLogger(name).setLevel(level)


def log_warnings(messages: Iterable[str]) -> None:
    """The same as `warn`, where standard error is the log."""
    for message in messages:
        log.warning("%s", message)


def plugin_json(registry: PluginRegistry) -> str:
    """All that is known of the plugins, for programs."""
    plugins = [
        {
            "kind": info.kind,
            "name": info.name,
            "summary": info.summary,
            "distribution": info.distribution,
            "version": info.version,
            "lossless": info.is_lossless,
            "options_schema": dict(info.cls.options_schema),
        }
        for info in _sorted(registry)
    ]
    return json.dumps({"plugins": plugins, "problems": list(registry.problems)}, indent=2)


_COLUMNS = ("kind", "name", "what it does", "from", "lossless", "options")


def print_plugins(registry: PluginRegistry, console: Console | None = None) -> None:
    """The plugins as a table; one line each with tabs between the columns where nobody looks at it."""
    console = console or Console(file=sys.stdout)
    rows = [_row(info) for info in _sorted(registry)]
    if not console.is_terminal:
        for row in rows:
            click.echo("\t".join(row), file=console.file)
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in _COLUMNS:
        table.add_column(column, overflow="fold")
    for row in rows:
        # Text, so that brackets in a stranger's docstring are not taken for markup.
        table.add_row(*(Text(cell) for cell in row))
    console.print(table)


def _sorted(registry: PluginRegistry) -> list[PluginInfo]:
    kinds = ["draft", "verify", "accept", "tokenizer_check"]
    return sorted(registry, key=lambda info: (kinds.index(info.kind), info.name))


def _row(info: PluginInfo) -> tuple[str, ...]:
    lossless = "yes" if info.is_lossless else "no"
    source = f"{info.distribution} {info.version}"
    return info.kind, info.name, info.summary, source, lossless, _options(info.cls.options_schema)


def _options(schema: Mapping[str, Any]) -> str:
    """`server (required), depth=8`: the names of options, with defaults where the schema tells them."""
    required = schema.get("required", ())
    described = []
    for name, option in schema.get("properties", {}).items():
        if name in required:
            described.append(f"{name} (required)")
        elif isinstance(option, Mapping) and "default" in option:
            described.append(f"{name}={json.dumps(option['default'])}")
        else:
            described.append(name)
    return ", ".join(described) or "-"


_WIDE = 160
_REFRESH_SECONDS = 1.0


def show(render: Callable[[], RenderableType], *, once: bool) -> None:
    """Show what `render` returns: once, or where somebody looks at it anew each second until Ctrl-C."""
    console = Console()
    if not console.is_terminal:
        console.width = _WIDE
    if once or not console.is_terminal:
        console.print(render())
        return
    with contextlib.suppress(KeyboardInterrupt), Live(render(), console=console, auto_refresh=False) as live:
        while True:
            time.sleep(_REFRESH_SECONDS)
            live.update(render(), refresh=True)
