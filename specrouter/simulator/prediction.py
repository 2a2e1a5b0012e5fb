"""What a prediction says."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Prediction:
    """What came out of a simulated answer, or of several.

    `ratio` is the speed against the target alone. `drafted` tokens were drafted, `primed` and `verified` ones were
    evaluated by the target, `accepted` ones were said; `verifications` are the steps that verified a draft. `tokens`
    are all that were said, in `seconds`.
    """

    ratio: float
    tokens: int
    seconds: float
    drafted: int = 0
    primed: int = 0
    verified: int = 0
    accepted: int = 0
    verifications: int = 0
    stood_down: int = 0

    @property
    def acceptance_rate(self) -> float:
        """Accepted draft tokens of those verified, 0 where there were none."""
        return self.accepted / self.verified if self.verified else 0.0

    @property
    def mean_acceptance_length(self) -> float:
        """Tokens that a step with a draft says."""
        return 1 + (self.accepted / self.verifications if self.verifications else 0.0)

    @property
    def primed_per_token(self) -> float:
        """Draft tokens evaluated in primes for each token said."""
        return self.primed / self.tokens

    @property
    def verified_per_token(self) -> float:
        """Draft tokens verified for each token said."""
        return self.verified / self.tokens

    def network_share(self, at_hand: Prediction) -> float:
        """The share of the time that goes to the network: what `at_hand`, the same without round trips, saves."""
        return max(0.0, 1 - self.ratio / at_hand.ratio)
