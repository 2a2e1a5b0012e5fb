"""When showing drafts to a target pays, in traces and in a small simulation of the loop."""

from __future__ import annotations

import random

import pytest

from specrouter.governor import Calibration, Governor, Memory

LONGEST = 16
PLAIN = 0.04


def simulate(
    memory: Memory, acceptance: float, token_cost: float, tokens: int = 400, seed: int = 1
) -> tuple[float, int]:
    """One answer. Its speed against the target alone, and the tokens after which drafting first stood down.

    The drafter is always ahead and as sure of all its tokens. A prime is evaluated in the next step and verified in
    the one after; after a miss everything starts anew.
    """
    rng = random.Random(seed)
    governor = Governor(memory, LONGEST)
    memory.add_plain_step(PLAIN)
    said, elapsed, stood_down_at = 0, 0.0, tokens
    good = _draft(rng, acceptance)
    evaluated = evaluating = 0
    while said < tokens:
        # What is primed now is evaluated in the step after this one.
        shown = evaluated + evaluating
        wanted = governor.tokens_to_prime([0.9] * max(governor.tokens_ahead, shown), shown)
        verifying = min(evaluated, LONGEST)
        extra = verifying + evaluating
        seconds = PLAIN * (1 + token_cost * extra)
        accepted = min(good, verifying)
        missed = accepted < verifying or (good == accepted and accepted == verifying)
        step_tokens = accepted + 1
        elapsed += seconds
        said += step_tokens
        for _ in range(accepted):
            memory.calibration.add(0.9, accepted=True)
        if missed and shown:
            memory.calibration.add(0.9, accepted=False)
        if missed:
            good, evaluated, evaluating = _draft(rng, acceptance), 0, 0
        else:
            good -= step_tokens
            evaluated, evaluating = max(0, evaluated + evaluating - step_tokens), max(0, wanted - shown)
        governor.step(seconds, step_tokens, extra)
        if governor.stood_down and stood_down_at == tokens:
            stood_down_at = said
    return said * PLAIN / elapsed, stood_down_at


def _draft(rng: random.Random, acceptance: float) -> int:
    """How many tokens in a row the drafter is right about."""
    count = 0
    while rng.random() < acceptance and count < 1000:
        count += 1
    return count


def test_good_drafts_keep_priming() -> None:
    speed, stood_down_at = simulate(Memory.fresh(is_greedy=True), acceptance=0.97, token_cost=0.1)
    assert speed > 1.2
    assert stood_down_at == 400


@pytest.mark.parametrize("seed", range(5))
def test_middling_drafts_do_not_make_it_slower(seed: int) -> None:
    memory = Memory.fresh(is_greedy=True)
    simulate(memory, acceptance=0.6, token_cost=0.15, seed=seed)
    # With what the first answer taught.
    speed, _ = simulate(memory, acceptance=0.6, token_cost=0.15, tokens=1000, seed=seed + 100)
    assert speed > 0.97


@pytest.mark.parametrize("seed", range(5))
def test_hopeless_drafts_stop_soon(seed: int) -> None:
    memory = Memory.fresh(is_greedy=True)
    speed, _ = simulate(memory, acceptance=0.05, token_cost=0.3, tokens=40, seed=seed)
    assert speed > 0.6
    speed, _ = simulate(memory, acceptance=0.05, token_cost=0.3, tokens=1000, seed=seed)
    assert speed > 0.97


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
        assert 10 <= steps <= 30
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


def test_nothing_is_primed_twice() -> None:
    memory = Memory.fresh(is_greedy=True)
    memory.add_plain_step(PLAIN)
    governor = Governor(memory, LONGEST)
    likely = [0.95] * 10
    primed = governor.tokens_to_prime(likely, 0)
    assert 0 < primed <= 10
    assert governor.tokens_to_prime(likely[:primed], primed) == primed
    assert governor.tokens_to_prime([], 0) == 0
    assert governor.tokens_to_prime([0.95] * 200, 2 * LONGEST) == 2 * LONGEST


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
        assert 8 <= Governor(memory, LONGEST).tokens_ahead <= 3 * LONGEST


def test_calibration_learns() -> None:
    calibration = Calibration(0.85)
    prior = calibration.acceptance(0.35)
    for index in range(100):
        calibration.add(0.35, accepted=index % 10 > 0)
        calibration.add(0.95, accepted=index % 10 == 0)
    assert calibration.acceptance(0.38) == pytest.approx(0.9, abs=0.03)
    assert calibration.acceptance(0.91) == pytest.approx(0.1, abs=0.08)
    assert calibration.acceptance(0.15) == prior
    assert calibration.acceptance(None) == prior
    # What was true long ago fades.
    for _ in range(2000):
        calibration.add(0.35, accepted=False)
    assert calibration.acceptance(0.35) < 0.1


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


def test_the_cost_of_a_token_is_learned() -> None:
    for cost in (0.02, 0.5):
        memory = Memory.fresh(is_greedy=True)
        memory.add_plain_step(PLAIN)
        governor = Governor(memory, LONGEST)
        for index in range(300):
            extra = 2 + index % 8
            governor.step(PLAIN * (1 + cost * extra), 1 + extra, extra)
        assert governor.step_seconds(10) == pytest.approx(PLAIN * (1 + cost * 10), rel=0.15)
