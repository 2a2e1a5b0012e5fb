"""Structured concurrency in the two shapes specrouter needs. No task is ever started anywhere else."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import anyio
import anyio.abc


@contextlib.asynccontextmanager
async def background() -> AsyncIterator[anyio.abc.TaskGroup]:
    """A task group whose tasks end with the block.

    The first failure, of the block or of a task, comes out as it is: `except UpstreamError` works, which it would
    not for the group that a plain task group raises.
    """
    try:
        async with anyio.create_task_group() as tasks:
            yield tasks
            tasks.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        failure: BaseException = group
        while isinstance(failure, BaseExceptionGroup):
            failure = failure.exceptions[0]
        raise failure from failure.__cause__


async def run_until(stop: Callable[[], Awaitable[object]], work: Callable[[], Awaitable[object]]) -> bool:
    """Run `work`, but cancel it as soon as `stop` returns. True if the work was finished."""
    finished = False

    async def watch(tasks: anyio.abc.TaskGroup) -> None:
        await stop()
        tasks.cancel_scope.cancel()

    async with background() as tasks:
        tasks.start_soon(watch, tasks)
        await work()
        finished = True
    return finished
