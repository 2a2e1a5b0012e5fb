"""The draft strategy `first_of`: who drafts, who is told, and what a faulty part costs."""

from __future__ import annotations

import inspect
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import pytest
from specrouter_plugins.first_of import FirstOf, FirstOfDrafter

from specrouter.config import ServerConfig
from specrouter.errors import PluginError, UpstreamError, UpstreamUnavailable
from specrouter.guarded import GuardedDrafter, GuardedStrategy
from specrouter.interfaces import Drafter, DraftStrategy, Generation
from specrouter.plugins import Bound, PluginInfo
from specrouter.types import DraftToken, Outcome, Sampling
from specrouter.upstream import LlamaServer

BIG = LlamaServer(ServerConfig("big", "http://127.0.0.1:1"))
LAPTOP = LlamaServer(ServerConfig("laptop", "http://127.0.0.1:2"))
DESK = LlamaServer(ServerConfig("desk", "http://127.0.0.1:3"))
GENERATION = Generation(route="fast", target=BIG, prompt=[1], sampling=Sampling())
GONE = UpstreamUnavailable("server 'laptop': the connection broke", server="laptop")


class Scripted(Drafter):
    """Says its ids in every draft; an error among them is raised. Notes what it is asked and told."""

    def __init__(self, *says: int | Exception) -> None:
        self.says = says
        self.contexts: list[list[int]] = []
        self.outcomes: list[Outcome] = []
        self.closed = False

    async def draft(self, context: Sequence[int], max_tokens: int) -> AsyncGenerator[DraftToken]:
        self.contexts.append(list(context))
        for item in self.says[:max_tokens]:
            if isinstance(item, Exception):
                raise item
            yield DraftToken(item, b"x")

    def observe(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)

    async def aclose(self) -> None:
        self.closed = True


class Part(DraftStrategy):
    """A strategy in whatever state a test wants."""

    name = "part"

    def __init__(
        self,
        drafter: Drafter | None = None,
        *,
        reason: str | None = None,
        server: LlamaServer | None = None,
        fails_in: str = "",
    ) -> None:
        super().__init__({}, {})
        self.drafter = drafter
        self.reason = reason
        self.server = server
        self.fails_in = fails_in

    def _maybe_fail(self, method: str) -> None:
        if self.fails_in == method:
            raise PluginError(f"{method} failed")

    def available(self) -> str | None:
        self._maybe_fail("available")
        return self.reason

    def draft_server(self) -> LlamaServer | None:
        self._maybe_fail("draft_server")
        return self.server

    def start(self, generation: Generation) -> Drafter | None:
        self._maybe_fail("start")
        return self.drafter


def first_of(*parts: DraftStrategy) -> FirstOf:
    return FirstOf({"strategies": list(parts)}, {})


async def ids(drafter: Drafter, context: Sequence[int] = (1, 2), max_tokens: int = 9) -> list[int]:
    async with aclosing(drafter.draft(context, max_tokens)) as tokens:
        return [token.id async for token in tokens]


# -- who drafts --------------------------------------------------------------------------------------------


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("says", "drafted"),
    [
        ([(5, 6), (7,)], [5, 6]),
        ([(), (7, 8)], [7, 8]),
        ([(), (), (9,)], [9]),
        ([(), ()], []),
        ([(GONE,), (7,)], [7]),
        ([(5, GONE), (7,)], [5]),
        ([(GONE,), ()], []),
        ([(PluginError("part raised KeyError"),), (7,)], [7]),
    ],
)
async def test_who_drafts(says: list[tuple[int | Exception, ...]], drafted: list[int]) -> None:
    drafters = [Scripted(*items) for items in says]
    assert await ids(FirstOfDrafter(drafters)) == drafted
    spoken = next((index for index, items in enumerate(says) if items[:1] and isinstance(items[0], int)), len(says))
    assert [len(drafter.contexts) for drafter in drafters] == [int(index <= spoken) for index in range(len(says))]


@pytest.mark.anyio
async def test_the_limit_and_the_context_are_passed_on() -> None:
    silent, talking = Scripted(), Scripted(5, 6, 7)
    assert await ids(FirstOfDrafter([silent, talking]), [3, 4], 2) == [5, 6]
    assert silent.contexts == talking.contexts == [[3, 4]]


@pytest.mark.anyio
async def test_a_failed_one_is_not_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    failing, other = Scripted(5, GONE), Scripted(7)
    drafter = FirstOfDrafter([failing, other])
    assert [await ids(drafter) for _ in range(3)] == [[5], [7], [7]]
    assert len(failing.contexts) == 1
    assert caplog.text.count("the connection broke") == 1


@pytest.mark.anyio
async def test_when_all_have_failed_drafting_ends() -> None:
    drafter = FirstOfDrafter([Scripted(PluginError("the first")), Scripted(GONE)])
    with pytest.raises(UpstreamError, match="the connection broke"):
        await ids(drafter)


# -- who is told -------------------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_outcomes_reach_who_drafted() -> None:
    first, second = Scripted(5, 6), Scripted(7, 8, 9)
    drafter = FirstOfDrafter([first, second])
    await ids(drafter)
    first.says = ()
    await ids(drafter)
    drafter.observe(Outcome(1, 1))
    assert (first.outcomes, second.outcomes) == ([Outcome(1, 1)], [])
    drafter.observe(Outcome(3, 2))
    assert (first.outcomes[1:], second.outcomes) == ([Outcome(1, 1)], [Outcome(2, 1)])
    # With the wrong token the rest of the draft is gone.
    await ids(drafter, max_tokens=1)
    drafter.observe(Outcome(1, 0))
    assert (first.outcomes[2:], second.outcomes[1:]) == ([], [Outcome(1, 0)])
    # Of nobody's tokens nobody is told.
    drafter.observe(Outcome(4, 3))
    assert (len(first.outcomes), len(second.outcomes)) == (2, 2)


class Deaf(Scripted):
    def observe(self, outcome: Outcome) -> None:
        raise PluginError("observe failed")

    async def aclose(self) -> None:
        raise PluginError("aclose failed")


@pytest.mark.anyio
async def test_faults_do_not_reach_the_others(caplog: pytest.LogCaptureFixture) -> None:
    deaf, other = Deaf(5), Scripted(7)
    drafter = FirstOfDrafter([deaf, other])
    await ids(drafter)
    deaf.says = ()
    await ids(drafter)
    drafter.observe(Outcome(2, 2))
    await drafter.aclose()
    assert other.outcomes == [Outcome(1, 1)]
    assert other.closed
    assert [record.getMessage() for record in caplog.records] == ["observe failed", "aclose failed"]
    assert all(record.exc_info for record in caplog.records)


@pytest.mark.anyio
async def test_all_are_closed() -> None:
    drafters = [Scripted(GONE), Scripted(7), Scripted()]
    drafter = FirstOfDrafter(drafters)
    await ids(drafter)
    await drafter.aclose()
    assert all(drafter.closed for drafter in drafters)


# -- the strategy ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ([Part(), Part(reason="no")], None),
        ([Part(reason="no"), Part()], None),
        ([Part(fails_in="available"), Part()], None),
        ([Part(reason="asleep"), Part(reason="away")], "asleep; away"),
        ([Part(reason="asleep"), Part(fails_in="available")], "asleep; available failed"),
    ],
)
def test_available(parts: list[Part], reason: str | None) -> None:
    assert first_of(*parts).available() == reason


@pytest.mark.anyio
async def test_only_what_is_available_is_started() -> None:
    parts = [
        Part(Scripted(1), reason="asleep"),
        Part(Scripted(2), fails_in="available"),
        Part(Scripted(3), fails_in="start"),
        Part(Scripted(4), fails_in="draft_server"),
        Part(None),
        Part(Scripted(6)),
    ]
    drafter = first_of(*parts).start(GENERATION)
    assert drafter is not None
    assert await ids(drafter) == [6]
    assert first_of(*parts[:-1]).start(GENERATION) is None


def test_the_server_is_that_of_a_part() -> None:
    assert first_of(Part()).draft_server() is None
    assert first_of(Part(), Part(server=LAPTOP)).draft_server() is LAPTOP
    assert first_of(Part(server=LAPTOP), Part(server=LAPTOP), Part()).draft_server() is LAPTOP


def test_two_servers_cannot_draft() -> None:
    with pytest.raises(ValueError, match="strategies: laptop and desk draft, only one server can"):
        first_of(Part(server=LAPTOP), Part(), Part(server=DESK))


# -- what parts are wrapped in -----------------------------------------------------------------------------


@pytest.mark.parametrize(("guarded", "base"), [(GuardedStrategy, DraftStrategy), (GuardedDrafter, Drafter)])
def test_every_method_is_guarded(guarded: type, base: type) -> None:
    methods = {name for name, _ in inspect.getmembers(base, inspect.isfunction) if not name.startswith("_")}
    assert methods <= vars(guarded).keys()


@pytest.mark.anyio
async def test_faults_have_the_name_of_the_part() -> None:
    class Faulty(Scripted):
        async def draft(self, context: Sequence[int], max_tokens: int) -> AsyncGenerator[DraftToken]:
            raise KeyError("lost")
            yield

    info = PluginInfo("draft", "faulty", Part, "my-drafts", "3")
    guarded = GuardedStrategy(Bound(info, Part(Faulty(), server=LAPTOP, reason="asleep")))
    assert (guarded.available(), guarded.draft_server()) == ("asleep", LAPTOP)
    drafter = guarded.start(GENERATION)
    assert drafter is not None
    with pytest.raises(PluginError, match=r"draft plugin 'faulty' \(my-drafts 3\) raised KeyError"):
        await ids(drafter)
