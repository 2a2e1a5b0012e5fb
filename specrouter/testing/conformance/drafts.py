"""Conformance tests for draft strategies."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any, ClassVar

import anyio

from specrouter.errors import UpstreamError
from specrouter.interfaces import Drafter, DraftStrategy, Generation, Plugin
from specrouter.tasks import background
from specrouter.testing.fake_http import hang
from specrouter.testing.fake_server import FakeServer
from specrouter.testing.toy_model import NgramPool, ToyModel, ToyVocabulary
from specrouter.types import Outcome, ServerState

from .faults import FAULTS
from .plugin import PluginConformance, staged
from .rules import Rule
from .stage import Stage
from .tokens import TokenJudge

_POSITIONS = 64
"""At most so many places of an answer are tried for one that the strategy can foresee."""

_ENOUGH = 16  # tokens


class DraftStrategyConformance(PluginConformance):
    """Tests for a draft strategy.

        class TestMine(DraftStrategyConformance):
            strategy = MyStrategy
            options = {"server": "drafter"}

    If it foresees only certain texts, let `answer` be one. `drafts` is False for a strategy that never drafts.
    """

    kind = "draft"
    strategy: ClassVar[type[DraftStrategy]]
    drafts: ClassVar[bool] = True

    @property
    def plugin(self) -> type[Plugin]:
        """The strategy."""
        return self.strategy

    def make_target(self) -> FakeServer:
        """The fake that answers. The last ids of its vocabulary are unused, the drafter lacks them."""
        return FakeServer(ToyModel(self.answer, vocabulary=ToyVocabulary(padding=64)), pool=NgramPool())

    # -- the strategy --------------------------------------------------------------------------------------

    @staged
    async def test_available_answers_at_once(self, stage: Stage) -> None:
        """In every state of the servers; when all are up, something can be drafted."""
        strategy = _strategy(stage)
        await stage.ask()
        for state in (ServerState.DOWN, ServerState.LOADING, ServerState.UNKNOWN, ServerState.UP):
            for server in stage.servers.values():
                server.set_state(state, "a test")
            with stage.quiet(Rule.AVAILABLE, "available()"):
                reason = strategy.available()
            is_reason = reason is None or (isinstance(reason, str) and bool(reason.strip()))
            self._judge.expect(is_reason, Rule.AVAILABLE, f"available() returned {reason!r}")
        self._judge.expect(reason is None, Rule.AVAILABLE, f"with all servers up, available() says {reason!r}")

    @staged
    async def test_the_draft_server_stays(self, stage: Stage) -> None:
        """It is one of the topology's."""
        strategy = _strategy(stage)
        with stage.quiet(Rule.DRAFT_SERVER, "draft_server()"):
            found = [strategy.draft_server() for _ in range(2)]
        await stage.ask()
        found.append(strategy.draft_server())
        known = [None, *stage.servers.values()]
        odd = next((server for server in found if not any(server is one for one in known)), None)
        self._judge.expect(odd is None, Rule.DRAFT_SERVER, f"draft_server() returned {odd!r}")
        self._judge.expect(len(set(found)) == 1, Rule.DRAFT_SERVER, f"draft_server() returned {found}")

    @staged
    async def test_start_is_quiet(self, stage: Stage) -> None:
        """And makes a drafter for each request."""
        await stage.ask()
        generation = await stage.generation()
        with stage.quiet(Rule.START, "start()"):
            drafters = [self._start(stage, generation) for _ in range(2)]
        if self.drafts:
            self._judge.expect(None not in drafters, Rule.START, "start() returned None, with all servers up")
            self._judge.expect(drafters[0] is not drafters[1], Rule.START, "start() returned one drafter twice")
        else:
            self._judge.expect(drafters == [None, None], Rule.START, "start() returned a drafter (set `drafts = True`)")
        for drafter in drafters:
            if drafter is not None:
                await drafter.aclose()

    # -- drafts --------------------------------------------------------------------------------------------

    @staged
    async def test_drafts_are_tokens_of_the_target(self, stage: Stage) -> None:
        """All along the answer, and no more than were asked for."""
        async with self._drafter(stage) as (drafter, generation):
            if drafter is None:
                return
            drafted = 0
            for context in self._contexts(stage, generation):
                for length in (1, 3):
                    drafted += len(await self._draft(stage, drafter, context, length))
            self._judge.expect(drafted > 0, Rule.DRAFTS, self._drafted_nothing)

    @staged
    async def test_a_draft_can_be_closed(self, stage: Stage) -> None:
        """After each of its tokens; another one follows."""
        async with self._drafter(stage) as (drafter, generation):
            if drafter is None:
                return
            context = await self._foreseen(stage, drafter, generation)
            for length in (0, 1, 2):
                await self._draft(stage, drafter, context, _ENOUGH, take=length)
                await stage.let_go("when a draft was closed")
                await self._draft(stage, drafter, context, _ENOUGH)

    @staged
    async def test_a_draft_can_be_cancelled(self, stage: Stage) -> None:
        """While it waits for a server."""
        async with self._drafter(stage) as (drafter, generation):
            if drafter is None:
                return
            context = await self._foreseen(stage, drafter, generation)
            is_cancelled = ended = False
            late = 0

            async def draft() -> None:
                nonlocal ended, late
                async with aclosing(drafter.draft(context, _ENOUGH)) as tokens:
                    async for _ in tokens:
                        late += is_cancelled
                        if is_cancelled:
                            return
                ended = True

            stage.reply(hang)
            before = stage.requests
            async with background() as tasks:
                tasks.start_soon(draft)
                while not ended and stage.requests == before:
                    await anyio.sleep(0.002)
                is_cancelled = True
            stage.reply(None)
            self._judge.expect(not late, Rule.LETS_GO, "a draft that was cancelled went on")
            await stage.let_go("when a draft was cancelled")
            await self._draft(stage, drafter, context, _ENOUGH)

    @staged
    async def test_it_drafts_again(self, stage: Stage) -> None:
        """With the same context, a longer one, a shorter one and one that differs."""
        async with self._drafter(stage) as (drafter, generation):
            if drafter is None:
                return
            context = await self._foreseen(stage, drafter, generation)
            other = stage.fakes["target"].model.tokens[-1]
            for changed in (context, [*context, other], context[:-1], [*context[:-1], other, other], context):
                try:
                    drafted = await self._draft(stage, drafter, changed, 3)
                except UpstreamError as error:
                    self._judge.broken(Rule.AGAIN, f"drafting again with another context raised {error!r}")
            self._judge.expect(bool(drafted), Rule.AGAIN, "back at a context that it had drafted for, it did not draft")

    @staged
    async def test_it_learns_and_closes_at_any_time(self, stage: Stage) -> None:
        """Before the first draft, between drafts, after the end."""
        async with self._drafter(stage) as (drafter, generation):
            if drafter is None:
                return
            outcomes = (Outcome(1, 0), Outcome(4, 4), Outcome(3, 1))
            self._observe(drafter, *outcomes)
            context = await self._foreseen(stage, drafter, generation)
            self._observe(drafter, *outcomes)
            await self._draft(stage, drafter, context, 3)
            await self._aclose(drafter)
            self._observe(drafter, *outcomes)
            await self._aclose(drafter)
            unused = self._start(stage, generation)
            assert unused is not None
            await self._aclose(unused)
            await self._aclose(unused)
            await stage.let_go("after aclose()")

    @staged
    async def test_servers_that_fail(self, stage: Stage) -> None:
        """Before a draft and within one."""
        async with self._drafter(stage) as (drafter, generation):
            if drafter is None:
                return
            context = await self._foreseen(stage, drafter, generation)
            for name, fault in FAULTS.items():
                await self._draft_despite(stage, generation, context, name, fault)
            stage.reply(None)
            for fake in stage.fakes.values():
                stage.in_fakes(fake.stop)
            await self._draft_despite(stage, generation, context, "is gone", None)

    @staged
    async def test_context_is_not_changed(self, stage: Stage) -> None:
        """Nor is the request."""
        async with self._drafter(stage) as (drafter, generation):
            if drafter is None:
                return
            context = await self._foreseen(stage, drafter, generation)
            given, prompt = list(context), list(generation.prompt)
            await self._draft(stage, drafter, given, 3)
            self._judge.expect(given == context, Rule.INPUTS_STAY, "draft() changed the context it was given")
            self._judge.expect(list(generation.prompt) == prompt, Rule.INPUTS_STAY, "draft() changed the prompt")

    def test_requests_do_not_mix(self) -> None:
        """Two drafters, token by token in turn, draft what each drafts alone."""
        if not self.drafts:
            return
        alone = [self._played(index) for index in ([0], [1])]
        together = self._played([0, 1])
        if alone != [self._played(index) for index in ([0], [1])]:
            return  # A strategy that draws at random says nothing here.
        expected = [drafted for (drafted,) in alone]
        said = f"two drafters in turn drafted {together}, each alone {expected}"
        self._judge.expect(together == expected, Rule.REQUESTS_APART, said)

    @property
    def _drafted_nothing(self) -> str:
        return f"it drafted nothing of {self.answer[:60]!r} (let `answer` be a text that it can foresee)"

    # -- steps ---------------------------------------------------------------------------------------------

    def _start(self, stage: Stage, generation: Generation) -> Drafter | None:
        drafter = _strategy(stage).start(generation)
        is_one = drafter is None or isinstance(drafter, Drafter)
        self._judge.expect(is_one, Rule.START, f"start() returned {drafter!r}, which is no Drafter")
        return drafter

    @asynccontextmanager
    async def _drafter(self, stage: Stage) -> AsyncIterator[tuple[Drafter | None, Generation]]:
        """A drafter and its request; None where the strategy never drafts. In the end, nothing may be left of it."""
        await stage.ask()
        generation = await stage.generation()
        drafter = self._start(stage, generation)
        if drafter is None and self.drafts:
            self._judge.broken(Rule.START, "start() returned None, with all servers up")
        yield drafter, generation
        if drafter is not None:
            await self._aclose(drafter)
            await stage.let_go("after aclose()")

    def _contexts(self, stage: Stage, generation: Generation) -> list[list[int]]:
        """What a drafter is asked about while the target says the answer."""
        said = stage.fakes["target"].model.tokens
        places = range(0, len(said) + 1, 1 + len(said) // _POSITIONS)
        return [[*generation.prompt, *said[:place]] for place in places]

    async def _foreseen(self, stage: Stage, drafter: Drafter, generation: Generation) -> list[int]:
        """A context behind which the drafter has several tokens to say, if there is one."""
        best: tuple[int, list[int]] = (0, [])
        for context in self._contexts(stage, generation)[1:]:
            drafted = len(await self._draft(stage, drafter, context, 3))
            best = max(best, (drafted, context), key=lambda found: found[0])
            if drafted == 3:
                break
        self._judge.expect(best[0] > 0, Rule.DRAFTS, self._drafted_nothing)
        return best[1]

    async def _draft(
        self, stage: Stage, drafter: Drafter, context: Sequence[int], length: int, take: int | None = None
    ) -> list[int]:
        """Draft, look at each token, and close the draft after `take` of them."""
        generator: Any = drafter.draft(context, length)
        is_one = hasattr(generator, "__anext__") and hasattr(generator, "aclose")
        if not is_one:
            getattr(generator, "close", lambda: None)()
            self._judge.broken(Rule.DRAFTS, f"draft() returned {generator!r}, which is no async generator")
        tokens = TokenJudge(self._judge, stage)
        drafted: list[int] = []
        if take != 0:
            async for token in generator:
                tokens.look_at(token)
                drafted.append(token.id)
                more = f"draft() yielded more than `max_tokens`, which was {length}"
                self._judge.expect(len(drafted) <= length, Rule.MAX_TOKENS, more)
                if len(drafted) == take:
                    break
        try:
            await generator.aclose()
        except Exception as error:
            self._judge.broken(Rule.LETS_GO, f"closing a draft raised {error!r}")
        return drafted

    async def _draft_despite(
        self, stage: Stage, generation: Generation, context: Sequence[int], name: str, fault: Any
    ) -> None:
        drafter = self._start(stage, generation)
        if drafter is None:
            return

        async def draft() -> None:
            # What a server that fails says may be any tokens.
            async with aclosing(drafter.draft(context, _ENOUGH)) as tokens:
                async for _ in tokens:
                    pass

        stage.reply(fault)
        try:
            await self._despite(f"a server {name}, and draft()", draft)
        finally:
            stage.reply(None)
            await self._aclose(drafter)

    def _observe(self, drafter: Drafter, *outcomes: Outcome) -> None:
        for outcome in outcomes:
            try:
                result: object = drafter.observe(outcome)  # type: ignore[func-returns-value]
            except Exception as error:
                self._judge.broken(Rule.OBSERVE, f"observe({outcome}) raised {error!r}")
            if result is not None:
                getattr(result, "close", lambda: None)()
                self._judge.broken(Rule.OBSERVE, f"observe() returned {result!r}")

    async def _aclose(self, drafter: Drafter) -> None:
        try:
            await drafter.aclose()
        except Exception as error:
            self._judge.broken(Rule.ACLOSE, f"aclose() raised {error!r}")

    def _played(self, which: Sequence[int]) -> list[list[int]]:
        """What drafters of some of two requests draft in turn, on a stage of their own."""
        drafted: list[list[int]] = [[] for _ in which]

        async def check(stage: Stage) -> None:
            await stage.ask()
            said = stage.fakes["target"].model.tokens
            contexts = []
            drafters = []
            for number in which:
                generation = await stage.generation(f"{number} times:")
                drafters.append(self._start(stage, generation))
                contexts.append([*generation.prompt, *said[: len(said) // 2 + number]])
            drafts = [
                drafter.draft(context, _ENOUGH)
                for drafter, context in zip(drafters, contexts, strict=True)
                if drafter is not None
            ]
            for number, draft in itertools.cycle(enumerate(drafts)):
                token = await anext(draft, None)
                if token is None:
                    break
                drafted[number].append(token.id)
            for number, draft in enumerate(drafts):
                drafted[number] += [token.id async for token in draft]
            for drafter in drafters:
                if drafter is not None:
                    await drafter.aclose()

        self._play(check)
        return drafted


def _strategy(stage: Stage) -> DraftStrategy:
    return stage.route.strategy.plugin
