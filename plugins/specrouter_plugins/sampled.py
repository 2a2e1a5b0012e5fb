"""Acceptance policy `sampled`."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from specrouter.errors import IncompleteDistribution
from specrouter.hookspecs import hookimpl
from specrouter.interfaces import AcceptancePolicy, JsonSchema
from specrouter.matching import longest_match
from specrouter.types import Acceptance, DraftToken, Sampling, Verification
from specrouter.upstream import LlamaServer

_TOLERANCE = 1e-4
"""How far from 1 probabilities may sum to: single-precision numbers of a whole vocabulary, rounded in JSON."""


class Sampled(AcceptancePolicy):
    """Accept draft tokens so that what is emitted has the target's distribution; for any temperature."""

    name = "sampled"
    options_schema: ClassVar[JsonSchema] = {
        "type": "object",
        "properties": {
            "method": {
                "enum": ["match", "rejection"],
                "default": "match",
                "description": "match compares with the target's own samples, rejection compares probabilities.",
            }
        },
        "additionalProperties": False,
    }

    def __init__(self, options: Mapping[str, Any], servers: Mapping[str, LlamaServer]) -> None:
        super().__init__(options, servers)
        self._rejects = options.get("method") == "rejection"

    @property
    def needs_distributions(self) -> bool:
        """Rejection sampling does."""
        return self._rejects

    def covers(self, sampling: Sampling) -> bool:
        """Match covers every request, whatever the target draws is what is emitted; rejection, those without a grammar.

        Under a grammar llama-server draws first and looks afterwards, so what it reports is not the whole distribution.
        """
        return not (self._rejects and sampling.constrained)

    def accept(
        self,
        draft: Sequence[DraftToken],
        verification: Verification,
        sampling: Sampling,  # noqa: ARG002
        rng: random.Random,
    ) -> Acceptance:
        """Sample and match, or rejection sampling; see `reject`. Raises IncompleteDistribution."""
        if self._rejects:
            return reject(draft, verification, rng)
        return longest_match(draft, verification.tokens)


def reject(draft: Sequence[DraftToken], verification: Verification, rng: random.Random) -> Acceptance:
    """Speculative sampling of Leviathan et al. (arXiv 2211.17192) and Chen et al. (arXiv 2302.01318).

    A token drafted with probability q that has probability p at the target is accepted with probability min(1, p / q).
    In place of the first that is not, the recovered token is drawn from the residual distribution max(0, p - q),
    normalised. The bonus token is the target's own sample. A token without a distribution has q = 1.

    Raises IncompleteDistribution where the distributions at the first position are incomplete, or there are none. At a
    later position the target's own sample decides instead. To refuse the draft for that one would be wrong: it
    depends on the tokens before it, and those of the drafts that remain would not be distributed as they were drawn.
    """
    if verification.probabilities is None:
        raise IncompleteDistribution("the verifier brought no probabilities")
    positions = zip(draft, verification.probabilities[:-1], verification.tokens[:-1], strict=True)
    for position, (token, target, own) in enumerate(positions):
        drafter = {token.id: 1.0} if token.distribution is None else token.distribution
        flaw = _flaw(token, drafter, target)
        if flaw is None:
            if rng.random() * drafter[token.id] >= target.get(token.id, 0.0):
                return Acceptance(position, _recovered(target, drafter, rng))
        elif position == 0:
            raise IncompleteDistribution(flaw)
        elif token.id != own:
            return Acceptance(position, own)
    return Acceptance(len(draft), verification.tokens[-1])


def _flaw(token: DraftToken, drafter: Mapping[int, float], target: Mapping[int, float]) -> str | None:
    """What makes these distributions useless, None when they are complete."""
    for whose, distribution in (("target", target), ("drafter", drafter)):
        total = math.fsum(distribution.values())
        if not abs(total - 1) <= _TOLERANCE:
            return f"the {whose}'s probabilities sum to {total:.6g}, not to 1"
        if min(distribution.values()) < 0:
            return f"{min(distribution.values()):.6g} is among the {whose}'s probabilities"
    if not drafter.get(token.id, 0.0):
        return f"the drafter's probabilities have none for token {token.id}, which it drew"
    return None


def _recovered(target: Mapping[int, float], drafter: Mapping[int, float], rng: random.Random) -> int:
    """Draw from the residual distribution."""
    residual = {token: share - drafter.get(token, 0.0) for token, share in target.items()}
    positive = {token: share for token, share in residual.items() if share > 0}
    # Equal distributions that were rounded differently can leave nothing.
    weights = positive or target
    return rng.choices(list(weights), list(weights.values()))[0]


@hookimpl
def specrouter_acceptance_policies() -> list[type[AcceptancePolicy]]:
    return [Sampled]
