"""The command line."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path
from typing import Any

import click

from . import __version__, running, terminal
from .app import serve
from .bench.command import bench
from .checking import examine
from .commands import ask_servers, command_lines
from .config import load_topology, topology_schema
from .demo.command import demo
from .errors import SetupError, SpecrouterError, TopologyError
from .init.command import init
from .managed.logs import find_log, last_lines
from .managed.logs import follow as follow_log
from .plugins import load_plugins
from .status_view import StatusView, fetch, find_router

_file = click.argument("file", type=click.Path(path_type=Path))


class _Commands(click.Group):
    """Explains errors that are made for people instead of showing where in the code they were raised."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except SpecrouterError as error:
            click.echo(str(error), err=True)
            ctx.exit(1)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="specrouter")
def main() -> None:
    """One OpenAI-compatible endpoint before llama-servers, with speculative decoding between machines."""


@main.command()
@_file
@click.option("--offline", is_flag=True, help="Do not ask the servers.")
@click.option("--measure", is_flag=True, help="Also measure the servers, and predict what drafts would bring.")
@click.option("--json", "as_json", is_flag=True, help="Print what was found as JSON.")
def check(file: Path, offline: bool, measure: bool, as_json: bool) -> None:
    """Check the topology FILE, and whether its servers are up and can draft and verify.

    All problems of the file are shown at once, each as file:line:column. The servers are asked what they run,
    and it is tried out whether each route's drafts can be verified; if not, the flags that help are shown. What is
    being tried out is told on standard error. The exit code is 1 when something is wrong or missing.

    --measure takes some 300 tokens of each target's time, in which nobody else should use the servers. What it says
    about speeds is a prediction from that; `specrouter bench` measures them.
    """
    if offline and measure:
        raise click.UsageError("--measure asks the servers, --offline does not.")
    try:
        loaded = load_topology(file)
    except TopologyError as error:
        if not as_json:
            raise
        click.echo(json.dumps({"ok": False, "problems": error.problems}, indent=2))
        sys.exit(1)
    terminal.warn(loaded.warnings)
    if offline:
        if as_json:
            click.echo(json.dumps({"ok": True, "warnings": loaded.warnings}, indent=2))
        else:
            terminal.print_topology(loaded)
        return
    with terminal.telling() as doing:
        report = asyncio.run(examine(loaded, doing, measure=measure))
    if as_json:
        click.echo(terminal.report_json(report))
    else:
        terminal.print_topology(loaded)
        terminal.print_report(report)
    if not report.is_fine:
        sys.exit(1)


@main.command("serve")
@_file
@click.option("--port", type=click.IntRange(0, 65535), help="Listen on this port instead of the topology's.")
@click.option("-v", "--verbose", is_flag=True, help="Log what companions do, and requests for /health and /v1/models.")
@click.option(
    "--log-format",
    type=click.Choice(terminal.LOG_FORMATS),
    default="auto",
    show_default=True,
    help="Lines for people, or a JSON object per line. auto: for people on a terminal, else JSON.",
)
@click.option(
    "--log-prompts",
    is_flag=True,
    help="Log the beginning of each prompt too. What users write is then in the log.",
)
def serve_command(file: Path, port: int | None, verbose: bool, log_format: str, log_prompts: bool) -> None:
    """Serve the topology FILE until interrupted.

    SIGTERM or Ctrl-C lets running answers end within `listen.shutdown_wait`, a second one does not wait. SIGHUP is
    what `specrouter reload` sends.

    One line per request is logged to standard error, without keys, prompts and answers.
    """
    loaded = load_topology(file)
    terminal.log_to_stderr(log_format, verbose=verbose)
    terminal.log_warnings(loaded.warnings)
    serve(loaded, port=port, log_prompts=log_prompts)


@main.command("reload")
@_file
def reload_command(file: Path) -> None:
    """Have the running router of the topology FILE take what has changed in it.

    The file is checked first. Requests that are being answered end as they began; drafting goes on where a route,
    its plugins and its servers are as before. With any problem the router keeps the topology it has, and the exit
    code is 1. `listen.host` and `listen.port` need a restart.
    """
    terminal.warn(load_topology(file).warnings)
    outcomes = running.reload(file)
    for router, outcome in outcomes:
        if outcome.problems:
            click.echo("\n".join([f"{router.url} keeps the topology it has:", *outcome.problems]), err=True)
        else:
            click.echo(f"{router.url}: {outcome.changed}")
    if any(outcome.problems for _, outcome in outcomes):
        sys.exit(1)


@main.command()
@click.argument("file_or_url")
@click.option(
    "--key", envvar="SPECROUTER_API_KEY", show_envvar=True, help="An API key of the router that opens all routes."
)
@click.option("--once", is_flag=True, help="Show it once, also on a terminal.")
@click.option("--json", "as_json", is_flag=True, help="Print what the router says as JSON, once.")
def status(file_or_url: str, key: str | None, once: bool, as_json: bool) -> None:
    """Show how a running router and its servers are doing.

    FILE_OR_URL is a topology that a router on this machine serves, or the URL of a router anywhere. On a terminal
    the tables are brought up to date every second, until Ctrl-C.

    Without --key, a topology's own first key that opens all routes is used.
    """
    address = find_router(file_or_url, key)
    if as_json:
        click.echo(json.dumps(fetch(address), indent=2))
    else:
        terminal.show(StatusView(address), once=once)


@main.command()
@_file
@click.argument("name")
@click.option("-n", "--lines", type=click.IntRange(0), default=100, show_default=True, help="How many lines.")
@click.option("-f", "--follow", is_flag=True, help="Go on with what is written from now on, until interrupted.")
def logs(file: Path, name: str, lines: int, follow: bool) -> None:
    """Show what the server NAME of the topology FILE has printed.

    That is for servers which the router runs itself (`run` in the topology). Their logs outlive it: the last 8 MiB and
    up to as much before, readable by the router's user only.
    """
    log = find_log(file, name)
    try:
        found, position = last_lines(log, lines)
        for line in found:
            click.echo(line)
        for text in follow_log(log, position) if follow else ():
            click.echo(text, nl=False)
    except OSError as error:
        raise SetupError(f"cannot read {log}: {error.strerror}") from error
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)


@main.command("commands")
@_file
@click.argument("route")
def commands_command(file: Path, route: str) -> None:
    """Print the command lines for the servers behind a ROUTE of the topology FILE.

    That is for llama-server, and for ggml-rpc-server where there are RPC workers, each with the flags that the route
    needs and what to know about them, as text for a shell. Servers that are up are asked for the files of their
    models; others have placeholders.
    """
    loaded = load_topology(file)
    click.echo(command_lines(loaded, route, asyncio.run(ask_servers(loaded, route))))


@main.command()
def schema() -> None:
    """Print the JSON schema of a topology, with the options of all installed plugins, for editors."""
    registry = load_plugins()
    click.echo(json.dumps(topology_schema(registry), indent=2))
    terminal.warn(registry.problems)


@main.command()
@click.argument("file", type=click.Path(path_type=Path), required=False)
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def plugins(file: Path | None, as_json: bool) -> None:
    """List the plugins that are installed, and those that the topology FILE brings.

    Plugins that cannot be loaded are listed below with the reason.
    """
    registry = load_plugins() if file is None else load_topology(file).registry
    if as_json:
        click.echo(terminal.plugin_json(registry))
        return
    terminal.print_plugins(registry)
    terminal.warn(registry.problems)


main.add_command(bench)
main.add_command(demo)
main.add_command(init)
