"""Conformance tests for step verifiers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import anyio

from specrouter.interfaces import RoundCosts, StepSession, StepVerifier
from specrouter.tasks import background
from specrouter.testing.fake_http import hang
from specrouter.types import Sampling, Verification

from .faults import FAULTS
from .plugin import RAISED, staged
from .rules import Rule
from .stage import Stage
from .verifiers import VerifierConformance

_BODIES: Sequence[dict[str, Any]] = (
    {},
    {"temperature": 0},
    {"temperature": None, "samplers": None, "grammar": None, "mirostat": None},
    {"temperature": "hot", "samplers": "edkypmxt", "logit_bias": 7, "stop": {}, "mirostat": "2"},
    {"samplers": [1, None, "adaptive_p"], "mirostat": 2, "grammar": "root ::= x", "n_predict": -1},
    {"seed": 7, "n_probs": 5, "response_fields": [], "no_such_field": True},
)

_SHARES = 1e-3


class StepVerifierConformance(VerifierConformance):
    """Tests for a verifier that asks the target step by step.

    class TestMine(StepVerifierConformance):
        verifier = MyVerifier
    """

    verifier: ClassVar[type[StepVerifier]]

    @staged
    async def test_it_knows_its_costs(self, stage: Stage) -> None:
        """Of rounds with drafts up to the longest one."""
        await stage.ask()
        costs = (await self._inspect(stage)).costs
        if not isinstance(costs, RoundCosts):
            self._judge.broken(Rule.COSTS, f"Support.costs is {costs!r}, which are no RoundCosts")
        self._judge.expect(costs.longest_draft > 0, Rule.COSTS, f"no draft is possible with {costs}")
        times = [costs.plain, *costs.rounds]
        self._judge.expect(all(t > 0 and math.isfinite(t) for t in times), Rule.COSTS, f"{costs} are no seconds")

    @staged
    async def test_obstacles(self, stage: Stage) -> None:
        """Of sane and other bodies."""
        await stage.ask()
        await self._inspect(stage)
        verifier, target = self._verifier(stage), stage.servers["target"]
        for body in _BODIES:
            try:
                with stage.quiet(Rule.OBSTACLE, "obstacle()"):
                    found = verifier.obstacle(target, body)
            except Exception as error:
                if isinstance(error, AssertionError):
                    raise
                self._judge.broken(Rule.OBSTACLE, f"obstacle({body}) raised {error!r}")
            is_reason = found is None or (isinstance(found, str) and bool(found.strip()))
            self._judge.expect(is_reason, Rule.OBSTACLE, f"obstacle({body}) returned {found!r}")
        plain = verifier.obstacle(target, {"temperature": 0})
        self._judge.expect(plain is None, Rule.OBSTACLE, f"for a request at temperature 0, obstacle() says {plain!r}")

    @staged
    async def test_starting_is_quiet(self, stage: Stage) -> None:
        """No I/O before the first round."""
        await self._session(stage, {"temperature": 0})

    @staged
    async def test_positions(self, stage: Stage) -> None:
        """Right drafts, wrong drafts and no draft, with a seed and without, with distributions and without."""
        for body in ({"temperature": 0}, {"temperature": 0.8}, {"temperature": 0.8, "seed": 7}):
            for distributions in (False, True):
                session, prompt = await self._session(stage, body, distributions=distributions)
                said = stage.fakes["target"].model.tokens
                for place, draft in ((0, []), (0, said[:2]), (5, said[5:8]), (5, [said[5], said[0]]), (9, said[1:2])):
                    await self._look_at(stage, session, [*prompt, *said[:place]], draft, distributions=distributions)
        await stage.let_go("after verify()")

    @staged
    async def test_a_target_that_fails_within_an_answer(self, stage: Stage) -> None:
        """Then an error is all there is to say."""
        bodies = ({"temperature": 0}, {"temperature": 0.8, "seed": 7})
        sessions = [await self._session(stage, body) for body in bodies]
        draft = stage.fakes["target"].model.tokens[:2]
        for name, fault in FAULTS.items():
            stage.reply(fault)
            for session, prompt in sessions:
                await self._verify_despite(session, prompt, draft, name)
        stage.in_fakes(stage.fakes["target"].stop)
        for session, prompt in sessions:
            await self._verify_despite(session, prompt, draft, "is gone")

    @staged
    async def test_a_round_can_be_cancelled(self, stage: Stage) -> None:
        """While the target does not answer."""
        session, prompt = await self._session(stage, {"temperature": 0.5, "seed": 3})
        stage.reply(hang)
        before = stage.requests
        async with background() as tasks:
            tasks.start_soon(session.verify, prompt, stage.fakes["target"].model.tokens[:2])
            while stage.requests == before:
                await anyio.sleep(0.002)
        await stage.let_go("when verify() was cancelled")

    # -- steps ---------------------------------------------------------------------------------------------

    async def _session(
        self, stage: Stage, body: dict[str, Any], *, distributions: bool = False
    ) -> tuple[StepSession, Sequence[int]]:
        await stage.ask()
        await self._inspect(stage)
        sampling = Sampling(temperature=body["temperature"], seed=body.get("seed"))
        generation = await stage.generation(sampling=sampling)
        with stage.quiet(Rule.SESSION, "start()"):
            session = self._verifier(stage).start(generation, body, distributions=distributions)
        is_one = isinstance(session, StepSession)
        self._judge.expect(is_one, Rule.SESSION, f"start() returned {session!r}, which is no StepSession")
        return session, generation.prompt

    async def _look_at(
        self, stage: Stage, session: StepSession, context: list[int], draft: list[int], *, distributions: bool
    ) -> None:
        given = (list(context), list(draft))
        found = await session.verify(context, draft)
        self._judge.expect(given == (context, draft), Rule.INPUTS_STAY, "verify() changed what it was given")
        positions = len(draft) + 1
        is_one = isinstance(found, Verification) and len(found.tokens) == positions
        self._judge.expect(is_one, Rule.POSITIONS, f"for a draft of {len(draft)} tokens, verify() returned {found!r}")
        model = stage.fakes["target"].model
        for place in range(positions):
            wanted = model.next_token([*context, *draft[:place]])
            said = f"at position {place} of a draft, the target says {wanted}, verify() {found.tokens[place]}"
            self._judge.expect(wanted in (found.tokens[place], None), Rule.EXACT, said)
        for token, piece in found.pieces.items():
            said = f"verify() returned the piece {piece!r} for token {token}"
            self._judge.expect(piece in (b"", model.vocabulary.pieces[token]), Rule.PIECES, said)
        if not distributions:
            return
        rows = found.probabilities
        if rows is None or len(rows) != positions:
            self._judge.broken(
                Rule.POSITIONS, f"asked for distributions at {positions} positions, verify() has {rows!r}"
            )
        for row in rows:
            total = math.fsum(row.values())
            self._judge.expect(abs(total - 1) < _SHARES, Rule.POSITIONS, f"a distribution sums to {total:g}")

    async def _verify_despite(
        self, session: StepSession, prompt: Sequence[int], draft: Sequence[int], name: str
    ) -> None:
        found = await self._despite(f"the target {name}, and verify()", lambda: session.verify(prompt, draft))
        if found is not RAISED:
            self._judge.broken(Rule.UPSTREAM_ERRORS, f"the target {name}, and verify() returned {found!r}")
