"""The command line."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import click

from . import __version__, terminal
from .app import serve
from .checking import examine
from .config import load_topology, topology_schema
from .demo.command import demo
from .errors import SpecrouterError, TopologyError
from .plugins import load_plugins

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
@click.option("--json", "as_json", is_flag=True, help="Print what was found as JSON.")
def check(file: Path, offline: bool, as_json: bool) -> None:
    """Check the topology FILE, and whether its servers are up and can draft and verify.

    All problems of the file are shown at once, each as file:line:column. The servers are asked what they run,
    and it is tried out whether each route's drafts can be verified; if not, the flags that help are shown. The
    exit code is 1 when something is wrong or missing.
    """
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
    report = asyncio.run(examine(loaded))
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
@click.option("-v", "--verbose", is_flag=True, help="Log what companions do.")
def serve_command(file: Path, port: int | None, verbose: bool) -> None:
    """Serve the topology FILE until interrupted."""
    loaded = load_topology(file)
    terminal.warn(loaded.warnings)
    terminal.log_to_stderr(verbose=verbose)
    serve(loaded, port=port)


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


main.add_command(demo)
