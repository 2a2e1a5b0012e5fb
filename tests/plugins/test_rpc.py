"""Draft strategy `rpc`: when it counts on its server and workers, and what it finds out about them."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from specrouter_plugins.rpc import Rpc

from specrouter.config import ServerConfig, load_topology
from specrouter.errors import TopologyError
from specrouter.interfaces import Support
from specrouter.testing import Exchange, FakeServer, NgramPool, ToyModel
from specrouter.types import ServerInfo, ServerState
from specrouter.upstream import LlamaServer

pytestmark = pytest.mark.anyio


class OwnHeads(NgramPool):
    """Drafts what the model is going to say."""

    def __init__(self, model: ToyModel) -> None:
        super().__init__()
        self._model = model

    def draft(self, context: Any) -> list[int]:
        token = self._model.next_token(context)
        return [] if token is None else [token]


@pytest.fixture
async def server(anyio_backend: str) -> AsyncIterator[LlamaServer]:
    server = LlamaServer(ServerConfig("big", "http://127.0.0.1:1"))
    yield server
    await server.aclose()


@pytest.fixture
def worker() -> Iterator[socket.socket]:
    """A worker's port that takes connections."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


def address(worker: socket.socket) -> str:
    return f"127.0.0.1:{worker.getsockname()[1]}"


def come_up(server: LlamaServer) -> None:
    server.set_state(ServerState.UP, "up", ServerInfo(model="m"))


@asynccontextmanager
async def watched(strategy: Rpc) -> AsyncIterator[None]:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(strategy.watch)
        await anyio.wait_all_tasks_blocked()
        yield
        tasks.cancel_scope.cancel()


async def until_available(strategy: Rpc, reason: str | None) -> None:
    with anyio.fail_after(10):
        while (found := strategy.available()) != reason:
            assert found is None or isinstance(found, str)
            await anyio.sleep(0.01)


# -- when it is available -----------------------------------------------------------------------------------


async def test_server_states(server: LlamaServer) -> None:
    strategy = Rpc({"server": "big"}, {"big": server})
    assert strategy.answering_server() is server
    assert strategy.available() == "server big is unknown (not asked yet)"
    server.set_state(ServerState.LOADING, "loading its model")
    assert strategy.available() == "server big is loading (loading its model)"
    come_up(server)
    assert strategy.available() is None


async def test_a_server_that_comes_back_has_to_stay(server: LlamaServer) -> None:
    strategy = Rpc({"server": "big", "settle": 3600}, {"big": server})
    async with watched(strategy):
        come_up(server)
        assert strategy.available() is None
        server.set_state(ServerState.DOWN, "no connection")
        assert strategy.available() == "server big is down (no connection)"
        server.set_state(ServerState.LOADING, "loading its model")
        come_up(server)
        assert strategy.available() == "server big is back, for less than 3600 s"


async def test_a_server_that_is_back_long_enough(server: LlamaServer) -> None:
    strategy = Rpc({"server": "big", "settle": 0.1}, {"big": server})
    async with watched(strategy):
        server.set_state(ServerState.DOWN, "no connection")
        come_up(server)
        await until_available(strategy, None)


async def test_workers_that_go_and_come_back(server: LlamaServer, worker: socket.socket) -> None:
    strategy = Rpc({"server": "big", "workers": [address(worker)], "settle": 3600}, {"big": server})
    async with watched(strategy):
        server.set_state(ServerState.DOWN, "no connection")
        port = worker.getsockname()[1]
        worker.close()
        await until_available(strategy, "the RPC workers of big are away")
        with socket.create_server(("127.0.0.1", port)):
            await until_available(strategy, "server big is down (no connection)")
            come_up(server)
            assert strategy.available() == "the RPC workers of big are back, for less than 3600 s"


async def test_workers_are_left_alone_while_the_server_has_them(server: LlamaServer, worker: socket.socket) -> None:
    come_up(server)
    strategy = Rpc({"server": "big", "workers": [address(worker)]}, {"big": server})
    worker.setblocking(False)
    async with watched(strategy):
        await anyio.sleep(0.05)
        assert strategy.available() is None
        with pytest.raises(BlockingIOError):
            worker.accept()


# -- whether the server drafts ------------------------------------------------------------------------------


async def inspected(fake: FakeServer, **options: Any) -> Support:
    async with fake:
        server = LlamaServer(ServerConfig("big", fake.url))
        try:
            await server.probe()
            return await Rpc({"server": "big", **options}, {"big": server}).inspect()
        finally:
            await server.aclose()


async def test_a_server_that_drafts(worker: socket.socket) -> None:
    model = ToyModel(" one two three four five six seven")
    support = await inspected(FakeServer(model, pool=OwnHeads(model)), workers=[address(worker)])
    assert support.reason is None
    assert support.details["workers"] == "in use"
    assert support.details["drafted"] >= support.details["accepted"] > 0


async def test_a_server_without_the_flags() -> None:
    support = await inspected(FakeServer(ToyModel(" one two three")))
    assert support.reason == "server big drafts nothing"
    assert support.advice is not None
    assert support.advice.startswith("start it with `--spec-type`")


async def test_a_server_with_flags_that_do_nothing() -> None:
    fake = FakeServer(ToyModel(" one two three"))

    async def reply(exchange: Exchange) -> None:
        send = exchange.send_event

        async def with_types(data: Any) -> None:
            await send({**data, "generation_settings": {"speculative.types": "none,draft-mtp"}})

        exchange.send_event = with_types  # type: ignore[method-assign]
        await fake.unscripted(exchange)(exchange)

    fake.replies["/completion"] = reply
    support = await inspected(fake)
    assert support.advice is not None
    assert support.advice.startswith("its `--spec-type draft-mtp` did not draft")


async def test_a_server_that_is_away(server: LlamaServer, worker: socket.socket) -> None:
    server.set_state(ServerState.DOWN, "no connection")
    workers = [address(worker)]
    found = await Rpc({"server": "big", "workers": workers}, {"big": server}).inspect()
    assert (found.reason, found.details["workers"]) == ("server big is down (no connection)", "there")
    worker.close()
    found = await Rpc({"server": "big", "workers": workers}, {"big": server}).inspect()
    assert found.reason == "the RPC workers of big are away"
    assert found.details["workers"] == f"worker {workers[0]}: no connection"


# -- in a topology ------------------------------------------------------------------------------------------


def load(tmp_path: Path, route: str) -> tuple[str, ...]:
    """The warnings about a route; raises TopologyError."""
    file = tmp_path / "topology.yaml"
    servers = "servers: {big: {url: http://big:8080}, big-rpc: {url: http://big:8090}}\n"
    file.write_text(f"version: 1\n{servers}routes: {{chat: {{{route}}}}}\n", encoding="utf-8")
    return tuple(warning.partition("yaml:")[2] for warning in load_topology(file).warnings)


def draft(**options: object) -> str:
    return f"draft: {{use: rpc, options: {options}}}"


def test_topologies_that_are_fine(tmp_path: Path) -> None:
    workers = ["laptop:50052", "10.0.0.7:1", "[fd00::1]:65535"]
    assert load(tmp_path, "target: big, " + draft(server="big-rpc", workers=workers, settle=0)) == ()
    # With heads of its own, the target is the server.
    assert load(tmp_path, "target: [big, big-rpc], " + draft(server="big")) == ()


@pytest.mark.parametrize("worker", ["laptop", "laptop:0", "laptop:65536", "http://laptop:50052", ":50052", "a b:1"])
def test_addresses_that_are_none(tmp_path: Path, worker: str) -> None:
    with pytest.raises(TopologyError, match=r"workers\[0\]: .*must be the address of a worker \(like laptop:50052\)"):
        load(tmp_path, "target: big, " + draft(server="big-rpc", workers=[worker]))


def test_a_server_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(TopologyError, match=r"options.server: `big-rcp` is not a server .*did you mean `big-rpc`"):
        load(tmp_path, "target: big, " + draft(server="big-rcp"))


def test_it_cannot_be_one_of_several(tmp_path: Path) -> None:
    several = "draft: {use: first_of, options: {strategies: [prompt_lookup, {use: rpc, options: {server: big-rpc}}]}}"
    with pytest.raises(TopologyError, match=r"strategies\[1\].use: `rpc` answers requests itself, so it must be"):
        load(tmp_path, f"target: big, {several}")


def test_what_has_no_effect_is_said(tmp_path: Path) -> None:
    found = load(tmp_path, f"target: big, verify: inject, on_tokenizer_mismatch: text, {draft(server='big-rpc')}")
    assert [warning.partition(" ")[2] for warning in found] == [
        f"routes.chat.{key}: has no effect: a server that drafts by itself also verifies by itself"
        for key in ("verify", "on_tokenizer_mismatch")
    ]
