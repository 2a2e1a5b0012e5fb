"""The gate: who may pass, who waits, who is sent away."""

from __future__ import annotations

import anyio
import pytest

from specrouter.config import Limits
from specrouter.errors import TooManyRequests
from specrouter.limits import Gate


def gate(concurrent: int | None = None, queued: int = 64, wait: float = 60) -> Gate:
    return Gate(Limits(concurrent, queued, wait), "the model 'small'")


async def test_without_a_limit_everybody_passes(anyio_backend: str) -> None:
    open_gate = gate()
    async with open_gate.passed(), open_gate.passed(), open_gate.passed():
        assert open_gate.waiting == 0


async def test_never_more_at_once_and_in_order(anyio_backend: str) -> None:
    narrow = gate(concurrent=2)
    inside, most, order = 0, 0, []

    async def request(number: int) -> None:
        nonlocal inside, most
        async with narrow.passed():
            order.append(number)
            inside += 1
            most = max(most, inside)
            await anyio.sleep(0.001)
            inside -= 1

    async with anyio.create_task_group() as tasks:
        for number in range(20):
            tasks.start_soon(request, number)
            # One after the other, so that there is an order to keep.
            await anyio.lowlevel.checkpoint()
    assert most == 2
    assert order == list(range(20))


async def test_a_full_queue_sends_away(anyio_backend: str) -> None:
    narrow = gate(concurrent=1, queued=1)
    async with anyio.create_task_group() as tasks, narrow.passed():

        async def wait() -> None:
            async with narrow.passed():
                pass

        tasks.start_soon(wait)
        while not narrow.waiting:
            await anyio.lowlevel.checkpoint()
        with pytest.raises(TooManyRequests) as refused:
            async with narrow.passed():
                pass
        assert str(refused.value) == (
            "the model 'small' answers 1 request at a time, 1 are waiting, and no more may wait"
        )
        assert refused.value.retry_after is not None
        assert 1 <= refused.value.retry_after <= 120


async def test_waiting_has_an_end(anyio_backend: str) -> None:
    narrow = gate(concurrent=1, wait=0.01)
    async with narrow.passed():
        with pytest.raises(TooManyRequests, match=r"no place became free within 0\.01 s"):
            async with narrow.passed():
                pass
        assert narrow.waiting == 0
    async with narrow.passed():
        pass


@pytest.mark.parametrize("when", ["waiting", "inside"])
async def test_who_leaves_takes_no_place(anyio_backend: str, when: str) -> None:
    narrow = gate(concurrent=1)
    inside = anyio.Event()

    async def request() -> None:
        async with narrow.passed():
            inside.set()
            await anyio.sleep_forever()

    async with anyio.create_task_group() as tasks:
        if when == "inside":
            tasks.start_soon(request)
            await inside.wait()
            tasks.cancel_scope.cancel()
        else:
            async with narrow.passed():
                tasks.start_soon(request)
                while not narrow.waiting:
                    await anyio.lowlevel.checkpoint()
                tasks.cancel_scope.cancel()
    assert narrow.waiting == 0
    with anyio.fail_after(5):
        async with narrow.passed():
            pass
