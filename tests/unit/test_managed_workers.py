"""Whether the RPC workers of a server are there."""

from __future__ import annotations

import socket

import anyio
import pytest

from specrouter import workers
from specrouter.managed.processes import free_port
from specrouter.workers import Workers, WorkersState

pytestmark = pytest.mark.anyio


def listening(port: int = 0) -> socket.socket:
    return socket.create_server(("127.0.0.1", port))


async def test_there_or_away() -> None:
    with listening() as one, listening() as other:
        addresses = [f"127.0.0.1:{server.getsockname()[1]}" for server in (one, other)]
        watched = Workers(addresses)
        assert watched.state is WorkersState.UNKNOWN
        await watched.ask()
        assert watched.state is WorkersState.HEALTHY
        other.close()
        await watched.ask()
        assert watched.state is WorkersState.AWAY
        assert watched.state_reason == "no connection to 1 of 2"
        assert watched.detail == f"worker {addresses[1]}: no connection"


async def test_back_for_a_while() -> None:
    port = free_port()
    watched = Workers([f"127.0.0.1:{port}"], settle_seconds=0.2)
    changes: list[WorkersState] = []
    stop = watched.on_change(lambda: changes.append(watched.state))
    await watched.ask()
    with listening(port):
        with anyio.fail_after(30):
            while watched.state is not WorkersState.HEALTHY:
                await watched.ask()
                await anyio.sleep(0.01)
        stop()
    await watched.ask()
    assert changes == [WorkersState.AWAY, WorkersState.RETURNING, WorkersState.HEALTHY]


async def test_not_asked_while_they_are_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection would stay in their line until the server lets go of them."""
    monkeypatch.setattr(workers, "PROBE_SECONDS", 0.01)
    is_used = True
    with listening() as server:
        server.setblocking(False)
        watched = Workers([f"127.0.0.1:{server.getsockname()[1]}"], in_use=lambda: is_used)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watched.watch)
            await anyio.sleep(0.2)
            with pytest.raises(BlockingIOError):
                server.accept()
            is_used = False
            with anyio.fail_after(30):
                while True:
                    try:
                        server.accept()[0].close()
                        break
                    except BlockingIOError:
                        await anyio.sleep(0.01)
            tasks.cancel_scope.cancel()


@pytest.mark.parametrize("address", ["no-such-host.invalid:1", "[::1]:1"])
async def test_addresses_that_lead_nowhere(address: str) -> None:
    watched = Workers([address])
    await watched.ask()
    assert watched.state is WorkersState.AWAY
