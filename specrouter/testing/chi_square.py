"""Pearson's chi-square test: do counts agree with the probabilities they should have?"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import TypeVar

_LEAST_EXPECTED = 5.0
"""Outcomes expected less often are counted together (Cochran's rule): the test is not valid for them one by one."""

T = TypeVar("T", bound=Hashable)


@dataclass(frozen=True, slots=True)
class ChiSquare:
    """The result of a test. `statistic` is infinite where something happened that has no probability."""

    statistic: float
    degrees_of_freedom: int

    @property
    def p_value(self) -> float:
        """How likely counts are that fit as badly or worse, where the probabilities are right.

        Exact, by the finite sums of Abramowitz and Stegun, 26.4.4 and 26.4.5.
        """
        if math.isinf(self.statistic):
            return 0.0
        if self.degrees_of_freedom == 0 or self.statistic == 0:
            return 1.0
        half = self.statistic / 2
        is_odd = self.degrees_of_freedom % 2
        powers = (k + is_odd / 2 for k in range(self.degrees_of_freedom // 2))
        terms = math.fsum(math.exp(power * math.log(half) - half - math.lgamma(power + 1)) for power in powers)
        return min(1.0, terms + (math.erfc(math.sqrt(half)) if is_odd else 0.0))


def chi_square(counts: Mapping[T, int], probabilities: Mapping[T, float]) -> ChiSquare:
    """Test how often each outcome was seen in independent trials against its probability.

    Reject what was tested where the `p_value` is below a level chosen beforehand: with 0.001, one in a thousand right
    ones is rejected, so fix the seeds of what is random. Raises ValueError where the probabilities do not sum to 1, or
    nothing was counted.
    """
    number = sum(counts.values())
    if not number:
        raise ValueError("nothing was counted")
    total = math.fsum(probabilities.values())
    if not math.isclose(total, 1.0, abs_tol=1e-9):
        raise ValueError(f"the probabilities sum to {total}, not to 1")
    if any(count and not probabilities.get(outcome) for outcome, count in counts.items()):
        return ChiSquare(math.inf, 0)
    cells = _cells([(counts.get(outcome, 0), number * share) for outcome, share in probabilities.items() if share])
    return ChiSquare(math.fsum((seen - expected) ** 2 / expected for seen, expected in cells), len(cells) - 1)


def _cells(outcomes: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """(seen, expected) of the outcomes, the rare ones as one, with the rarest of the others if they need it."""
    often = sorted((cell for cell in outcomes if cell[1] >= _LEAST_EXPECTED), key=lambda cell: cell[1], reverse=True)
    rare = [cell for cell in outcomes if cell[1] < _LEAST_EXPECTED]
    if often and 0 < sum(expected for _, expected in rare) < _LEAST_EXPECTED:
        rare.append(often.pop())
    return [*often, (sum(seen for seen, _ in rare), sum(expected for _, expected in rare))] if rare else often
