"""`specrouter demo`: from nothing to a router in front of real servers, and a comparison."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import anyio
import httpx
import yaml
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from specrouter.app import serve_in_background
from specrouter.errors import SetupError
from specrouter.managed.processes import free_port, port_is_free
from specrouter.ngram_pool import FLAGS
from specrouter.terminal import log_handler, set_level, telling

from .comparison import compare, summary, warm_up
from .downloads import CPU_ONLY, LlamaServerCommand, fetch_model, find_llama_server
from .processes import ManagedServer
from .twin import cached_twin
from .wheels import Say, cache_folder, make_folder

_USUAL_PORT = 8080
_MAX_TOKENS = 96
_WARM_UP_S = 60.0
_MOST_THREADS = 8  # a model this small gets slower with more
_FIRST_LINE = "# Written by `specrouter demo`; the next demo writes it afresh."


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """What the command line says. None: the demo chooses."""

    once: bool = False
    llama_server: Path | None = None
    model: Path | None = None
    port: int | None = None
    topology: Path | None = None
    factor: int = 5


@dataclass(frozen=True, slots=True)
class Prepared:
    """What the demo runs: a server, the model as the draft, its deep twin as the target."""

    server: LlamaServerCommand
    model: Path
    twin: Path


@dataclass(frozen=True, slots=True)
class Cores:
    """Which cores the target and the draft get (None: not pinned), and how many threads each has."""

    target: tuple[int, ...] | None
    draft: tuple[int, ...] | None
    threads: int


def prepare(options: DemoOptions, console: Console) -> Prepared:
    """Find or download the server and the model, and make the twin. Raises SetupError.

    Not async on purpose: Ctrl-C must end a download at once.
    """
    say = _say_on(console)
    server = find_llama_server(options.llama_server, say=say)
    say(f"Server: llama.cpp's, from {server.origin}")
    model = fetch_model(options.model, say=say)
    say(f"Model: {model.stem}")
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("Making the deep twin", total=None, visible=False)
        twin = cached_twin(
            model,
            factor=options.factor,
            progress=lambda done, total: bar.update(task, completed=done, total=total, visible=True),
        )
    say(
        f"Target: {twin.stem}, the deep twin of the model: the same weights, every block followed by "
        f"{options.factor - 1} blocks that add nothing. It answers as the model does, for {options.factor} "
        "times the work, and stands in here for a big model."
    )
    return Prepared(server, model, twin)


async def run_demo(prepared: Prepared, options: DemoOptions, console: Console) -> None:
    """Start the servers and the router, compare, and stay up unless `options.once`.

    Raises SetupError. However it ends, no server is left.
    """
    say = _say_on(console)
    logs = cache_folder() / "logs"
    make_folder(logs)
    logging.basicConfig(filename=logs / "router.log", filemode="w", level=logging.WARNING)
    set_level(logging.INFO)
    port = _router_port(options.port)
    cores = share_cores()
    # The plain target is a server of its own: one with a pool would draft from the answers it remembers.
    plan = {
        "plain": (prepared.twin, ["-c", "2048", "-np", "1"]),
        "big": (prepared.twin, ["-c", "4096", *FLAGS.split()]),
        "laptop": (prepared.model, ["-c", "8192"]),
    }
    async with contextlib.AsyncExitStack() as stack:
        servers = {}
        for name, (model, flags) in plan.items():
            command = [*prepared.server.prefix, "-m", str(model), "-t", str(cores.threads), *flags, *CPU_ONLY]
            server = ManagedServer(
                command,
                name=f"the server {name}",
                log=logs / f"{name}.log",
                cores=cores.draft if name == "laptop" else cores.target,
            )
            with console.status(f"Starting the server {name}"):
                servers[name] = await stack.enter_async_context(server)
            say(f"{name:7} {server.url}  {' '.join(flags)}")
        urls = {name: server.url for name, server in servers.items()}
        topology = write_topology(options.topology, urls, port)
        # Until the router has ended.
        log = log_handler("auto")
        stack.callback(logging.getLogger().removeHandler, log)
        base_url = await stack.enter_async_context(serve_in_background(topology, port=port))
        say(f"router  {base_url}")
        say(f"Topology: {topology}\nLogs: {logs}")
        await _compare(base_url, console)
        if not options.once:
            _invite(base_url, console)
            logging.getLogger().addHandler(log)
            await anyio.sleep_forever()


async def _compare(base_url: str, console: Console) -> None:
    # trust_env: a proxy for the outside world must not be asked for a loopback address.
    async with httpx.AsyncClient(base_url=base_url, trust_env=False, timeout=300) as client:
        with telling(console) as doing:
            doing("The router is trying out what the target can do")
            await warm_up(client, "demo-plain", wait=0)
            decoding = await warm_up(client, "demo", _WARM_UP_S)
        if not decoding.startswith("inject"):
            _say_on(console)(f"The route demo takes no drafts; the router says: {decoding or 'nothing'}")
        pairs = await compare(client, "demo-plain", "demo", _MAX_TOKENS, console)
    console.print()
    console.print(summary(pairs))


def _invite(base_url: str, console: Console) -> None:
    messages = '[{"role": "user", "content": "Why is the sky blue?"}]'
    body = f'{{"model": "demo", "stream": true, "messages": {messages}}}'
    say = _say_on(console)
    say("\nThe servers and the router stay up. Try:\n")
    say(f"curl -N {base_url}/v1/chat/completions -H 'Content-Type: application/json' -d '{body}'")
    say(f"\nOr watch it, with a playground, in a browser: {base_url}/specrouter/")
    say(f"In a terminal: specrouter status {base_url}")
    say("\nCtrl-C ends them all. What the router logs:\n")


def share_cores() -> Cores:
    """Half of the cores for the target, half for the draft; both use all where there is one."""
    if sys.platform != "linux":
        return Cores(None, None, _threads((os.cpu_count() or 1) // 2))
    usable = sorted(os.sched_getaffinity(0))
    half = len(usable) // 2
    if not half:
        return Cores(None, None, 1)
    return Cores(tuple(usable[:half]), tuple(usable[half:]), _threads(half))


def _say_on(console: Console) -> Say:
    """Lines for the console as they are: a path must not be wrapped, nor a bracket taken for markup."""

    def say(line: str) -> None:
        console.print(line, markup=False, highlight=False, soft_wrap=True)

    return say


def _threads(cores: int) -> int:
    return min(max(cores, 1), _MOST_THREADS)


def write_topology(path: Path | None, servers: dict[str, str], port: int) -> Path:
    """Write the demo's topology and return its path.

    An existing file is replaced only when a demo wrote it. Raises SetupError when it is somebody's own or
    cannot be written.
    """
    if path is None:
        make_folder(cache_folder())
        path = cache_folder() / "demo.yaml"
    topology = {
        "version": 1,
        "listen": {"host": "127.0.0.1", "port": port},
        "servers": {name: {"url": url} for name, url in servers.items()},
        "routes": {
            "demo": {
                "target": "big",
                "draft": {"use": "remote", "options": {"server": "laptop"}},
            },
            "demo-plain": {"target": "plain", "draft": {"use": "none"}},
        },
    }
    text = f"{_FIRST_LINE}\n# Edit a copy, and serve that while the demo's servers run.\n"
    text += yaml.safe_dump(topology, sort_keys=False)
    try:
        if path.exists() and not path.read_text(encoding="utf-8", errors="replace").startswith(_FIRST_LINE):
            raise SetupError(f"--topology {path}: the file exists and no demo wrote it; name another one")
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise SetupError(f"--topology {path}: {error.strerror}") from error
    return path


def _router_port(wanted: int | None) -> int:
    """The port asked for, else the usual one, else any free one."""
    if wanted is not None:
        if not port_is_free(wanted):
            raise SetupError(f"--port {wanted}: it is in use; name another one, or leave it to the demo")
        return wanted
    return _USUAL_PORT if port_is_free(_USUAL_PORT) else free_port()
