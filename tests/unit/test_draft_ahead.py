"""Drafting ahead of an answer: what is kept, what is drafted anew, and how it ends."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import anyio
import anyio.lowlevel
import pytest

from specrouter.draft_ahead import DraftAhead
from specrouter.interfaces import Drafter
from specrouter.tasks import background
from specrouter.types import DraftToken, Outcome

pytestmark = pytest.mark.anyio

PROMPT = [1, 2]


class Counting(Drafter):
    """Drafts numbers that go on from the last token, `held` after so many of them in every draft. Notes everything."""

    def __init__(
        self, *, held: int | None = None, ends_at: int = 1000, gap: Callable[[int], int] = lambda n: n
    ) -> None:
        self.held = held
        self.ends_at = ends_at
        self.gap = gap
        self.contexts: list[list[int]] = []
        self.outcomes: list[Outcome] = []
        self.open = 0
        self.waiting = anyio.Event()

    async def draft(self, context: Sequence[int], max_tokens: int) -> AsyncGenerator[DraftToken]:
        self.contexts.append(list(context))
        self.open += 1
        try:
            for count in range(max_tokens):
                await anyio.lowlevel.checkpoint()
                if count == self.held:
                    self.waiting.set()
                    await anyio.sleep_forever()
                token = self.gap(context[-1] + 1 + count)
                if token >= self.ends_at:
                    return
                yield DraftToken(token, b"")
        finally:
            self.open -= 1

    def observe(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)


@asynccontextmanager
async def drafting(drafter: Drafter, *, wanted: int = 4, limit: int | None = None) -> AsyncIterator[DraftAhead]:
    ahead = DraftAhead(drafter, PROMPT, wanted=wanted, limit=limit)
    with anyio.fail_after(10):
        async with background() as tasks:
            tasks.start_soon(ahead.run)
            yield ahead


def ids(ahead: DraftAhead) -> list[int]:
    return [token.id for token in ahead.pending]


async def test_twice_as_many_as_are_wanted_and_no_more() -> None:
    drafter = Counting()
    async with drafting(drafter) as ahead:
        await ahead.wait_for(8, 10)
        await anyio.wait_all_tasks_blocked()
        assert ids(ahead) == [3, 4, 5, 6, 7, 8, 9, 10]
        assert drafter.contexts == [PROMPT]
        assert drafter.open == 0


async def test_what_holds_is_kept() -> None:
    """All accepted, and the token behind them was foreseen as well."""
    drafter = Counting()
    async with drafting(drafter) as ahead:
        await ahead.wait_for(8, 10)
        ahead.confirm(4, 4, 7)
        assert ids(ahead) == [8, 9, 10]
        await ahead.wait_for(8, 10)
        assert ids(ahead) == [8, 9, 10, 11, 12, 13, 14, 15]
    assert drafter.contexts == [PROMPT, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]]
    # The token behind them counts as well.
    assert drafter.outcomes == [Outcome(5, 5)]
    assert ahead.drafted == 13


@pytest.mark.parametrize(
    ("asked", "accepted", "next_token", "outcome"),
    [
        (4, 2, 90, Outcome(4, 2)),
        (4, 0, 90, Outcome(4, 0)),
        # The draft token that comes next was wrong.
        (4, 4, 90, Outcome(5, 4)),
        (0, 0, 90, Outcome(1, 0)),
        (8, 8, 11, Outcome(8, 8)),
    ],
)
async def test_after_a_miss_it_begins_anew(asked: int, accepted: int, next_token: int, outcome: Outcome) -> None:
    drafter = Counting()
    async with drafting(drafter) as ahead:
        await ahead.wait_for(8, 10)
        ahead.confirm(asked, accepted, next_token)
        assert ids(ahead) == []
        await ahead.wait_for(4, 10)
        assert ids(ahead)[0] == next_token + 1
    assert drafter.contexts[1] == [*PROMPT, *range(3, 3 + accepted), next_token]
    assert drafter.outcomes == [outcome]


async def test_a_draft_under_way_is_closed_at_a_miss_and_kept_at_a_hit() -> None:
    drafter = Counting(held=6)
    async with drafting(drafter) as ahead:
        await drafter.waiting.wait()
        ahead.confirm(2, 2, 5)
        await anyio.wait_all_tasks_blocked()
        assert ids(ahead) == [6, 7, 8]
        assert len(drafter.contexts) == 1
        ahead.confirm(1, 0, 50)
        await ahead.wait_for(6, 10)
        assert ids(ahead) == [51, 52, 53, 54, 55, 56]
        assert drafter.open == 1
    assert drafter.open == 0


async def test_a_token_on_its_way_at_a_miss_is_dropped() -> None:
    """It was received before the miss, and is handed over after it."""
    go, taken = anyio.Event(), anyio.Event()

    class Late(Counting):
        async def draft(self, context: Sequence[int], max_tokens: int) -> AsyncGenerator[DraftToken]:
            self.contexts.append(list(context))
            if len(self.contexts) == 1:
                with anyio.CancelScope(shield=True):
                    await go.wait()
                yield DraftToken(77, b"")
            taken.set()
            yield DraftToken(78, b"")

    async with drafting(Late()) as ahead:
        await anyio.wait_all_tasks_blocked()
        ahead.confirm(0, 0, 9)
        go.set()
        await taken.wait()
        await anyio.wait_all_tasks_blocked()
        assert 77 not in ids(ahead)


async def test_a_drafter_that_has_nothing_more_is_asked_again_when_there_is_news() -> None:
    drafter = Counting(ends_at=5)
    async with drafting(drafter) as ahead:
        # Nobody waits for what will not come.
        await ahead.wait_for(4, 10)
        assert ids(ahead) == [3, 4]
        assert drafter.contexts == [PROMPT, [1, 2, 3, 4]]
        ahead.confirm(2, 2, 5)
        await ahead.wait_for(4, 10)
        assert ids(ahead) == []
        assert drafter.contexts[2] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("strange", [100, 101, 5000, -1])
async def test_a_draft_ends_before_an_id_that_the_target_does_not_know(strange: int) -> None:
    drafter = Counting(gap=lambda number: strange if number == 5 else number)
    async with drafting(drafter, limit=100) as ahead:
        await ahead.wait_for(4, 10)
        assert ids(ahead) == [3, 4]
        assert drafter.open == 0


@pytest.mark.parametrize(("row", "is_kept"), [({5: 0.5, 6: 0.5}, True), ({5: 0.5, 100: 0.5}, False)])
async def test_a_distribution_that_goes_beyond_the_limit_is_left_out(row: dict[int, float], is_kept: bool) -> None:
    """Of the drafts that are left, the tokens are not distributed as it says."""

    class Drawing(Counting):
        async def draft(self, context: Sequence[int], max_tokens: int) -> AsyncGenerator[DraftToken]:
            yield DraftToken(5, b"", 0.5, row)

    async with drafting(Drawing(), limit=100) as ahead:
        await ahead.wait_for(1, 10)
        assert ahead.pending[0] == DraftToken(5, b"", 0.5, row if is_kept else None)


async def test_a_draft_that_ends_with_old_news_is_made_again() -> None:
    """The target goes on while the drafter finds nothing; there may be something behind that."""

    class Late(Paced):
        async def draft(self, context: Sequence[int], max_tokens: int) -> AsyncGenerator[DraftToken]:
            self.contexts.append(list(context))
            if len(self.contexts) == 1:
                await self.go.wait()
                return
            yield DraftToken(context[-1] + 1, b"")

    drafter = Late()
    async with drafting(drafter) as ahead:
        await anyio.wait_all_tasks_blocked()
        ahead.confirm(0, 0, 3)
        drafter.go.set()
        await ahead.wait_for(1, 10)
        assert ids(ahead)[:1] == [4]
        assert drafter.contexts[:2] == [PROMPT, [*PROMPT, 3]]


async def test_what_is_confirmed_is_kept_where_observing_fails() -> None:
    class Deaf(Counting):
        def observe(self, outcome: Outcome) -> None:
            raise LookupError("lost")

    drafter = Deaf(held=6)
    async with drafting(drafter) as ahead:
        await drafter.waiting.wait()
        with pytest.raises(LookupError):
            ahead.confirm(2, 2, 5)
        assert ids(ahead) == [6, 7, 8]


async def test_waiting_has_an_end() -> None:
    async with drafting(Counting(held=1)) as ahead:
        await ahead.wait_for(4, 0.01)
        assert ids(ahead) == [3]


async def test_a_fault_comes_out() -> None:
    class Faulty(Counting):
        async def draft(self, context: Sequence[int], max_tokens: int) -> AsyncGenerator[DraftToken]:
            yield DraftToken(3, b"")
            raise LookupError("lost")

    with pytest.raises(LookupError, match="lost"):
        async with drafting(Faulty()):
            await anyio.sleep_forever()


async def test_cancelled_it_closes_the_draft() -> None:
    drafter = Counting(held=2)
    async with drafting(drafter):
        await drafter.waiting.wait()
        assert drafter.open == 1
    assert drafter.open == 0


class Paced(Counting):
    """Drafts a token whenever it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.go = anyio.Event()

    async def draft(self, context: Sequence[int], max_tokens: int) -> AsyncGenerator[DraftToken]:
        self.contexts.append(list(context))
        for count in range(max_tokens):
            await self.go.wait()
            self.go = anyio.Event()
            yield DraftToken(context[-1] + 1 + count, b"")


async def test_a_drafter_slower_than_the_target_is_not_begun_anew_with_every_step() -> None:
    drafter = Paced()
    async with drafting(drafter) as ahead:
        await anyio.wait_all_tasks_blocked()
        ahead.confirm(0, 0, 3)
        ahead.confirm(0, 0, 4)
        for _ in range(3):
            drafter.go.set()
            await anyio.wait_all_tasks_blocked()
        # 3 and 4 were said by the target in the meantime.
        assert ids(ahead) == [5]
        assert drafter.contexts == [PROMPT]
        assert drafter.outcomes == [Outcome(1, 1)] * 2


async def test_a_slow_drafter_that_was_wrong_begins_anew() -> None:
    drafter = Paced()
    async with drafting(drafter) as ahead:
        await anyio.wait_all_tasks_blocked()
        ahead.confirm(0, 0, 7)
        drafter.go.set()
        await anyio.wait_all_tasks_blocked()
        assert ids(ahead) == []
        assert drafter.contexts == [PROMPT, [*PROMPT, 7]]


async def test_a_drafter_too_far_behind_begins_anew() -> None:
    drafter = Paced()
    async with drafting(drafter) as ahead:
        await anyio.wait_all_tasks_blocked()
        for token in (3, 4, 5, 6):
            ahead.confirm(0, 0, token)
        await anyio.wait_all_tasks_blocked()
        assert drafter.contexts == [PROMPT, [*PROMPT, 3, 4, 5, 6]]
