"""Steps told apart by when their events arrive."""

from __future__ import annotations

from specrouter.pacing import FinishedStep, StepClock

SAME_STEP = StepClock().same_step


def arrive(clock: StepClock, received: float, tokens: int = 1) -> FinishedStep | None:
    """Events of `tokens` tokens arrive, close together; returns the step that was finished before."""
    finished = None
    for index in range(tokens):
        when = received + index * SAME_STEP / 10
        if clock.begins_step(when):
            finished = clock.begin(when, verified=0, beside=0)
        clock.tokens += 1
    return finished


def test_the_first_token_ends_no_step() -> None:
    clock = StepClock()
    assert not clock.running
    assert arrive(clock, 1.0) is None
    assert clock.running
    assert clock.started == 1.0
    # How long the first took is unknown: the prompt is in it.
    assert arrive(clock, 1.04) is None


def test_steps() -> None:
    clock = StepClock()
    arrive(clock, 1.0)
    arrive(clock, 1.04, tokens=3)
    finished = arrive(clock, 1.1)
    assert finished is not None
    assert round(finished.seconds, 6) == 0.04
    assert (finished.tokens, finished.primed) == (3, 0)
    assert clock.tokens == 1


def test_events_in_a_burst_are_one_step() -> None:
    """Also when the burst as a whole takes longer than the gap that parts two steps."""
    clock = StepClock()
    assert clock.begins_step(1.0)
    for index in range(1, 20):
        assert not clock.begins_step(1.0 + index * SAME_STEP * 0.9)
    assert clock.begins_step(1.0 + 19 * SAME_STEP * 0.9 + SAME_STEP * 1.1)


def test_primes_count_for_the_step_they_end_with() -> None:
    clock = StepClock()
    arrive(clock, 1.0)
    clock.primed(1.0395, 5)
    arrive(clock, 1.04)
    clock.primed(1.041, 2)  # A little later than the tokens.
    clock.primed(1.08, 9)  # In the next step.
    finished = arrive(clock, 1.0805)
    assert finished is not None
    assert finished.primed == 7
    finished = arrive(clock, 1.12)
    assert finished is not None
    assert finished.primed == 9
    finished = arrive(clock, 1.16)
    assert finished is not None
    assert finished.primed == 0


def test_a_slow_target_spreads_its_events() -> None:
    clock = StepClock()
    clock.expect(1.0)
    assert clock.begins_step(1.0)
    assert not clock.begins_step(1.05)
    clock.expect(0.001)
    assert clock.same_step == SAME_STEP
