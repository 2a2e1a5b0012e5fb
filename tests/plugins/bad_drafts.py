"""A good draft strategy, and bad ones, each of which breaks a rule. The conformance tests must tell them apart."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import anyio

from specrouter.errors import UpstreamError
from specrouter.hookspecs import hookimpl
from specrouter.interfaces import (
    Drafter,
    DraftStrategy,
    Generation,
    JsonSchema,
)
from specrouter.types import DraftToken, Outcome
from specrouter.upstream import LlamaServer


def knock(server: LlamaServer) -> None:
    """Connect as a plain function does: nothing else happens meanwhile."""
    host, port = server.config.url.removeprefix("http://").split(":")
    socket.create_connection((host, int(port))).close()


class GoodDrafter(Drafter):
    """Streams from the draft server."""

    def __init__(self, strategy: GoodStrategy, generation: Generation) -> None:
        self.strategy = strategy
        self.generation = generation
        self.server = strategy.server

    async def draft(self, context: Sequence[int], max_tokens: int) -> AsyncGenerator[DraftToken]:
        async for event in self.server.generate(context, max_tokens):
            if event.tokens:
                yield self.made(DraftToken(event.tokens[0], event.text.encode(), 0.9))

    def made(self, token: DraftToken) -> DraftToken:
        return token


class GoodStrategy(DraftStrategy):
    """Drafts on a server."""

    name = "good"
    options_schema: ClassVar[JsonSchema] = {
        "type": "object",
        "properties": {"server": {"type": "string", "format": "server"}},
        "required": ["server"],
        "additionalProperties": False,
    }
    drafter: type[GoodDrafter] = GoodDrafter

    def __init_subclass__(cls) -> None:
        cls.name = cls.__name__

    def __init__(self, options: Mapping[str, Any], servers: Mapping[str, LlamaServer]) -> None:
        super().__init__(options, servers)
        self.server = servers[options["server"]]

    def draft_server(self) -> LlamaServer | None:
        return self.server

    def start(self, generation: Generation) -> Drafter | None:
        return self.drafter(self, generation)


class ReturnedByNoHook(GoodStrategy):
    """Nobody can use it."""


class WithoutDocstring(GoodStrategy):
    pass


class FailsInInit(GoodStrategy):
    """Knows its options by another name."""

    def __init__(self, options: Mapping[str, Any], servers: Mapping[str, LlamaServer]) -> None:
        super().__init__(options, servers)
        self.server = servers[options["draft_server"]]


class RefusesGoodOptions(GoodStrategy):
    """Has a schema of something else."""

    options_schema: ClassVar[JsonSchema] = {"type": "object", "properties": {}, "additionalProperties": False}


class TakesAnyOption(GoodStrategy):
    """A typing mistake in an option is not seen."""

    options_schema: ClassVar[JsonSchema] = {**GoodStrategy.options_schema, "additionalProperties": True}


class ServerIsJustAText(GoodStrategy):
    """A server that does not exist makes it fail."""

    options_schema: ClassVar[JsonSchema] = {
        **GoodStrategy.options_schema,
        "properties": {"server": {"type": "string"}},
    }


class ConnectsInInit(GoodStrategy):
    """Sees whether its server is there."""

    def __init__(self, options: Mapping[str, Any], servers: Mapping[str, LlamaServer]) -> None:
        super().__init__(options, servers)
        knock(self.server)


class AvailableIsTrue(GoodStrategy):
    """Says True for yes."""

    def available(self) -> Any:
        return True


class AvailableReadsAFile(GoodStrategy):
    """Looks up whether it is to draft."""

    def available(self) -> str | None:
        with contextlib.suppress(FileNotFoundError):
            return Path("drafting.off").read_text()
        return None


class DraftServerIsAName(GoodStrategy):
    """Returns what the options say."""

    def draft_server(self) -> Any:
        return self.options["server"]


class StartConnects(GoodStrategy):
    """Sees whether its server is there, and lets all requests of the router wait."""

    def start(self, generation: Generation) -> Drafter | None:
        knock(self.server)
        return super().start(generation)


class StartBeginsATask(GoodStrategy):
    """Is early."""

    def start(self, generation: Generation) -> Drafter | None:
        self.task = asyncio.get_running_loop().create_task(self.server.tokenize("x"))
        return super().start(generation)


class OneDrafterForAll(GoodStrategy):
    """Saves memory."""

    only: Drafter | None = None

    def start(self, generation: Generation) -> Drafter | None:
        self.only = self.only or super().start(generation)
        return self.only


class StartReturnsText(GoodStrategy):
    """Is no drafter."""

    def start(self, generation: Generation) -> Any:
        return "drafter"


class DraftReturnsAList(GoodStrategy):
    """All at once."""

    class drafter(GoodDrafter):  # noqa: N801
        async def draft(self, context: Sequence[int], max_tokens: int) -> Any:
            return []


class DraftsIds(GoodStrategy):
    """Without pieces."""

    class drafter(GoodDrafter):  # noqa: N801
        def made(self, token: DraftToken) -> Any:
            return token.id


class NeverDrafts(GoodStrategy):
    """Has nothing to say."""

    class drafter(GoodDrafter):  # noqa: N801
        async def draft(self, context: Sequence[int], max_tokens: int) -> AsyncGenerator[DraftToken]:
            for token in ():
                yield token


class DraftsTooMuch(GoodStrategy):
    """One more than was asked for."""

    class drafter(GoodDrafter):  # noqa: N801
        def draft(self, context: Sequence[int], max_tokens: int) -> AsyncGenerator[DraftToken]:
            return super().draft(context, max_tokens + 1)


class DraftsPadding(GoodStrategy):
    """Ids that no token has."""

    class drafter(GoodDrafter):  # noqa: N801
        def made(self, token: DraftToken) -> DraftToken:
            return replace(token, id=token.id + 100_000)


class StripsPieces(GoodStrategy):
    """The space at the beginning of a word is lost."""

    class drafter(GoodDrafter):  # noqa: N801
        def made(self, token: DraftToken) -> DraftToken:
            return replace(token, piece=token.piece.strip())


class GivesLogarithms(GoodStrategy):
    """A log probability is no probability."""

    class drafter(GoodDrafter):  # noqa: N801
        def made(self, token: DraftToken) -> DraftToken:
            return replace(token, probability=-0.1)


class GivesTopOnly(GoodStrategy):
    """A part of a distribution."""

    class drafter(GoodDrafter):  # noqa: N801
        def made(self, token: DraftToken) -> DraftToken:
            return replace(token, distribution={token.id: 0.9})


class ChangesContext(GoodStrategy):
    """Writes down what it drafted in the list it was given."""

    class drafter(GoodDrafter):  # noqa: N801
        async def draft(self, context: Any, max_tokens: int) -> AsyncGenerator[DraftToken]:
            async for token in super().draft(list(context), max_tokens):
                context.append(token.id)
                yield token


class WaitsForEver(GoodStrategy):
    """Tries again until a server is well."""

    class drafter(GoodDrafter):  # noqa: N801
        async def draft(self, context: Sequence[int], max_tokens: int) -> AsyncGenerator[DraftToken]:
            try:
                async for token in super().draft(context, max_tokens):
                    yield token
            except UpstreamError:
                await anyio.sleep_forever()


class LeavesATask(GoodStrategy):
    """Goes on in the background."""

    class drafter(GoodDrafter):  # noqa: N801
        async def draft(self, context: Sequence[int], max_tokens: int) -> AsyncGenerator[DraftToken]:
            self.task = asyncio.get_running_loop().create_task(anyio.sleep_forever())
            async for token in super().draft(context, max_tokens):
                yield token


class CannotBeClosed(GoodStrategy):
    """Has last words."""

    class drafter(GoodDrafter):  # noqa: N801
        async def draft(self, context: Sequence[int], max_tokens: int) -> AsyncGenerator[DraftToken]:
            async for token in super().draft(context, max_tokens):
                try:
                    yield token
                except GeneratorExit:
                    yield token


class CannotBeCancelled(GoodStrategy):
    """Takes a cancelled request for one that failed."""

    class drafter(GoodDrafter):  # noqa: N801
        async def draft(self, context: Sequence[int], max_tokens: int) -> AsyncGenerator[DraftToken]:
            try:
                async for token in super().draft(context, max_tokens):
                    yield token
            except asyncio.CancelledError:
                yield DraftToken(300, b"?")


class RaisesKeyError(GoodStrategy):
    """Trusts what a server says."""

    class drafter(GoodDrafter):  # noqa: N801
        async def draft(self, context: Sequence[int], max_tokens: int) -> AsyncGenerator[DraftToken]:
            answer = await self.server.call("POST", "/detokenize", {"tokens": list(context[-1:])})
            assert isinstance(answer["content"], str)
            async for token in super().draft(context, max_tokens):
                yield token


class DraftsOnce(GoodStrategy):
    """Remembers for which context it has drafted, and does not again."""

    class drafter(GoodDrafter):  # noqa: N801
        def __init__(self, strategy: GoodStrategy, generation: Generation) -> None:
            super().__init__(strategy, generation)
            self.seen: list[Sequence[int]] = []

        async def draft(self, context: Sequence[int], max_tokens: int) -> AsyncGenerator[DraftToken]:
            if context in self.seen:
                return
            self.seen.append(context)
            async for token in super().draft(context, max_tokens):
                yield token


class ObservesLater(GoodStrategy):
    """Nobody awaits it."""

    class drafter(GoodDrafter):  # noqa: N801
        async def observe(self, outcome: Outcome) -> None:  # type: ignore[override]
            pass


class ObservesAfterDraftsOnly(GoodStrategy):
    """Divides by the number of drafts."""

    class drafter(GoodDrafter):  # noqa: N801
        drafts = 0

        def observe(self, outcome: Outcome) -> None:
            self.rate = outcome.accepted / self.drafts


class ClosesOnce(GoodStrategy):
    """Has a list with one thing to let go."""

    class drafter(GoodDrafter):  # noqa: N801
        def __init__(self, strategy: GoodStrategy, generation: Generation) -> None:
            super().__init__(strategy, generation)
            self.held = [1]

        async def aclose(self) -> None:
            self.held.pop()


class SharesContext(GoodStrategy):
    """The strategy has the context, and so all requests have one."""

    said: list[int]

    class drafter(GoodDrafter):  # noqa: N801
        strategy: SharesContext

        async def draft(self, context: Sequence[int], max_tokens: int) -> AsyncGenerator[DraftToken]:
            self.strategy.said = list(context)
            for _ in range(max_tokens):
                async for token in super().draft(self.strategy.said, 1):
                    self.strategy.said.append(token.id)
                    yield token


@hookimpl
def specrouter_draft_strategies() -> list[type[DraftStrategy]]:
    classes = [value for value in globals().values() if isinstance(value, type) and value.__module__ == __name__]
    return [cls for cls in classes if issubclass(cls, DraftStrategy) and cls is not ReturnedByNoHook]
