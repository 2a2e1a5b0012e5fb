"""The command line of `specrouter init`."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from specrouter import terminal
from specrouter.errors import SetupError, TopologyError

if TYPE_CHECKING:
    from specrouter.config import LoadedTopology

    from .discovering import Discovery
    from .plan import Plan

_STDOUT = Path("-")
_SOME_LEFT_OUT = 3
_USUAL_PORTS = (8080, 8000, 8888)


@click.command()
@click.argument("urls", metavar="[URL]...", nargs=-1)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    default="topology.yaml",
    show_default=True,
    help="Where to write the topology; - is standard output.",
)
@click.option("-f", "--force", is_flag=True, help="Replace the file if there is one.")
@click.option(
    "--api-key-env", metavar="NAME", help="The environment variable with the key for the servers that ask for one."
)
def init(urls: tuple[str, ...], output: Path, force: bool, api_key_env: str | None) -> None:
    """Write a first topology for llama-servers that are running.

    Each URL is asked what it runs (HOST:PORT is enough). Then it is measured how fast the servers are, decided which
    of them answers and which one drafts, and tried out whether the drafts can be verified. The topology says in
    comments what was found and why it is as it is; what would make it faster is said, too.

    A server with a key is written 'http://${NAME}@HOST:PORT', NAME being an environment variable. The topology refers
    to the variable and never has the key.

    Exit codes: 0, the topology is written, with all addresses. 3, it is written, but some addresses could not be used.
    1, nothing is written.
    """
    from .addresses import read_address, read_key  # what follows is slow to import, and no other command needs it
    from .deciding import propose
    from .discovering import discover
    from .summary import HOW_TO_START, left_out_lines

    if output != _STDOUT:
        _require_place(output, force)
    given = urls or _asked_for()
    if not given:
        raise SetupError(f"There are no addresses, so nothing is written.\n\n{HOW_TO_START}")
    addresses = [read_address(url, os.environ) for url in given]
    if api_key_env is not None and api_key_env not in os.environ:
        # Not shown: it may be the key itself.
        raise SetupError(
            "--api-key-env takes the NAME of an environment variable with the key, there is none of that name"
        )
    key = None if api_key_env is None else read_key(api_key_env, os.environ)

    with terminal.telling() as doing:
        discovery = asyncio.run(discover(addresses, key_for_all=key, doing=doing))
        if not discovery.found:
            reasons = "\n".join(left_out_lines(discovery.left_out))
            raise SetupError(f"{reasons}\n\nNo llama-server can be used, so nothing is written.\n\n{HOW_TO_START}")
        proposed = propose(discovery.found, discovery.left_out, _port(discovery))
        plan, text, loaded = _tried_out(proposed, doing)
    _write(text, output, force)
    _tell(plan, loaded, output)
    if any(not one.duplicate for one in discovery.left_out):
        sys.exit(_SOME_LEFT_OUT)


def _asked_for() -> tuple[str, ...]:
    """The addresses that somebody at a terminal types."""
    if not _is_asked():
        raise click.UsageError("Give the addresses of your llama-servers, like localhost:8081 laptop:8080.")
    line: str = click.prompt(
        "The addresses of your llama-servers, like localhost:8081 laptop:8080", default="", show_default=False, err=True
    )
    return tuple(line.replace(",", " ").split())


def _is_asked() -> bool:
    return sys.stdin.isatty()


def _require_place(output: Path, force: bool) -> None:
    """Minutes later is too late to find out."""
    if output.is_dir():
        raise SetupError(f"cannot write {output}: it is a folder")
    if not output.parent.is_dir():
        raise SetupError(f"cannot write {output}: there is no folder {output.parent}")
    if output.exists() and not force:
        raise SetupError(f"{output} exists (replace it with --force, or name another file with --output)")


def _port(discovery: Discovery) -> int:
    """A port for the router that is free, and not that of a server that may be away for a moment."""
    from specrouter.managed.processes import port_is_free

    addresses = [found.address for found in discovery.found] + [one.address for one in discovery.left_out]
    taken = {address.port for address in addresses if address.is_local}
    candidates = [*_USUAL_PORTS, *range(8081, 8181)]
    return next((port for port in candidates if port not in taken and port_is_free(port)), _USUAL_PORTS[0])


def _tried_out(proposed: Plan, doing: Callable[[str], None]) -> tuple[Plan, str, LoadedTopology]:
    """The plan after `specrouter check` has looked at it, as text and as it is loaded."""
    from specrouter.checking import examine

    from .advice import advise
    from .deciding import settle
    from .writing import render

    with tempfile.TemporaryDirectory() as folder:
        report = None
        if any(route.drafts for route in proposed.routes):
            report = asyncio.run(examine(_loaded(render(proposed), Path(folder)), doing))
        settled = settle(proposed, report)
        plan = replace(settled, advice=advise(settled))
        text = render(plan)
        return plan, text, _loaded(text, Path(folder))


def _loaded(text: str, folder: Path) -> LoadedTopology:
    from specrouter.config import load_topology

    file = folder / "topology.yaml"
    file.write_text(text, encoding="utf-8")
    try:
        return load_topology(file)
    except TopologyError as error:
        # Nobody else's fault, so it must not look like a mistake of the user's.
        raise AssertionError(f"a topology of our own is not in order:\n{text}") from error


def _write(text: str, output: Path, force: bool) -> None:
    if output == _STDOUT:
        click.echo(text, nl=False)
        return
    try:
        with output.open("w" if force else "x", encoding="utf-8") as stream:
            stream.write(text)
    except OSError as error:
        raise SetupError(f"cannot write {output}: {error.strerror}") from error


def _tell(plan: Plan, loaded: LoadedTopology, output: Path) -> None:
    from .summary import advice_lines, found_lines, next_lines, route_lines

    to_stdout = output == _STDOUT

    def say(lines: Iterable[str]) -> None:
        for line in lines:
            click.echo(line, err=to_stdout)

    terminal.warn(loaded.warnings)
    if not to_stdout:
        say([f"{output}: written", ""])
    say(found_lines(plan))
    say(["", *route_lines(plan, loaded)])
    if plan.advice:
        say(["", *advice_lines(plan)])
    say(["", *next_lines(plan, None if to_stdout else output)])
