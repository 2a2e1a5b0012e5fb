"""Whoever gives way waits while a server is busy, for so long and no longer."""

from __future__ import annotations

import anyio
import pytest

from specrouter.giving_way import give_way, giving_way

pytestmark = pytest.mark.anyio


class Server:
    def __init__(self, *, busy: bool) -> None:
        self.busy = busy
        self.looks = 0

    def is_busy(self) -> bool:
        self.looks += 1
        return self.busy


async def test_clients_do_not_give_way() -> None:
    server = Server(busy=True)
    await give_way(server.is_busy)
    assert server.looks == 0


async def test_a_trial_waits_for_the_end_of_an_answer() -> None:
    server = Server(busy=True)
    went_on = anyio.Event()

    async def trial() -> None:
        with giving_way(600):
            await give_way(server.is_busy)
            went_on.set()

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(trial)
            while server.looks < 3:
                await anyio.sleep(0.01)
            assert not went_on.is_set()
            server.busy = False
            await went_on.wait()


async def test_waiting_has_an_end_for_the_whole_trial() -> None:
    server = Server(busy=True)
    with giving_way(0.01):
        await give_way(server.is_busy)
        looks = server.looks
        await give_way(server.is_busy)
        # It does not wait again: one look at most.
        assert server.looks <= looks + 1
    await give_way(server.is_busy)
    assert server.looks <= looks + 1
