"""The RPC workers (`ggml-rpc-server`) that a llama-server computes with, and whether they are there.

A llama-server whose worker goes away aborts, and one whose worker is away does not start.
"""

from __future__ import annotations

import contextlib
import enum
import logging
import time
from collections.abc import Callable, Mapping, Sequence

import anyio

log = logging.getLogger(__name__)

ADDRESS_PATTERN = (
    r"^([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])"
    r":(6553[0-5]|655[0-2][0-9]|65[0-4][0-9]{2}|6[0-4][0-9]{3}|[1-5][0-9]{4}|[1-9][0-9]{0,3})$(?!\n)"
)
ADDRESS_WORDS = "must be the address of a worker (like laptop:50052)"

PROBE_SECONDS = 2.0
"""How long a worker may take to accept a connection, and the pause between two such questions."""

SETTLE_SECONDS = 30.0
"""How long workers that were away have to be there before they are counted on again."""


class WorkersState(enum.Enum):
    """`RETURNING`: they were away and are there again, not yet for long enough."""

    UNKNOWN = "unknown"
    AWAY = "away"
    RETURNING = "returning"
    HEALTHY = "healthy"


class Workers:
    """The workers of one server, by their addresses (`host:port`).

    A worker serves one client at a time, and lets two more connections wait in line, even those that have been
    given up. So it is asked by a connection alone, and never while the server is connected to it: `in_use` tells
    that, and that the worker is there. `settle_seconds`: see SETTLE_SECONDS. `state_reason` names no
    addresses, `detail` does.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        *,
        in_use: Callable[[], bool] = lambda: False,
        settle_seconds: float = SETTLE_SECONDS,
    ) -> None:
        self.addresses = tuple(addresses)
        self.state = WorkersState.UNKNOWN
        self.state_reason = "not asked yet"
        self._problems: Mapping[str, str] = {}
        self._in_use = in_use
        self._settle_seconds = settle_seconds
        self._there_since: float | None = None
        self._listeners: list[Callable[[], None]] = []

    def __repr__(self) -> str:
        return f"<Workers {', '.join(self.addresses)} {self.state.value}>"

    @property
    def detail(self) -> str:
        """Why they are in their state, for whoever runs the router: which ones are away, and why."""
        away = [f"worker {address}: {self._problems[address]}" for address in sorted(self._problems)]
        return "; ".join(away) or self.state_reason

    def on_change(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` whenever `state` changes, until the returned function is called."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    async def watch(self) -> None:
        """Keep `state` true until cancelled."""
        while True:
            if self._in_use():
                # A server without its workers would not be there.
                self._note({})
            else:
                await self.ask()
            await anyio.sleep(PROBE_SECONDS)

    async def ask(self) -> None:
        """Ask all workers now and set the state. Never raises."""
        problems: dict[str, str] = {}

        async def one(address: str) -> None:
            problem = await _obstacle(address)
            if problem is not None:
                problems[address] = problem

        async with anyio.create_task_group() as tasks:
            for address in self.addresses:
                tasks.start_soon(one, address)
        self._note(problems)

    def _note(self, problems: Mapping[str, str]) -> None:
        """Set the state by what is wrong with workers, by their addresses."""
        self._problems = problems
        if problems:
            self._there_since = None
            self._set(WorkersState.AWAY, f"no connection to {len(problems)} of {len(self.addresses)}")
            return
        now = time.monotonic()
        if self._there_since is None:
            self._there_since = now
        were_away = self.state in (WorkersState.AWAY, WorkersState.RETURNING)
        if were_away and now - self._there_since < self._settle_seconds:
            self._set(WorkersState.RETURNING, f"there again, for less than {self._settle_seconds:g} s")
        else:
            self._set(WorkersState.HEALTHY, "there")

    def _set(self, state: WorkersState, reason: str) -> None:
        changed = state is not self.state
        self.state, self.state_reason = state, reason
        if changed:
            log.info("RPC workers %s: %s (%s)", ", ".join(self.addresses), state.value, self.detail)
            for listener in tuple(self._listeners):
                listener()


async def _obstacle(address: str) -> str | None:
    """Why a worker does not take connections, None where it does."""
    host, _, port = address.rpartition(":")
    try:
        with anyio.fail_after(PROBE_SECONDS):
            stream = await anyio.connect_tcp(host.strip("[]"), int(port))
    except TimeoutError:
        return "no connection in time"
    except OSError:
        return "no connection"
    with contextlib.suppress(OSError, anyio.BrokenResourceError):
        await stream.aclose()
    return None
