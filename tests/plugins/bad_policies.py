"""A good acceptance policy, and bad ones; bad tokenizer checks. Each breaks a rule."""

from __future__ import annotations

import random
from collections.abc import Sequence

from specrouter_plugins.sampled import Sampled
from specrouter_plugins.vocabulary import Vocabulary

from specrouter.errors import IncompleteDistribution
from specrouter.hookspecs import hookimpl
from specrouter.interfaces import (
    AcceptancePolicy,
    TokenizerCheck,
)
from specrouter.matching import longest_match
from specrouter.types import Acceptance, DraftToken, Mismatch, Sampling, Verification
from specrouter.upstream import LlamaServer


class Matching(AcceptancePolicy):
    """A good one."""

    name = "matching"

    def __init_subclass__(cls) -> None:
        cls.name = cls.__name__

    def covers(self, sampling: Sampling) -> bool:
        return True

    def accept(
        self, draft: Sequence[DraftToken], verification: Verification, sampling: Sampling, rng: random.Random
    ) -> Acceptance:
        return longest_match(draft, verification.tokens)


class ComparesNone(Matching):
    """A temperature may be None."""

    def covers(self, sampling: Sampling) -> bool:
        return sampling.temperature >= 0  # type: ignore[operator]


class HasDiceOfItsOwn(Matching):
    """Sometimes accepts less than it could."""

    def accept(
        self, draft: Sequence[DraftToken], verification: Verification, sampling: Sampling, rng: random.Random
    ) -> Acceptance:
        lucky = random.random() < 0.5
        return longest_match(draft, verification.tokens) if lucky else Acceptance(0, verification.tokens[0])


class CountsTheNextToken(Matching):
    """Takes the next token for an accepted one."""

    def accept(
        self, draft: Sequence[DraftToken], verification: Verification, sampling: Sampling, rng: random.Random
    ) -> Acceptance:
        found = longest_match(draft, verification.tokens)
        return Acceptance(found.accepted + 1, found.next_token)


class SaysWhatWasDrafted(Matching):
    """The next token is the draft's, even where the target never says it."""

    def accept(
        self, draft: Sequence[DraftToken], verification: Verification, sampling: Sampling, rng: random.Random
    ) -> Acceptance:
        found = longest_match(draft, verification.tokens)
        return found if found.accepted == len(draft) else Acceptance(found.accepted, draft[found.accepted].id)


class DrawsFirst(Sampled):
    """Finds out that it cannot decide when it has drawn."""

    name = "draws-first"

    def accept(
        self, draft: Sequence[DraftToken], verification: Verification, sampling: Sampling, rng: random.Random
    ) -> Acceptance:
        rng.random()
        return super().accept(draft, verification, sampling, rng)


class NeedsWhatItDoesNotNeed(Matching):
    """Says that it needs no distributions."""

    def accept(
        self, draft: Sequence[DraftToken], verification: Verification, sampling: Sampling, rng: random.Random
    ) -> Acceptance:
        if verification.probabilities is None:
            raise IncompleteDistribution("none")
        return longest_match(draft, verification.tokens)


class AcceptsTheLikely(Matching):
    """Accepts what the target could well have said."""

    def accept(
        self, draft: Sequence[DraftToken], verification: Verification, sampling: Sampling, rng: random.Random
    ) -> Acceptance:
        rows = verification.probabilities or [{token: 1.0} for token in verification.tokens]
        likely = (i for i, token in enumerate(draft) if rows[i].get(token.id, 0) < 0.3)
        accepted = next(likely, len(draft))
        return Acceptance(accepted, verification.tokens[accepted])


class CoversNothing(Matching):
    """Nobody asks it."""

    def covers(self, sampling: Sampling) -> bool:
        return False


class AcceptsTheLikelyWhenCool(AcceptsTheLikely):
    """The same, for some requests only."""

    def covers(self, sampling: Sampling) -> bool:
        return sampling.temperature is not None and 0 < sampling.temperature <= 0.8


# -- tokenizer checks ----------------------------------------------------------------------------------------


class ComparesSizes(TokenizerCheck):
    """Whatever differs in size differs."""

    name = "compares-sizes"

    async def check(self, draft: LlamaServer, target: LlamaServer) -> Sequence[Mismatch]:
        sizes = [(await server.describe()).n_vocab for server in (draft, target)]
        return [] if sizes[0] == sizes[1] else [Mismatch("size", *map(str, sizes))]


class AlwaysContent(Vocabulary):
    """Asks, and does not look."""

    name = "always-content"

    async def check(self, draft: LlamaServer, target: LlamaServer) -> Sequence[Mismatch]:
        await super().check(draft, target)
        return []


@hookimpl
def specrouter_acceptance_policies() -> list[type[AcceptancePolicy]]:
    classes = [value for value in globals().values() if isinstance(value, type) and value.__module__ == __name__]
    return [cls for cls in classes if issubclass(cls, AcceptancePolicy)]


@hookimpl
def specrouter_tokenizer_checks() -> list[type[TokenizerCheck]]:
    classes = [value for value in globals().values() if isinstance(value, type) and value.__module__ == __name__]
    return [cls for cls in classes if issubclass(cls, TokenizerCheck)]
