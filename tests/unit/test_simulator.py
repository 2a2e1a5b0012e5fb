"""What the simulator predicts, where that is known beforehand."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from specrouter.simulator import (
    Conditions,
    Drafted,
    Prediction,
    TargetCosts,
    Trace,
    as_lines,
    fanout,
    from_lines,
    injection,
    like_text,
    native,
    round_seconds,
    rpc,
    steady,
    stretches,
)
from specrouter.simulator.timeline import Timeline

DATA = Path(__file__).parent / "data"
PLAIN = 0.05
FREE = TargetCosts({64: 1.0})
CPU = TargetCosts({2: 1.2, 4: 1.6, 6: 1.9, 8: 2.7, 16: 3.2, 32: 5.5})
USUAL = Conditions(CPU, PLAIN, PLAIN / 7)


def mean_ratio(conditions: Conditions, acceptance: float, *, seeds: int = 3, tokens: int = 1000) -> float:
    traces = [steady(acceptance, tokens=tokens, seed=seed) for seed in range(seeds)]
    return statistics.fmean(injection(conditions, trace).ratio for trace in traces)


# -- injection ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("speed", [2, 3, 5])
def test_with_free_batches_and_perfect_drafts_the_drafter_sets_the_speed(speed: int) -> None:
    prediction = injection(Conditions(FREE, PLAIN, PLAIN / speed), steady(1.0, tokens=2000, seed=1), answer=2000)
    assert 0.8 * speed < prediction.ratio < 1.02 * speed


def test_a_step_verifies_no_more_than_the_pool_finds() -> None:
    conditions = Conditions(FREE, PLAIN, PLAIN / 50, n_max=4)
    prediction = injection(conditions, steady(1.0, tokens=1000, seed=1), answer=1000)
    assert 2.5 < prediction.ratio <= 5
    assert prediction.mean_acceptance_length <= 5


@pytest.mark.parametrize("costs", [CPU, TargetCosts({2: 2.0})])
@pytest.mark.parametrize("acceptance", [0.0, 0.1])
def test_useless_drafts_cost_little(costs: TargetCosts, acceptance: float) -> None:
    trace = steady(acceptance, tokens=2000, seed=1)
    assert injection(replace(USUAL, costs=costs), trace, answer=2000).ratio > 0.97


@pytest.mark.parametrize("slower", [1.2, 3])
@pytest.mark.parametrize("acceptance", [0.5, 0.93])
def test_a_drafter_slower_than_the_target_costs_little(slower: float, acceptance: float) -> None:
    conditions = replace(USUAL, draft_token=slower * PLAIN)
    assert injection(conditions, steady(acceptance, tokens=2000, seed=1)).ratio > 0.97


def test_distance_of_the_drafter_changes_little() -> None:
    near, far = (mean_ratio(replace(USUAL, costs=FREE, rtt_drafter=rtt), 0.9) for rtt in (0.0, 0.04))
    assert near > 1.2
    assert 0.85 * near < far < 1.02 * near


@pytest.mark.parametrize("rtt", [0.0005, 0.002])
def test_a_local_network_costs_next_to_nothing(rtt: float) -> None:
    shares = []
    for seed in range(3):
        trace = steady(0.9, tokens=1000, seed=seed)
        near, far = (injection(replace(USUAL, costs=FREE, rtt_drafter=seconds), trace) for seconds in (0.0, rtt))
        shares.append(far.network_share(near))
    assert statistics.fmean(shares) < 0.01


@pytest.mark.parametrize("acceptance", [0.0, 0.05])
def test_a_busy_machine_is_no_reason_to_be_slower(acceptance: float) -> None:
    prediction = injection(replace(USUAL, jitter=0.15), steady(acceptance, tokens=2000, seed=1))
    assert prediction.ratio > 0.97


def test_a_better_drafter_is_faster() -> None:
    ratios = [mean_ratio(replace(USUAL, costs=FREE), acceptance) for acceptance in (0.6, 0.8, 0.9, 0.97)]
    assert ratios == sorted(ratios)


def test_a_cheaper_batch_is_faster() -> None:
    cheap, dear = (mean_ratio(replace(USUAL, costs=TargetCosts({32: steps})), 0.9) for steps in (1.5, 6.0))
    assert cheap > dear


def test_answers_learn_from_those_before() -> None:
    """Of drafts that do not pay, the first answers find out, and the later ones know."""
    trace = steady(0.8, tokens=512, seed=1)
    knowing, new = (injection(USUAL, trace, learning=learning) for learning in (512, 0))
    assert knowing.tokens == new.tokens
    assert knowing != new
    assert knowing.ratio > new.ratio - 0.02


def test_the_same_numbers_make_the_same_prediction() -> None:
    trace = stretches(0.95, 0.4, tokens=600, seed=3)
    assert injection(USUAL, trace) == injection(USUAL, trace)


TOKENS = st.builds(Drafted, st.none() | st.floats(0, 1), st.booleans())
ANYTHING = st.builds(
    Conditions,
    costs=st.dictionaries(st.integers(2, 40), st.floats(0.5, 40), max_size=4).map(TargetCosts),
    plain_step=st.floats(0.002, 0.4),
    draft_token=st.floats(0.0001, 0.5),
    draft_restart=st.floats(0, 0.1),
    rtt_drafter=st.floats(0, 0.2),
    rtt_target=st.floats(0, 0.2),
    n_match=st.integers(1, 24),
    n_max=st.integers(1, 64),
    jitter=st.floats(0, 0.5),
)


@settings(max_examples=60, deadline=None)
@given(ANYTHING, st.lists(TOKENS, min_size=1, max_size=80), st.integers(1, 300), st.integers(2, 200))
@example(USUAL, [Drafted(None, accepted=True)], 1, 2)
def test_injection_keeps_count(conditions: Conditions, trace: Trace, tokens: int, answer: int) -> None:
    prediction = injection(conditions, trace, tokens=tokens, answer=answer)
    is_consistent(prediction, tokens)
    assert prediction.tokens <= tokens + answer + conditions.n_max
    # Accepted tokens were primed first, in one way or another.
    assert prediction.accepted <= prediction.primed
    assert prediction.verified <= prediction.verifications * conditions.n_max
    # Late steps are measured by their mean.
    assert prediction.ratio <= (1 + conditions.n_max) * (1 + conditions.jitter)


@settings(max_examples=60, deadline=None)
@given(ANYTHING, st.lists(TOKENS, min_size=1, max_size=80), st.integers(1, 300))
def test_the_others_keep_count(conditions: Conditions, trace: Trace, tokens: int) -> None:
    for predict in (fanout, native, rpc):
        is_consistent(predict(conditions, trace, tokens=tokens), tokens)
    near, far = native(conditions, trace, tokens=tokens), rpc(conditions, trace, tokens=tokens)
    assert far.ratio <= near.ratio * (1 + 1e-9)


def is_consistent(prediction: Prediction, tokens: int) -> None:
    assert math.isfinite(prediction.ratio)
    assert prediction.ratio > 0
    assert prediction.seconds > 0
    assert prediction.tokens >= tokens
    assert 0 <= prediction.accepted <= min(prediction.verified, prediction.tokens)
    assert prediction.verifications <= prediction.verified
    assert 0 <= prediction.acceptance_rate <= 1
    assert prediction.mean_acceptance_length >= 1


@given(st.lists(st.floats(0, 100), max_size=30))
def test_time_goes_forward(seconds: list[float]) -> None:
    timeline, seen = Timeline(5.0), []
    for moment in seconds:
        # Also what is planned for a time that has passed, and what is planned by what happens.
        timeline.at(moment, lambda: timeline.after(1.0, lambda: seen.append(timeline.now)))
    timeline.run(lambda: False)
    assert seen == sorted(seen)
    assert len(seen) == len(seconds)
    assert all(moment >= 6.0 for moment in seen)


def test_a_recorded_trace() -> None:
    """A draft model with the target's weights, quantised; probabilities are its own."""
    trace = from_lines((DATA / "greedy.jsonl").read_text("utf-8").splitlines())
    assert 0.95 < statistics.fmean(token.accepted for token in trace) < 1
    near, far = (injection(replace(USUAL, rtt_drafter=rtt), trace, tokens=1000).ratio for rtt in (0.0, 0.04))
    assert near > 1.2
    assert far > 0.85 * near


def test_what_the_network_costs() -> None:
    near, far = Prediction(ratio=1.6, tokens=1, seconds=1), Prediction(ratio=1.2, tokens=1, seconds=1)
    assert far.network_share(near) == pytest.approx(0.25)
    assert near.network_share(far) == 0


# -- the others --------------------------------------------------------------------------------------------


def test_native_drafting_by_turns() -> None:
    # A draft of 3 takes 0.6 steps, and with the target's own token four are said in a step that costs one.
    prediction = native(Conditions(FREE, 1.0, 0.2), steady(1.0, tokens=400, seed=1), n_max=3)
    assert prediction.ratio == pytest.approx(4 / 1.6)
    assert prediction.mean_acceptance_length == 4
    nothing = native(Conditions(FREE, 1.0, 0.2), steady(0.0, tokens=400, seed=1), n_max=3)
    assert nothing.ratio == pytest.approx(1 / 1.6)
    assert nothing.acceptance_rate == 0


def test_native_drafting_takes_the_best_length() -> None:
    trace = steady(0.7, tokens=1000, seed=1)
    assert native(USUAL, trace).ratio == max(native(USUAL, trace, n_max=n).ratio for n in (1, 2, 3, 4, 6, 8, 12, 16))


def test_rpc_pays_a_round_trip_for_each_token() -> None:
    conditions = Conditions(FREE, 1.0, 0.2, rtt_drafter=0.3)
    assert rpc(conditions, steady(1.0, tokens=400, seed=1), n_max=3).ratio == pytest.approx(4 / 2.5)


def test_fanout_pays_a_round_trip_for_each_round() -> None:
    conditions = Conditions(FREE, 1.0, 0.001)
    rounds = [1.0] * 4
    # The engine foresees the next draft while the target verifies.
    assert fanout(conditions, steady(1.0, tokens=2000, seed=1), rounds=rounds).ratio > 3.5
    far = fanout(conditions, steady(1.0, tokens=2000, seed=1), rounds=[2.0] * 4).ratio
    assert 1.7 < far <= 2


def test_fanout_stands_down_where_rounds_are_dear() -> None:
    prediction = fanout(USUAL, steady(0.3, tokens=2000, seed=1))
    assert prediction.ratio > 0.97


def test_rounds_evaluate_the_same_tokens_several_times() -> None:
    rounds = round_seconds(Conditions(TargetCosts({2: 2.0}), 1.0, 0.1, rtt_target=0.5), longest=2)
    # One token; one and two; one, two and three and one to catch up.
    assert rounds == pytest.approx([1.5, 3.5, 7.5])


# -- what it starts from -----------------------------------------------------------------------------------


def test_costs_are_linear_between_points() -> None:
    costs = TargetCosts({4: 2.0, 8: 4.0})
    assert [costs.at(n) for n in (1, 2, 4, 6, 8, 10)] == pytest.approx([1, 4 / 3, 2, 3, 4, 5])


def test_costs_never_fall() -> None:
    costs = TargetCosts({2: 0.9, 4: 1.5, 8: 1.4, 16: 1.6})
    steps = [costs.at(n) for n in range(1, 40)]
    assert all(low <= high for low, high in pairwise(steps))
    assert costs.at(2) == 1


def test_costs_without_measured_points() -> None:
    assert TargetCosts({}).at(100) == 1


def test_one_token_is_a_plain_step() -> None:
    with pytest.raises(ValueError, match=r"a batch of 1 tokens cannot cost 2\.0 plain steps"):
        TargetCosts({1: 2.0})


@pytest.mark.parametrize("is_telling", [True, False])
def test_steady_traces(*, is_telling: bool) -> None:
    trace = steady(0.8, tokens=4000, seed=1, is_telling=is_telling)
    assert share(trace) == pytest.approx(0.8, abs=0.03)
    sure, unsure = (
        statistics.fmean(token.probability or 0 for token in trace if token.accepted is accepted)
        for accepted in (True, False)
    )
    assert (sure > unsure + 0.2) is is_telling


def test_stretches_hold_together() -> None:
    trace = stretches(0.95, 0.45, tokens=8000, seed=1, mean_length=40)
    assert share(trace) == pytest.approx(0.7, abs=0.06)
    assert spread(trace) > 1.3 * spread(steady(0.7, tokens=8000, seed=1))


@pytest.mark.parametrize("acceptance", [0.1, 0.6, 0.95])
def test_traces_like_text(acceptance: float) -> None:
    assert share(like_text(acceptance, tokens=8000, seed=1)) == pytest.approx(acceptance, abs=0.06)


def spread(trace: Trace) -> float:
    """How much the acceptance of neighbours varies."""
    return statistics.pstdev(share(trace[n : n + 20]) for n in range(0, len(trace), 20))


def share(trace: Trace) -> float:
    return statistics.fmean(token.accepted for token in trace)


def test_traces_as_lines() -> None:
    trace = [Drafted(0.5, accepted=True), Drafted(None, accepted=False)]
    assert as_lines(trace).startswith('{"probability": 0.5, "accepted": true}\n')
    assert from_lines(as_lines(trace).splitlines()) == trace


@pytest.mark.parametrize("line", ["{", "[]", '{"probability": 2, "accepted": true}', '{"probability": 0.5}', "7"])
def test_lines_that_are_no_trace(line: str) -> None:
    with pytest.raises(ValueError, match=r"^line 2 is "):
        from_lines(['{"probability": null, "accepted": true}', line])
