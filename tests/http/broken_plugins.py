"""Plugins that raise wherever they can; each class by one method."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Any, ClassVar

from specrouter.hookspecs import hookimpl
from specrouter.interfaces import AcceptancePolicy, Drafter, DraftStrategy, NativeVerifier, Support, TokenizerCheck
from specrouter.types import DraftToken


class Broken(Exception):
    """What all of them raise."""


class BrokenDrafter(Drafter):
    def __init__(self, raises: str) -> None:
        self.raises = raises

    async def draft(self, context: Sequence[int], max_tokens: int) -> AsyncGenerator[DraftToken]:
        if self.raises == "draft":
            raise Broken
        yield DraftToken(300, b" baba", 0.5)
        if self.raises == "draft later":
            raise Broken

    def observe(self, outcome: Any) -> None:
        if self.raises == "observe":
            raise Broken

    async def aclose(self) -> None:
        if self.raises == "aclose":
            raise Broken


class BrokenStrategy(DraftStrategy):
    """Raises in the method that the option names."""

    name = "broken"
    options_schema: ClassVar[dict[str, Any]] = {"type": "object", "properties": {"raises": {"type": "string"}}}

    def available(self) -> str | None:
        if self.options["raises"] == "available":
            raise Broken
        return None

    def draft_server(self) -> None:
        if self.options["raises"] == "draft_server":
            raise Broken

    def start(self, generation: Any) -> Drafter | None:
        if self.options["raises"] == "start":
            raise Broken
        return BrokenDrafter(self.options["raises"])


class BrokenVerifier(NativeVerifier):
    """Raises in the method that the option names."""

    name = "broken"
    options_schema: ClassVar[dict[str, Any]] = {"type": "object", "properties": {"raises": {"type": "string"}}}

    async def inspect(self, target: Any) -> Support:
        if self.options["raises"] == "inspect":
            raise Broken
        return Support()

    def accompany(self, generation: Any, drafter: Any, support: Any) -> Any:
        raise Broken


class BrokenPolicy(AcceptancePolicy):
    """Raises when asked what it covers."""

    name = "broken"

    def covers(self, sampling: Any) -> bool:
        raise Broken

    def accept(self, draft: Any, verification: Any, sampling: Any, rng: Any) -> Any:
        raise Broken


class BrokenCheck(TokenizerCheck):
    """Raises."""

    name = "broken"

    async def check(self, draft: Any, target: Any) -> Any:
        raise Broken


@hookimpl
def specrouter_draft_strategies() -> list[Any]:
    return [BrokenStrategy]


@hookimpl
def specrouter_verifiers() -> list[Any]:
    return [BrokenVerifier]


@hookimpl
def specrouter_acceptance_policies() -> list[Any]:
    return [BrokenPolicy]


@hookimpl
def specrouter_tokenizer_checks() -> list[Any]:
    return [BrokenCheck]
