"""Acceptance policy `sampled`."""

from __future__ import annotations

import random
from collections.abc import Sequence

from specrouter.hookspecs import hookimpl
from specrouter.interfaces import AcceptancePolicy
from specrouter.types import Acceptance, Sampling, Verification
from specrouter_plugins.greedy import longest_match


class Sampled(AcceptancePolicy):
    """Accept a draft token when the target's own sampler drew it; exact for every sampler."""

    name = "sampled"

    def covers(self, sampling: Sampling) -> bool:  # noqa: ARG002
        """Every request: whatever the target draws is what is emitted."""
        return True

    def accept(
        self,
        draft: Sequence[int],
        verification: Verification,
        sampling: Sampling,  # noqa: ARG002
        rng: random.Random,  # noqa: ARG002
    ) -> Acceptance:
        """Sample and match: `verification.tokens` were drawn independently, one per position."""
        return longest_match(draft, verification.tokens)


@hookimpl
def specrouter_acceptance_policies() -> list[type[AcceptancePolicy]]:
    return [Sampled]
