"""The command line of `specrouter demo`."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

import click
from rich.console import Console

_FILE = click.Path(path_type=Path)


@click.command()
@click.option("--once", is_flag=True, help="End after the comparison instead of staying up.")
@click.option(
    "--llama-server", type=_FILE, metavar="PATH", help="This llama-server instead of one found or downloaded."
)
@click.option("--model", type=_FILE, metavar="FILE", help="This GGUF file instead of SmolLM2-135M-Instruct.")
@click.option("--port", type=click.IntRange(1, 65535), help="Port of the router.  [default: 8080, or a free one]")
@click.option("--topology", type=_FILE, metavar="OUTPUT", help="Where to write the topology that the demo uses.")
@click.option("--factor", type=click.IntRange(1, 16), default=5, show_default=True, help="How slow the target is.")
def demo(
    once: bool,
    llama_server: Path | None,
    model: Path | None,
    port: int | None,
    topology: Path | None,
    factor: int,
) -> None:
    """Try speculative decoding between servers on this machine.

    Gets a small model and a llama.cpp server, starts a slow target (once plain, once as it takes drafts), a
    draft server and the router, and shows the same prompts answered by the target alone and with drafts. The first
    run downloads about 160 MB and uses about 1.5 GB of the cache folder (SPECROUTER_CACHE chooses another one).
    """
    from .run import DemoOptions, prepare, run_demo  # slow to import, and no other command needs it

    console = Console()
    options = DemoOptions(once, llama_server, model, port, topology, factor)
    _end_like_ctrl_c()
    try:
        prepared = prepare(options, console)
        asyncio.run(run_demo(prepared, options, console))
    except KeyboardInterrupt:
        console.print("\nStopped. Nothing is left running.")
        sys.exit(128 + signal.SIGINT)


def _end_like_ctrl_c() -> None:
    """Let a closed terminal and `kill` end the demo as Ctrl-C does, so that its servers end too."""
    # A shell without job control starts background commands with SIGINT ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for name in ("SIGTERM", "SIGHUP"):
        if number := getattr(signal, name, None):
            signal.signal(number, lambda *_: signal.raise_signal(signal.SIGINT))
