"""Structured concurrency in the shapes specrouter needs. No task is ever started anywhere else."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from typing import TypeVar

import anyio
import anyio.abc

T = TypeVar("T")


@contextlib.contextmanager
def _as_it_is() -> Iterator[None]:
    """The first failure in the group that a task group raises."""
    try:
        yield
    except BaseExceptionGroup as group:
        failure: BaseException = group
        while isinstance(failure, BaseExceptionGroup):
            failure = failure.exceptions[0]
        raise failure from failure.__cause__


@contextlib.asynccontextmanager
async def background() -> AsyncIterator[anyio.abc.TaskGroup]:
    """A task group whose tasks end with the block.

    The first failure, of the block or of a task, comes out as it is: `except UpstreamError` works, which it would
    not for the group that a plain task group raises.
    """
    with _as_it_is():
        async with anyio.create_task_group() as tasks:
            yield tasks
            tasks.cancel_scope.cancel()


async def gather(calls: Sequence[Callable[[], Awaitable[T]]]) -> list[T]:
    """What all the calls return, made at once. The first failure ends the others and comes out as it is."""
    found: dict[int, T] = {}

    async def make(index: int) -> None:
        found[index] = await calls[index]()

    with _as_it_is():
        async with anyio.create_task_group() as tasks:
            for index in range(len(calls)):
                tasks.start_soon(make, index)
    return [found[index] for index in range(len(calls))]


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
