"""Conformance tests for native verifiers."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from typing import ClassVar

import anyio
import anyio.lowlevel

from specrouter.errors import UpstreamError, UpstreamUnavailable
from specrouter.interfaces import Companion, Drafter, Generation, NativeVerifier, Support
from specrouter.tasks import background
from specrouter.testing.fake_http import hang
from specrouter.testing.toy_model import ToyModel
from specrouter.types import Delta, DraftCounts, DraftToken

from .faults import FAULTS
from .plugin import staged
from .rules import Rule
from .stage import Stage
from .verifiers import VerifierConformance

_STEP = 0.004
"""Seconds between two tokens of an answer: time for a companion to do something."""


class _Answers(Drafter):
    """Drafts what a model would say. `open` counts drafts that were not closed; it fails after `fails_after` tokens."""

    def __init__(self, model: ToyModel, fails_after: int | None = None) -> None:
        self.open = 0
        self._model = model
        self._fails_after = fails_after

    async def draft(self, context: Sequence[int], max_tokens: int) -> AsyncGenerator[DraftToken]:
        """Token by token."""
        self.open += 1
        try:
            said = list(context)
            for number in range(max_tokens):
                await anyio.lowlevel.checkpoint()
                if number == self._fails_after:
                    raise UpstreamUnavailable("server 'drafter': the connection broke", server="drafter")
                token = self._model.next_token(said)
                if token is None:
                    return
                yield DraftToken(token, self._model.vocabulary.pieces[token], 0.9)
                said.append(token)
        finally:
            self.open -= 1


class NativeVerifierConformance(VerifierConformance):
    """Tests for a verifier whose target accepts by itself.

    class TestMine(NativeVerifierConformance):
        verifier = MyVerifier
    """

    verifier: ClassVar[type[NativeVerifier]]

    @staged
    async def test_accompanying_is_quiet(self, stage: Stage) -> None:
        """No I/O before `run`."""
        self._companion(stage, await self._request(stage), _Answers(stage.fakes["target"].model))

    @staged
    async def test_it_follows_an_answer(self, stage: Stage) -> None:
        """Whole, with the ids of its tokens and without; and another one."""
        request = await self._request(stage)
        for with_ids in (True, False, False):
            drafter = _Answers(stage.fakes["target"].model)
            companion = self._companion(stage, request, drafter)
            await self._run(stage, companion, _deltas(stage, with_ids=with_ids), "an answer that came to its end")
            await self._after_the_end(stage, drafter, "when the answer had ended")

    @staged
    async def test_it_ends_when_cancelled(self, stage: Stage) -> None:
        """At every few tokens of an answer."""
        request = await self._request(stage)
        for number in (0, 1, 4, 12):
            drafter = _Answers(stage.fakes["target"].model)
            companion = self._companion(stage, request, drafter)
            is_reached = anyio.Event()
            async with background() as tasks:
                tasks.start_soon(companion.run, _deltas(stage, with_ids=False, stops_at=number, reached=is_reached))
                await is_reached.wait()
            await self._after_the_end(stage, drafter, "when run() was cancelled")

    @staged
    async def test_a_drafter_that_fails(self, stage: Stage) -> None:
        """At once, and after some tokens."""
        request = await self._request(stage)
        for number in (0, 3):
            drafter = _Answers(stage.fakes["target"].model, fails_after=number)
            companion = self._companion(stage, request, drafter)
            try:
                await companion.run(_deltas(stage, with_ids=False))
            except UpstreamUnavailable:
                pass
            except Exception as error:
                self._judge.broken(Rule.DRAFTER_FAULTS, f"a drafter raised UpstreamUnavailable, and run() {error!r}")
            await self._after_the_end(stage, drafter, "when its drafter had failed")

    @staged
    async def test_side_requests_that_fail(self, stage: Stage) -> None:
        """The answer comes all the same, and the companion ends with it."""
        request = await self._request(stage)
        for name, fault in (*FAULTS.items(), ("does not answer", hang)):
            drafter = _Answers(stage.fakes["target"].model)
            companion = self._companion(stage, request, drafter)
            stage.reply(fault)
            how = f"an answer, while the target otherwise {name}"
            await self._run(stage, companion, _deltas(stage, with_ids=False), how)
            stage.reply(None)
            await self._after_the_end(stage, drafter, f"after {how}")

    # -- steps ---------------------------------------------------------------------------------------------

    async def _request(self, stage: Stage) -> tuple[Generation, Support]:
        await stage.ask()
        return await stage.generation(), await self._inspect(stage)

    def _companion(self, stage: Stage, request: tuple[Generation, Support], drafter: Drafter) -> Companion:
        generation, support = request
        with stage.quiet(Rule.SESSION, "accompany()"):
            companion: Companion = self._verifier(stage).accompany(generation, drafter, support)
        is_one = isinstance(companion, Companion)
        self._judge.expect(is_one, Rule.SESSION, f"accompany() returned {companion!r}, which is no Companion")
        counts = getattr(companion, "counts", None)
        has_counts = isinstance(counts, DraftCounts)
        self._judge.expect(
            has_counts, Rule.SESSION, f"the companion has the counts {counts!r}, which are no DraftCounts"
        )
        return companion

    async def _run(
        self, stage: Stage, companion: Companion, deltas: AsyncGenerator[Sequence[Delta]], what: str
    ) -> None:
        read_all = False
        is_faulty = bool(stage.fakes["target"].replies)

        async def watched() -> AsyncIterator[Sequence[Delta]]:
            nonlocal read_all
            async with aclosing(deltas) as items:
                async for item in items:
                    yield item
            read_all = True

        try:
            with anyio.fail_after(self.patience):
                await companion.run(watched())
        except TimeoutError:
            self._judge.broken(Rule.FOLLOWS, f"run() has not returned after {what}")
        except UpstreamError as error:
            if not is_faulty:
                self._judge.broken(Rule.FOLLOWS, f"run() raised {error!r} within {what}")
        except Exception as error:
            rule = Rule.UPSTREAM_ERRORS if is_faulty else Rule.FOLLOWS
            self._judge.broken(rule, f"run() raised {error!r} within {what}")
        # To give up where the target does not answer is right.
        self._judge.expect(read_all or is_faulty, Rule.FOLLOWS, f"run() returned before the end of {what}")

    async def _after_the_end(self, stage: Stage, drafter: _Answers, when: str) -> None:
        requests = stage.requests
        await stage.let_go(when)
        self._judge.expect(stage.requests == requests, Rule.ENDS, f"{when}, it sent another request")
        self._judge.expect(not drafter.open, Rule.LETS_GO, f"{when}, a draft was not closed")


async def _deltas(
    stage: Stage, *, with_ids: bool, stops_at: int | None = None, reached: anyio.Event | None = None
) -> AsyncGenerator[Sequence[Delta]]:
    """What the target says, token by token; at token `stops_at` it says so and then nothing more."""
    model = stage.fakes["target"].model
    for number, token in enumerate(model.tokens):
        if number == stops_at and reached is not None:
            reached.set()
            await anyio.sleep_forever()
        await anyio.sleep(_STEP)
        text = model.vocabulary.pieces[token].decode()
        yield [Delta(text=text, token_ids=(token,) if with_ids else (), received=time.monotonic())]
    yield [Delta(finished=True, received=time.monotonic())]
