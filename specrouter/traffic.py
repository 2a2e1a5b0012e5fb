"""The requests of a router's process: those that run, the last ones that have ended, and what all added up to."""

from __future__ import annotations

import contextlib
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import replace

from .metrics import Metrics
from .request_log import RequestRecord

REMEMBERED = 100
"""Requests that are remembered of all together."""

REMEMBERED_OF_ROUTE = 20
"""Requests of a route from which its figures of now are made."""

Snapshot = Callable[[], RequestRecord]


class Traffic:
    """Outlives reloads. `running` and `waiting` count the requests of now by route, `recent` ended last.

    No prompt is kept, whatever is logged.
    """

    def __init__(self) -> None:
        self.metrics = Metrics()
        self.running: Counter[str] = Counter()
        self.waiting: Counter[str] = Counter()
        self.recent: deque[RequestRecord] = deque(maxlen=REMEMBERED)
        self._of_routes: dict[str, deque[RequestRecord]] = {}
        self._current: dict[Snapshot, None] = {}

    def began(self, snapshot: Snapshot) -> None:
        """A request has come; `snapshot` is asked what is known of it."""
        self._current[snapshot] = None

    def ended(self, snapshot: Snapshot) -> RequestRecord:
        """It has ended: the record of it. What needs no route is not counted, unless it was refused."""
        # First: whatever is wrong with its record, it runs no longer.
        del self._current[snapshot]
        record = snapshot()
        if not record.is_internal:
            self._remember(_without_prompt(record))
        return record

    def _remember(self, record: RequestRecord) -> None:
        self.metrics.add(record)
        self.recent.append(record)
        if record.route is not None:
            self._of_routes.setdefault(record.route, deque(maxlen=REMEMBERED_OF_ROUTE)).append(record)

    def current(self) -> list[RequestRecord]:
        """What is known of the requests that routes are answering now, the oldest first."""
        records = [_without_prompt(snapshot()) for snapshot in self._current]
        return [record for record in records if record.route is not None]

    def of_route(self, name: str) -> tuple[RequestRecord, ...]:
        """The last requests of a route, the latest last."""
        return tuple(self._of_routes.get(name, ()))

    @contextlib.contextmanager
    def counted(self, counts: Counter[str], route: str) -> Iterator[None]:
        """Count a request of a route in `running` or `waiting` while the context lasts."""
        counts[route] += 1
        try:
            yield
        finally:
            counts[route] -= 1


def _without_prompt(record: RequestRecord) -> RequestRecord:
    return record if record.prompt is None else replace(record, prompt=None)
