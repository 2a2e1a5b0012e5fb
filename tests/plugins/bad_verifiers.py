"""A good step verifier, and bad verifiers, each of which breaks a rule."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import anyio
from specrouter_plugins.inject import Inject

from specrouter.errors import UpstreamError
from specrouter.hookspecs import hookimpl
from specrouter.interfaces import (
    Companion,
    Drafter,
    Generation,
    RoundCosts,
    StepSession,
    StepVerifier,
    Support,
    Verifier,
)
from specrouter.types import Delta, Verification
from specrouter.upstream import LlamaServer


class WorksEverywhere(Inject):
    """Says so."""

    name = "works-everywhere"

    async def inspect(self, target: LlamaServer) -> Support:
        await target.call("GET", "/health")
        return Support()


class TakesFailureForLack(Inject):
    """A target that does not answer is one that lacks something."""

    name = "takes-failure-for-lack"

    async def inspect(self, target: LlamaServer) -> Support:
        try:
            return await super().inspect(target)
        except UpstreamError:
            return Support()


class AccompaniesWithoutCounts(Inject):
    """Is not asked how it was."""

    name = "accompanies-without-counts"

    def accompany(self, generation: Generation, drafter: Drafter, support: Support) -> Companion:
        companion = super().accompany(generation, drafter, support)
        del companion.counts
        return companion


class _Companion(Companion):
    def __init__(self, companion: Companion, generation: Generation, drafter: Drafter) -> None:
        self.counts = companion.counts
        self.companion = companion
        self.target = generation.target
        self.prompt = generation.prompt
        self.drafter = drafter


class StaysAfterTheEnd(Inject):
    """Hopes for more."""

    name = "stays-after-the-end"

    class companion(_Companion):  # noqa: N801
        async def run(self, deltas: AsyncIterator[Sequence[Delta]]) -> None:
            await self.companion.run(deltas)
            await anyio.sleep_forever()

    def accompany(self, generation: Generation, drafter: Drafter, support: Support) -> Companion:
        return self.companion(super().accompany(generation, drafter, support), generation, drafter)


class LeavesBeforeTheEnd(StaysAfterTheEnd):
    """Has seen enough."""

    name = "leaves-before-the-end"

    class companion(_Companion):  # noqa: N801
        async def run(self, deltas: AsyncIterator[Sequence[Delta]]) -> None:
            async for _ in deltas:
                return


class PrimesAfterTheEnd(StaysAfterTheEnd):
    """What it has begun is sent when nobody needs it."""

    name = "primes-after-the-end"

    class companion(_Companion):  # noqa: N801
        async def run(self, deltas: AsyncIterator[Sequence[Delta]]) -> None:
            await self.companion.run(deltas)
            self.task = asyncio.get_running_loop().create_task(self.target.tokenize("x"))


class RaisesGroups(StaysAfterTheEnd):
    """A bare task group wraps what its tasks raise."""

    name = "raises-groups"

    class companion(_Companion):  # noqa: N801
        async def run(self, deltas: AsyncIterator[Sequence[Delta]]) -> None:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._draft)
                async for _ in deltas:
                    pass

        async def _draft(self) -> None:
            async for _ in self.drafter.draft(self.prompt, 8):
                pass


# -- step verifiers ------------------------------------------------------------------------------------------


END = 259
"""The fake's `<|im_end|>`."""


class OneByOneSession(StepSession):
    """A request per position."""

    def __init__(self, target: LlamaServer, body: Mapping[str, Any]) -> None:
        self.target = target
        self.body = body

    async def verify(self, context: Sequence[int], draft: Sequence[int]) -> Verification:
        tokens = [await self.ask([*context, *draft[:place]]) for place in range(len(draft) + 1)]
        return Verification(tokens, [{token: 1.0} for token in tokens], ends=frozenset([END]))

    async def ask(self, prompt: Sequence[int]) -> int:
        said = [token async for event in self.target.generate(prompt, 1) for token in event.tokens]
        return said[0] if said else END


class OneByOne(StepVerifier):
    """Asks the target for a token at a time; needs two slots, as it says."""

    name = "one-by-one"
    stands_down = False
    session: type[OneByOneSession] = OneByOneSession

    def __init_subclass__(cls) -> None:
        cls.name = cls.__name__

    async def inspect(self, target: LlamaServer) -> Support:
        await target.describe()
        if target.info.slots == 1:
            return Support(reason=f"server {target.name} has one slot")
        await target.tokenize("x")
        return Support(costs=RoundCosts(0.001, [0.001, 0.001, 0.001, 0.001]))

    def obstacle(self, target: LlamaServer, body: Mapping[str, Any]) -> str | None:
        return "mirostat" if body.get("mirostat") else None

    def start(self, generation: Generation, body: Mapping[str, Any], *, distributions: bool) -> StepSession:
        return self.session(generation.target, body)


class ForgetsTheLastPosition(OneByOne):
    """K tokens for a draft of K."""

    class session(OneByOneSession):  # noqa: N801
        async def verify(self, context: Sequence[int], draft: Sequence[int]) -> Verification:
            found = await super().verify(context, draft)
            return Verification(found.tokens[:-1])


class BelievesTheDraft(OneByOne):
    """Says that the target says what was drafted."""

    class session(OneByOneSession):  # noqa: N801
        async def verify(self, context: Sequence[int], draft: Sequence[int]) -> Verification:
            found = await super().verify(context, draft)
            return Verification([*draft, found.tokens[-1]], found.probabilities)


class AsksInATaskGroup(OneByOne):
    """With a seed, all positions at once: what fails there comes out in a group."""

    class session(OneByOneSession):  # noqa: N801
        async def verify(self, context: Sequence[int], draft: Sequence[int]) -> Verification:
            if "seed" in self.body:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self.ask, context)
            return await super().verify(context, draft)


class HasNoCosts(OneByOne):
    """Has not measured."""

    async def inspect(self, target: LlamaServer) -> Support:
        return replace(await super().inspect(target), costs=None)


class CompilesGrammars(OneByOne):
    """Takes every body for a sane one."""

    def obstacle(self, target: LlamaServer, body: Mapping[str, Any]) -> str | None:
        return "a grammar" if str(body["grammar"]).strip() else None


class AsksWhenStarted(OneByOne):
    """Is early."""

    def start(self, generation: Generation, body: Mapping[str, Any], *, distributions: bool) -> StepSession:
        self.task = asyncio.get_running_loop().create_task(generation.target.tokenize("x"))
        return super().start(generation, body, distributions=distributions)


@hookimpl
def specrouter_verifiers() -> list[type[Verifier]]:
    classes = [value for value in globals().values() if isinstance(value, type) and value.__module__ == __name__]
    return [cls for cls in classes if issubclass(cls, Verifier)]
