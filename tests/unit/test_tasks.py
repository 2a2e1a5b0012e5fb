"""Tasks that run at once, and what comes out of them."""

from __future__ import annotations

from functools import partial

import anyio
import anyio.lowlevel
import pytest

from specrouter.tasks import gather

pytestmark = pytest.mark.anyio


async def test_gather_returns_in_order_what_was_made_at_once() -> None:
    last = anyio.Event()

    async def make(number: int) -> int:
        if number == 2:
            last.set()
        await last.wait()
        return number

    with anyio.fail_after(10):
        assert await gather([partial(make, number) for number in range(3)]) == [0, 1, 2]
    assert await gather([]) == []


async def test_a_failure_comes_out_as_it_is() -> None:
    async def fail() -> None:
        await anyio.lowlevel.checkpoint()
        raise LookupError("lost")

    with pytest.raises(LookupError, match="lost"), anyio.fail_after(10):
        await gather([anyio.sleep_forever, fail])
