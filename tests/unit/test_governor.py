"""When showing drafts to a target pays: in recorded answers, and decision by decision.

The recorded answers are 800 tokens and fewer of a small model, and what the same model drafted for each of their tokens
with other weights: a fine quantisation (good at temperature 0), and a rough one.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from specrouter.governor import Calibration, Governor, Memory
from specrouter.simulator import Conditions, TargetCosts, Trace, from_lines, injection
from specrouter.step_cost import StepCost

LONGEST = 16
PLAIN = 0.04
CURVES = {
    "one core": {2: 1.2, 4: 1.6, 6: 1.9, 8: 2.7, 16: 3.2, 32: 5.5},
    "dear small batches": {2: 1.68, 3: 1.9, 4: 2.6, 6: 3.1, 8: 3.7, 12: 3.8, 16: 4.2, 24: 5.4, 32: 5.9},
    "a GPU": {8: 1.1, 16: 1.2, 32: 1.4},
    "no gain": {2: 2.0, 4: 3.8, 8: 7.0, 16: 12.0, 32: 20.0},
}


def recorded(name: str) -> Trace:
    with Path(__file__).with_name("data").joinpath(f"{name}.jsonl").open() as lines:
        return from_lines(lines)


def speed(curve: str, name: str, *, rtt: float = 0.0, measured: bool = True) -> float:
    """What drafts make of the target's speed in recorded answers, with a drafter seven times as fast."""
    conditions = Conditions(
        TargetCosts(CURVES[curve]), PLAIN, PLAIN / 7, draft_restart=PLAIN / 5, rtt_drafter=rtt, jitter=0.05
    )
    memory = Memory.fresh(is_greedy="greedy" in name, batches=CURVES[curve] if measured else None)
    return injection(conditions, recorded(name), answer=160, memory=memory).ratio


@pytest.mark.parametrize(
    ("curve", "least"), [("one core", 1.65), ("dear small batches", 1.35), ("a GPU", 3.5), ("no gain", 0.99)]
)
def test_good_drafts_are_shown(curve: str, least: float) -> None:
    near = speed(curve, "greedy")
    assert near > least
    assert speed(curve, "greedy", rtt=PLAIN) > 0.85 * near
    # Also before anybody measured what batches cost.
    assert speed(curve, "greedy", measured=False) > min(0.65 * near, 1.8 * near - 0.85)


@pytest.mark.parametrize("curve", CURVES)
@pytest.mark.parametrize("name", ["greedy_rough_draft", "temperature_0_8", "temperature_1_2"])
@pytest.mark.parametrize("measured", [True, False])
def test_poor_drafts_make_nobody_slower(curve: str, name: str, *, measured: bool) -> None:
    # What batches cost has to be paid to be known.
    assert speed(curve, name, measured=measured) > (0.975 if measured else 0.94)


def slow_steps(governor: Governor, count: int) -> None:
    for _ in range(count):
        governor.step(2 * PLAIN, 1, 8)


def test_standing_down_and_growing_pauses() -> None:
    memory = Memory.fresh(is_greedy=True)
    memory.add_plain_step(PLAIN)
    governor = Governor(memory, LONGEST)
    pauses = []
    for _ in range(4):
        steps = 0
        while not governor.is_resting:
            slow_steps(governor, 1)
            steps += 1
        assert 5 <= steps <= 20
        assert governor.tokens_to_prime([0.9] * 20, 0) == 0
        pauses.append(memory.resting)
        while governor.is_resting:
            governor.step(PLAIN, 1, 0)
    assert governor.stood_down == 4
    assert pauses == sorted(pauses)
    assert pauses[-1] >= 4 * pauses[0]


def test_a_pause_outlives_its_request() -> None:
    memory = Memory.fresh(is_greedy=True)
    memory.add_plain_step(PLAIN)
    slow_steps(Governor(memory, LONGEST), 30)
    assert Governor(memory, LONGEST).is_resting


def test_success_shortens_the_next_pause() -> None:
    memory = Memory.fresh(is_greedy=True)
    memory.add_plain_step(PLAIN)
    first = memory.pause
    slow_steps(Governor(memory, LONGEST), 30)
    assert memory.pause > first
    memory.resting = 0
    governor = Governor(memory, LONGEST)
    for _ in range(20):
        governor.step(PLAIN * 1.2, 4, 6)
    assert memory.pause == first


def test_a_draft_server_that_is_of_no_use_has_rests() -> None:
    memory = Memory.fresh(is_greedy=True)
    before = memory.pause, memory.speed
    said, rests = [], []
    for _ in range(3):
        governor = Governor(memory, LONGEST)
        tokens = 0
        while not governor.is_resting:
            governor.step(PLAIN, 1, 0)
            tokens += 1
        said.append(tokens)
        rests.append(memory.resting)
        assert governor.stood_down == 1
        while governor.is_resting:
            governor.step(PLAIN, 1, 0)
    assert said == [192, 96, 96]
    assert rests == [256, 256, 256]
    # Nothing was lost.
    assert (memory.pause, memory.speed) == before


def test_one_draft_that_was_shown_is_enough_to_go_on() -> None:
    governor = Governor(Memory.fresh(is_greedy=True), LONGEST)
    for step in range(1000):
        governor.step(PLAIN, 1, 0 if step % 150 else 8)
        assert not governor.is_resting


def test_what_costs_nobody_anything_goes_on() -> None:
    governor = Governor(Memory.fresh(is_greedy=True), LONGEST, spares_drafter=False)
    for _ in range(1000):
        governor.step(PLAIN, 1, 0)
    assert not governor.is_resting


def test_in_company_nothing_is_said_about_drafts_alone() -> None:
    memory = Memory.fresh(is_greedy=True)
    memory.add_plain_step(PLAIN)
    governors = [Governor(memory, LONGEST) for _ in range(4)]
    for _ in range(300):
        for governor in governors:
            governor.step(1.5 * PLAIN, 1, 0, 3)
    assert not governors[0].is_resting


def test_nothing_is_primed_twice() -> None:
    memory = Memory.fresh(is_greedy=True)
    memory.add_plain_step(PLAIN)
    governor = Governor(memory, LONGEST)
    for _ in range(100):
        memory.calibration.add(0.95, accepted=True)
    likely = [0.95] * 10
    primed = governor.tokens_to_prime(likely, 0)
    assert 0 < primed <= 10
    assert governor.tokens_to_prime(likely[:primed], primed) == primed
    assert governor.tokens_to_prime([], 0) == 0
    assert governor.tokens_to_prime([0.95] * 200, LONGEST) <= 2 * LONGEST + 1


def test_unlikely_tokens_are_not_primed() -> None:
    memory = Memory.fresh(is_greedy=True)
    memory.add_plain_step(PLAIN)
    for _ in range(200):
        memory.calibration.add(0.1, accepted=False)
    governor = Governor(memory, LONGEST)
    assert governor.tokens_to_prime([0.1] * 10, 0) == 0
    assert governor.tokens_to_prime([0.95] * 6 + [0.1] * 6, 2) <= 6


def test_a_bounded_draft() -> None:
    memory = Memory.fresh(is_greedy=True)
    for accepted in (True, False):
        for _ in range(2000):
            memory.calibration.add(0.9, accepted=accepted)
        assert 8 <= Governor(memory, LONGEST).tokens_ahead <= 5 * LONGEST


def test_calibration_learns() -> None:
    calibration = Calibration(0.85)
    for index in range(100):
        calibration.add(0.35, accepted=index % 10 > 0)
        calibration.add(0.95, accepted=index % 10 == 0)
    assert calibration.acceptance(0.38) == pytest.approx(0.9, abs=0.05)
    assert calibration.acceptance(0.91) == pytest.approx(0.1, abs=0.08)
    assert calibration.average == pytest.approx(0.5, abs=0.05)
    # What was true long ago fades.
    for _ in range(2000):
        calibration.add(0.35, accepted=False)
    assert calibration.acceptance(0.35) < 0.1


@pytest.mark.parametrize(("accepted", "least", "most"), [(0.98, 0.9, 0.97), (0.7, 0.4, 0.6), (0.1, 0.0, 0.1)])
def test_what_is_known_of_all_tokens_goes_for_rare_ones(accepted: float, least: float, most: float) -> None:
    calibration = Calibration(0.85)
    for index in range(200):
        calibration.add(0.95, accepted=index % 100 < 100 * accepted)
    assert least < calibration.acceptance(0.15) < most
    assert calibration.acceptance(None) == calibration.acceptance(0.15)


@pytest.mark.parametrize("probability", [0.0, 1.0, None, 0.999999])
def test_calibration_takes_every_probability(probability: float | None) -> None:
    calibration = Calibration(0.85)
    calibration.add(probability, accepted=True)
    assert 0 < calibration.acceptance(probability) <= 1


def test_the_plain_step_follows_the_target() -> None:
    memory = Memory.fresh(is_greedy=True)
    for _ in range(5):
        memory.add_plain_step(PLAIN)
    memory.add_plain_step(10.0)  # One hiccup.
    assert memory.plain_step == pytest.approx(PLAIN, rel=0.15)
    for _ in range(60):
        memory.add_plain_step(PLAIN / 2)
    assert memory.plain_step == pytest.approx(PLAIN / 2, rel=0.05)


@pytest.mark.parametrize("cost", [0.02, 0.5])
def test_the_cost_of_a_token_is_learned(cost: float) -> None:
    memory = Memory.fresh(is_greedy=True)
    memory.add_plain_step(PLAIN)
    governor = Governor(memory, LONGEST)
    for index in range(300):
        extra = 2 + index % 8
        governor.step(PLAIN * (1 + cost * extra), 1 + extra, extra)
    assert governor.step_seconds(8) == pytest.approx(PLAIN * (1 + cost * 8), rel=0.2)


def test_what_was_learned_in_bad_times_is_forgotten() -> None:
    memory = Memory.fresh(is_greedy=True, batches={2: 1.2, 8: 1.8, 32: 3.0})
    memory.add_plain_step(PLAIN)
    governor, likely = Governor(memory, LONGEST), [0.95] * 20
    for _ in range(100):
        memory.calibration.add(0.95, accepted=True)
    assert governor.tokens_to_prime(likely, 0) > 0
    for _ in range(40):
        for extra in (1, 2, 4, 8, 16, 32):
            memory.cost.add(extra, 20.0)
    assert governor.tokens_to_prime(likely, 0) == 0
    for _ in range(10_000):
        memory.add_step(PLAIN, 1, 0)
    assert governor.tokens_to_prime(likely, 0) > 0


def test_steps_that_are_read_together_are_no_gain() -> None:
    memory = Memory.fresh(is_greedy=True)
    memory.add_plain_step(PLAIN)
    for _ in range(20):
        memory.add_step(4 * PLAIN, 4, 0)
        memory.add_step(4 * PLAIN, 4, 1)
    assert memory.speed.ratio == pytest.approx(1.0)
    assert memory.cost.of(1) == StepCost().of(1)


def test_a_drafter_that_is_never_right() -> None:
    memory = Memory.fresh(is_greedy=True)
    for _ in range(300_000):
        memory.calibration.add(0.9, accepted=False)
    assert memory.calibration.average == 0
    assert Governor(memory, LONGEST).tokens_ahead == 8


def test_a_hiccup_is_not_the_drafts_fault() -> None:
    memory = Memory.fresh(is_greedy=True)
    governor = Governor(memory, LONGEST)
    governor.step(PLAIN, 1, 0)
    governor.step(100 * PLAIN, 1, 4)
    governor.step(100 * PLAIN, 1, 0)
    assert not governor.is_resting


def certain(memory: Memory, *, right: int, wrong: int) -> Governor:
    """A governor that has seen so many draft tokens come true, and not."""
    memory.add_plain_step(PLAIN)
    for index in range(right + wrong):
        memory.calibration.add(0.9, accepted=index % (right + wrong) >= wrong)
    return Governor(memory, LONGEST)


def test_nothing_is_primed_ahead_of_a_draft_that_may_well_break() -> None:
    likely, ahead = [0.9] * 40, 2 * LONGEST + 1
    for right, wrong, is_ahead in ((380, 20, False), (399, 1, True)):
        governor = certain(Memory.fresh(is_greedy=True, batches=CURVES["one core"]), right=right, wrong=wrong)
        assert governor.tokens_to_prime(likely, 0) > LONGEST / 2
        for verifying in (LONGEST - 1, LONGEST):
            shown = governor.tokens_to_prime(likely, LONGEST, verifying=verifying)
            assert (shown > LONGEST) is is_ahead
            assert shown <= ahead + 1


def test_answers_beside_wait_for_what_is_primed_for_one() -> None:
    likely = [0.9] * 20
    governor = certain(Memory.fresh(is_greedy=True, batches=CURVES["one core"]), right=190, wrong=10)
    assert governor.tokens_to_prime(likely, 0) > 0
    governor.beside = 3
    assert governor.tokens_to_prime(likely, 0) == 0
    free = certain(Memory.fresh(is_greedy=True, batches={2: 1.0, 64: 1.1}), right=190, wrong=10)
    free.beside = 3
    assert free.tokens_to_prime(likely, 0) > LONGEST / 2


def test_shared_steps_teach_what_a_plain_one_takes() -> None:
    memory = Memory.fresh(is_greedy=True, batches={2: 1.5, 4: 2.0, 32: 4.0})
    governor = Governor(memory, LONGEST)
    costs = [memory.cost.of(extra) for extra in range(40)]
    for _ in range(50):
        governor.step(2.0 * PLAIN, 1, 0, beside=3)
        governor.step(9.0 * PLAIN, 4, 8, beside=3)
    assert memory.plain_step == pytest.approx(PLAIN, rel=0.1)
    # Nobody knows what was in those batches besides.
    assert [memory.cost.of(extra) for extra in range(40)] == costs


@pytest.mark.parametrize("draft", ["greedy", "greedy_rough_draft", "temperature_0_8"])
@pytest.mark.parametrize("curve", CURVES)
@pytest.mark.parametrize("beside", [1, 3])
def test_answers_beside_do_not_pay_for_drafts(curve: str, draft: str, beside: int) -> None:
    conditions = Conditions(TargetCosts(CURVES[curve]), PLAIN, PLAIN / 7, draft_restart=0.005, beside=beside)
    assert injection(conditions, recorded(draft), answer=100).ratio > 0.985
