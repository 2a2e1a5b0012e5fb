"""Acceptance policy `greedy`."""

from __future__ import annotations

import random
from collections.abc import Sequence

from specrouter.hookspecs import hookimpl
from specrouter.interfaces import AcceptancePolicy
from specrouter.matching import longest_match
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


@hookimpl
def specrouter_acceptance_policies() -> list[type[AcceptancePolicy]]:
    return [Greedy]
