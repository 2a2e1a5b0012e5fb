"""The n-gram pool's settings are found from outside."""

from __future__ import annotations

import contextlib
from pathlib import Path

import anyio
import pytest
from llama_support import StartServer

from specrouter.config.model import ServerConfig
from specrouter.demo.processes import ManagedServer
from specrouter.ngram_pool import PoolSettings, find_pool
from specrouter.upstream import LlamaServer


async def find(url: str) -> PoolSettings | None:
    async with contextlib.aclosing(LlamaServer(ServerConfig("big", url))) as server:
        await server.probe()
        return await find_pool(server)


@pytest.mark.parametrize(("n_match", "n_min", "n_max"), [(4, 1, 16), (7, 3, 12), (24, 1, 64)])
def test_the_flags_given_are_found(
    model_file: Path, start_server: StartServer, n_match: int, n_min: int, n_max: int
) -> None:
    prefix = "--spec-ngram-mod-n"
    flags = [f"{prefix}-match", str(n_match), f"{prefix}-min", str(n_min), f"{prefix}-max", str(n_max)]
    server = start_server(model_file, "-c", "4096", "--spec-type", "ngram-mod", *flags)
    try:
        assert anyio.run(find, server.url) == PoolSettings(n_match, n_min, n_max)
    finally:
        server.stop()


def test_none_without_flags(drafter: ManagedServer) -> None:
    assert anyio.run(find, drafter.url) is None
