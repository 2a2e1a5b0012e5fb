"""Answers of the step engine keep the target's distribution under rejection sampling, with its governor at work.

Drafts are drawn, with their distributions, and the governor has seen that unlikely tokens do not come true.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import anyio.lowlevel
import pytest
from specrouter_plugins.sampled import Sampled
from stepwise_support import VERIFIER, ToyTarget

from specrouter.draft_length import StepGovernor, StepMemory
from specrouter.governor import Calibration
from specrouter.interfaces import Drafter, Generation, RoundCosts, StepSession
from specrouter.plugins import Bound, PluginInfo
from specrouter.stepwise import StepwiseAnswer
from specrouter.testing import PROMPT, ToyDistribution, ToyModel, chi_square
from specrouter.types import DraftToken, Sampling, Verification

pytestmark = pytest.mark.anyio

ANSWERS = 2_000
LENGTH = 3

TARGET = ToyDistribution.random(3, kept=4)
DRAFTER = TARGET.blend(ToyDistribution.random(4, kept=4), 0.5)
PIECES = dict.fromkeys(range(4), b"x")
COSTS = RoundCosts(plain=20.0, rounds=[20.0, 26.0, 31.0])


def experienced() -> StepMemory:
    """What earlier answers, with another drafter, have taught."""
    calibration = Calibration.fresh(is_greedy=False)
    for _ in range(50):
        calibration.add(0.95, accepted=True)
        calibration.add(None, accepted=True)
        for unlikely in (0.05, 0.15, 0.25, 0.35):
            calibration.add(unlikely, accepted=False)
    return StepMemory(calibration, COSTS.plain, COSTS.rounds, list(COSTS.rounds))


class Drawing(Drafter):
    """Draws its tokens."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    async def draft(self, context: Sequence[int], max_tokens: int) -> AsyncGenerator[DraftToken]:
        said = list(context)
        for _ in range(max_tokens):
            await anyio.lowlevel.checkpoint()
            row = DRAFTER.distribution(said)
            token = DRAFTER.draw(said, self.rng.random())
            yield DraftToken(token, b"", row[token], row)
            said.append(token)


class Saying(StepSession):
    """Says what the target draws."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.asked = 0

    async def verify(self, context: Sequence[int], draft: Sequence[int]) -> Verification:
        await anyio.lowlevel.checkpoint()
        self.asked += len(draft)
        contexts = [[*context, *draft[:count]] for count in range(len(draft) + 1)]
        tokens = [TARGET.draw(said, self.rng.random()) for said in contexts]
        return Verification(tokens, [TARGET.distribution(said) for said in contexts], pieces=PIECES)


async def test_the_length_of_drafts_does_not_depend_on_what_was_drawn() -> None:
    rng = random.Random(5)
    target = ToyTarget(ToyModel(""))
    policy = Bound(PluginInfo("accept", "sampled", Sampled, "specrouter", "1"), Sampled({"method": "rejection"}, {}))
    counts: Counter[tuple[int, ...]] = Counter()
    session = Saying(rng)
    for seed in range(ANSWERS):
        answer = StepwiseAnswer(
            Generation("fast", target, PROMPT, Sampling(temperature=1.0, seed=seed), LENGTH),
            session,
            Drawing(rng),
            policy,
            VERIFIER,
            StepGovernor(experienced(), stands_down=True),
            sampling={},
            stops=(),
            pieces={},
        )
        async with answer.drafting(), aclosing(answer.say()) as said:
            tokens = [token.token async for token in said]
        assert answer.reason is None
        counts[tuple(token for token in tokens if token is not None)] += 1
    assert session.asked > ANSWERS / 4
    assert chi_square(counts, TARGET.joint(PROMPT, LENGTH)).p_value > 0.001
