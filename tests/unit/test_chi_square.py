"""The chi-square test, against tables and on what it should accept and reject."""

from __future__ import annotations

import math
import random
from collections import Counter

import pytest

from specrouter.testing import ChiSquare, chi_square

DIE = dict.fromkeys(range(6), 1 / 6)


@pytest.mark.parametrize(
    ("degrees_of_freedom", "at_5_percent", "at_0_1_percent"),
    [
        (1, 3.841459, 10.827566),
        (2, 5.991465, 13.815511),
        (3, 7.814728, 16.266236),
        (10, 18.307038, 29.588298),
        (25, 37.652484, 52.619656),
        (100, 124.342113, 149.449253),
    ],
)
def test_critical_values(degrees_of_freedom: int, at_5_percent: float, at_0_1_percent: float) -> None:
    assert ChiSquare(at_5_percent, degrees_of_freedom).p_value == pytest.approx(0.05, rel=1e-5)
    assert ChiSquare(at_0_1_percent, degrees_of_freedom).p_value == pytest.approx(0.001, rel=1e-5)


def test_the_ends() -> None:
    assert ChiSquare(0.0, 7).p_value == 1.0
    assert ChiSquare(1e-9, 7).p_value == pytest.approx(1.0)
    assert ChiSquare(1e9, 7).p_value == 0.0
    assert ChiSquare(math.inf, 7).p_value == 0.0


def test_the_statistic() -> None:
    result = chi_square({"heads": 60, "tails": 40}, {"heads": 0.5, "tails": 0.5})
    assert result == ChiSquare(pytest.approx(4.0), 1)  # type: ignore[arg-type]
    assert chi_square({"heads": 100}, {"heads": 0.5, "tails": 0.5}).statistic == pytest.approx(100.0)


def test_rare_outcomes_are_counted_together() -> None:
    rare = {f"rare {number}": 0.001 for number in range(10)}
    probabilities = {"often": 0.9, "sometimes": 0.09, **rare}
    result = chi_square({"often": 900, "sometimes": 90, "rare 3": 10}, probabilities)
    assert result.degrees_of_freedom == 2
    assert result.statistic == pytest.approx(0.0)
    # Too rare even together: the next one joins them.
    few = chi_square({"often": 90, "sometimes": 10}, probabilities)
    assert (few.degrees_of_freedom, few.statistic) == (1, pytest.approx(0.0))


def test_what_cannot_happen() -> None:
    assert chi_square({1: 999, 2: 1}, {1: 1.0}).p_value == 0.0
    assert chi_square({1: 999, 2: 1}, {1: 1.0, 2: 0.0}).p_value == 0.0
    assert chi_square({1: 999, 2: 0}, {1: 1.0}).p_value == 1.0


def test_what_is_no_test() -> None:
    with pytest.raises(ValueError, match="nothing was counted"):
        chi_square({}, {1: 1.0})
    with pytest.raises(ValueError, match=r"sum to 0\.9, not to 1"):
        chi_square({1: 5}, {1: 0.9})


def test_right_ones_are_rejected_as_often_as_the_level_says() -> None:
    """Of 2,000 right dice, 5 % at 5 %, within four standard deviations."""
    rng = random.Random(1)
    results = [chi_square(Counter(rng.choices(range(6), k=120)), DIE) for _ in range(2000)]
    rejected = sum(result.p_value < 0.05 for result in results)
    assert abs(rejected - 100) < 4 * math.sqrt(2000 * 0.05 * 0.95)


def test_a_loaded_die() -> None:
    rng = random.Random(1)
    counts = Counter(rng.choices(range(6), weights=[1, 1, 1, 1, 1, 1.2], k=20_000))
    assert chi_square(counts, DIE).p_value < 1e-6
