"""Acceptance policy `greedy`."""

from __future__ import annotations

import random
from collections.abc import Sequence

from specrouter.hookspecs import hookimpl
from specrouter.interfaces import AcceptancePolicy
from specrouter.types import Acceptance, DraftToken, Sampling, Verification


class Greedy(AcceptancePolicy):
    """Accept a draft token when it is the target's most likely one; for temperature 0."""

    name = "greedy"

    def covers(self, sampling: Sampling) -> bool:
        """Greedy requests only."""
        return sampling.is_greedy

    def accept(
        self,
        draft: Sequence[DraftToken],
        verification: Verification,
        sampling: Sampling,  # noqa: ARG002
        rng: random.Random,  # noqa: ARG002
    ) -> Acceptance:
        """Accept up to the first difference; `verification.tokens` are the target's most likely tokens."""
        return longest_match(draft, verification.tokens)


def longest_match(draft: Sequence[DraftToken], said: Sequence[int]) -> Acceptance:
    """Accept draft tokens as long as the target said the same; `said` has one token more than `draft`."""
    pairs = enumerate(zip(draft, said[:-1], strict=True))
    accepted = next((i for i, (token, own) in pairs if token.id != own), len(draft))
    return Acceptance(accepted, said[accepted])


@hookimpl
def specrouter_acceptance_policies() -> list[type[AcceptancePolicy]]:
    return [Greedy]
