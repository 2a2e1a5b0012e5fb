"""What batches cost: curves through what was measured, and what is learned from steps."""

from __future__ import annotations

import pytest

from specrouter.step_cost import Curve, StepCost


def test_a_curve_never_falls_and_goes_on_beyond_its_ends() -> None:
    curve = Curve({2: 1.0, 8: 4.0, 4: 2.0, 6: 1.5})
    assert [curve.at(size) for size in (0, 1, 2, 3, 4, 6, 7, 8, 10)] == pytest.approx([1, 1, 1, 1.5, 2, 2, 3, 4, 6])
    assert curve.points == {2: 1.0, 4: 2.0, 6: 2.0, 8: 4.0}
    assert Curve({3: 2.0}).at(50) == 2.0


def test_what_tokens_cost_beside_other_answers() -> None:
    cost = StepCost({2: 1.5, 3: 1.75, 5: 2.0, 9: 2.5, 33: 4.0})
    assert cost.shared(0) == 1
    assert cost.shared(2) == pytest.approx(1.75)
    assert cost.of(2, beside=2) == pytest.approx(0.25)
    assert cost.of(4, beside=300) == pytest.approx(cost.of(4, beside=30), rel=0.4)
    assert StepCost({33: 1.5}).of(16) == pytest.approx(0.25)


def test_measured_costs_are_kept_where_nothing_else_is_seen() -> None:
    cost = StepCost({2: 1.5, 8: 2.0, 32: 3.0})
    assert [cost.of(extra) for extra in (0, 1, 31)] == pytest.approx([0.0, 0.5, 2.0], abs=0.01)
    for _ in range(50):
        cost.add(32, 4.0)
    assert cost.of(32) == pytest.approx(4.0, abs=0.2)
    assert cost.of(1) == pytest.approx(0.5, abs=0.01)


def test_one_odd_step_changes_little_and_two_are_believed() -> None:
    cost = StepCost({2: 1.5, 8: 2.0, 32: 3.0})
    before = cost.of(7)
    cost.add(7, 12.0)
    assert cost.of(7) < 1.4 * before
    for _ in range(12):
        cost.add(7, 12.0)
    assert cost.of(7) > 6 * before
    unmeasured = StepCost()
    before = unmeasured.of(7)
    unmeasured.add(7, 12.0)
    assert unmeasured.of(7) > 2 * before


def test_odd_measurements_make_no_costs_that_fall() -> None:
    cost = StepCost({2: 1.6, 8: 3.0, 16: 2.6, 32: 2.0})
    costs = [cost.of(extra) for extra in range(140)]
    assert costs == sorted(costs)


def test_a_plain_step_says_nothing_about_batches() -> None:
    assert StepCost({1: 1.0}).of(8) == StepCost().of(8)


def test_costs_never_fall_with_size() -> None:
    cost = StepCost()
    for _ in range(50):
        cost.add(4, 3.0)
        cost.add(16, 1.0)
    costs = [cost.of(extra) for extra in range(80)]
    assert costs == sorted(costs)
