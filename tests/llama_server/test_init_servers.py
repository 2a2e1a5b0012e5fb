"""`specrouter init` on running servers: what it writes serves drafted answers at once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from anyio.from_thread import start_blocking_portal
from click.testing import CliRunner
from llama_support import CHAT, StartServer, ask, chat, until_decoding

from specrouter.app import serve_in_background
from specrouter.cli import main
from specrouter.config import load_topology
from specrouter.demo.processes import ManagedServer
from specrouter.demo.twin import make_twin
from specrouter.ngram_pool import FLAGS


@pytest.fixture(scope="module")
def twin(model_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A big model that says what the small one says."""
    file = tmp_path_factory.mktemp("models") / "Big-4x-F16.gguf"
    make_twin(model_file, file, factor=4, type="F16")
    return file


@pytest.fixture(scope="module")
def bigs(twin: Path, start_server: StartServer) -> Iterator[tuple[ManagedServer, ManagedServer]]:
    """The big model on a server that verifies drafts, and on one that does not."""
    servers = start_server(twin, "-c", "4096", *FLAGS.split()), start_server(twin, "-c", "4096", "-np", "1")
    yield servers
    for server in servers:
        server.stop()


def test_three_servers_to_a_drafted_answer(
    bigs: tuple[ManagedServer, ManagedServer], drafter: ManagedServer, tmp_path: Path
) -> None:
    pool, plain = bigs
    file = tmp_path / "topology.yaml"
    result = CliRunner().invoke(main, ["init", drafter.url, plain.url, pool.url, "--output", str(file)])
    assert result.exit_code == 0, result.output
    topology = load_topology(file).topology
    urls = {name: server.url for name, server in topology.servers.items()}
    assert list(topology.routes) == ["Big-4x", "Big-4x-plain"]
    drafting = topology.routes["Big-4x"]
    assert ([urls[name] for name in drafting.targets], urls[drafting.draft.options["server"]]) == (
        [pool.url],
        drafter.url,
    )
    assert [urls[name] for name in topology.routes["Big-4x-plain"].targets] == [plain.url, pool.url]
    checked = CliRunner().invoke(main, ["check", str(file)])
    assert checked.exit_code == 0, checked.output
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(serve_in_background(file)) as url,
        httpx.Client(base_url=url, trust_env=False, timeout=120) as client,
    ):
        until_decoding(client, "inject", "Big-4x")
        body = {**chat("Count from one to twenty.", max_tokens=48), "model": "default"}
        assert ask(client, CHAT, body)["timings"]["draft_n_accepted"] > 0
        assert ask(client, CHAT, {**body, "model": "Big-4x-plain"})["model"] == "Big-4x-plain"


def test_a_server_for_embeddings_and_one_without_flags(
    drafter: ManagedServer, model_file: Path, start_server: StartServer, tmp_path: Path
) -> None:
    embedder = start_server(model_file, "-c", "512", "--embedding", "--pooling", "mean", "--alias", "embedder")
    file = tmp_path / "topology.yaml"
    result = CliRunner().invoke(main, ["init", embedder.url, drafter.url, "--output", str(file)])
    checked = CliRunner().invoke(main, ["check", str(file)])
    embedder.stop()
    assert result.exit_code == 0, result.output
    assert {"exact", "embedder"} <= set(load_topology(file).topology.routes)
    assert "for embeddings" in result.output
    assert checked.exit_code == 0, checked.output
