"""llama-server's own drafting with a draft model on the same machine, for reference."""

from __future__ import annotations

import tempfile
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

from specrouter.config import Listen, LoadedTopology, RouteConfig, ServerConfig, Topology
from specrouter.demo.downloads import find_llama_server
from specrouter.demo.processes import ManagedServer
from specrouter.errors import SetupError
from specrouter.types import ServerInfo

from .plan import Measured, NativeOptions
from .runner import Bench, Results, Watcher

N_MAX = (3, 6, 12)
"""Longest drafts that are tried; 3 is llama-server's default. The best one is what counts."""

_CONTEXT = 4096
_PLAIN, _DRAFTING = "llama-server without drafts", "llama-server"
_LOADING_SECONDS = 900.0


async def measure_native(loaded: LoadedTopology, options: NativeOptions, results: Results, watcher: Watcher) -> None:
    """Measure llama-server's own drafting for each of N_MAX, with servers started for it. Raises SetupError."""
    info = next(iter(results.servers.values()), ServerInfo())
    common = [
        *find_llama_server(options.llama_server).prefix,
        *("-m", str(_target_file(options, info)), "-np", "1", "-c", str(info.n_ctx or _CONTEXT)),
        *options.flags,
    ]
    with tempfile.TemporaryDirectory(prefix="specrouter-bench-") as folder:
        for n_max in N_MAX:
            drafting = ["-md", str(options.draft), "--spec-type", "draft-simple", "--spec-draft-n-max", str(n_max)]
            watcher.doing(f"Starting llama-server with its own drafting of up to {n_max} tokens")
            async with AsyncExitStack() as stack:
                urls = {}
                for name, flags in ((_PLAIN, []), (_DRAFTING, drafting)):
                    log = Path(folder, f"{name}.log")
                    server = ManagedServer(
                        [*common, *flags], name=f"the server {name}", log=log, deadline=_LOADING_SECONDS
                    )
                    urls[name] = (await stack.enter_async_context(server)).url
                await _measure(loaded, f"native n_max {n_max}", urls, results, watcher)


async def _measure(
    loaded: LoadedTopology, route: str, urls: dict[str, str], results: Results, watcher: Watcher
) -> None:
    """One pair of servers, both without a router's drafts, through a router like all others."""
    servers = {name: ServerConfig(name, url) for name, url in urls.items()}
    topology = Topology(loaded.topology.path, Listen(), servers, {})
    measured = Measured(RouteConfig(route, (_DRAFTING,)), RouteConfig(_PLAIN, (_PLAIN,)))
    inner = Results(replace(results.options, rtt=(0.0,), rtt_target=0.0, concurrency=(1,)), results.topology)
    try:
        await Bench(LoadedTopology(topology, loaded.registry, ()), [measured], inner, watcher).run()
    finally:
        results.native += inner.series


def _target_file(options: NativeOptions, info: ServerInfo) -> Path:
    if options.target is not None:
        return options.target
    if info.model_path is not None and Path(info.model_path).is_file():
        return Path(info.model_path)
    raise SetupError(
        f"--native-draft: the target's model is not on this machine ({info.model_path}); say --native-target FILE"
    )
