"""How many draft tokens a round asks about, and when stepwise verification stands down."""

from __future__ import annotations

import pytest

from specrouter.draft_length import StepGovernor, StepMemory
from specrouter.interfaces import RoundCosts


def memory(*rounds: float, plain: float = 1.0) -> StepMemory:
    """What is believed of a target with these costs; 85 % of the draft tokens are expected to be accepted."""
    return StepMemory.fresh(RoundCosts(plain, rounds), is_greedy=True)


CHEAP = (1.0, 1.05, 1.1, 1.15, 1.2)
DEAR = (1.0, 2.0, 3.0, 4.0, 5.0)


@pytest.mark.parametrize(
    ("rounds", "probabilities", "length"),
    [
        (CHEAP, [0.9] * 4, 4),
        (CHEAP, [0.9] * 9, 4),
        (CHEAP, [0.9] * 2, 2),
        (CHEAP, [], 0),
        (DEAR, [0.9] * 4, 0),
        # The first tokens are nearly free, the third is not.
        ((1.0, 1.05, 1.1, 4.0, 5.0), [0.9] * 4, 2),
        # A dear beginning that pays in the end.
        ((1.0, 1.9, 2.0, 2.1, 2.2), [0.9] * 4, 4),
    ],
)
def test_the_length_that_promises_the_best_speed(
    rounds: tuple[float, ...], probabilities: list[float], length: int
) -> None:
    assert StepGovernor(memory(*rounds), stands_down=True).length(probabilities) == length


def test_a_token_that_never_comes_true_is_not_asked_about() -> None:
    known = memory(*CHEAP)
    for _ in range(200):
        known.calibration.add(0.15, accepted=False)
        known.calibration.add(0.95, accepted=True)
    governor = StepGovernor(known, stands_down=True)
    assert governor.length([0.95, 0.95, 0.15, 0.95]) == 2
    assert governor.length([0.15, 0.95, 0.95, 0.95]) == 0


def test_rounds_that_become_dearer_are_noticed() -> None:
    known = memory(*CHEAP)
    governor = StepGovernor(known, stands_down=True)
    for length in (1, 2, 3, 4) * 40:
        governor.round(4.0, length, length + 1, filled_slots=False)
    assert governor.length([0.9] * 4) == 0


def test_filling_slots_is_no_news_about_rounds() -> None:
    known = memory(*CHEAP)
    StepGovernor(known, stands_down=True).round(50.0, 4, 5, filled_slots=True)
    assert known.rounds == list(CHEAP)


@pytest.mark.parametrize(
    ("rounds", "prompt_seconds", "limit", "stands_down"),
    [
        (CHEAP, 1.0, None, False),
        # Four more slots would have to evaluate it.
        (CHEAP, 60.0, None, True),
        (CHEAP, 1.0, 4, True),
        (DEAR, 0.0, None, True),
        # Dearer than it should be, but rounds without drafts save nothing.
        ((0.5, 9.0, 9.0), 0.0, None, True),
    ],
)
def test_when_the_first_token_has_arrived(
    rounds: tuple[float, ...], prompt_seconds: float, limit: int | None, stands_down: bool
) -> None:
    known = memory(*rounds)
    governor = StepGovernor(known, stands_down=True)
    governor.begin(prompt_seconds, limit)
    assert governor.has_stood_down is stands_down
    # That is about this answer's prompt, not about drafting.
    assert known.may_draft()
    stubborn = StepGovernor(memory(*rounds), stands_down=False)
    stubborn.begin(prompt_seconds, limit)
    assert not stubborn.has_stood_down
    assert stubborn.length([0.1] * 9) == len(rounds) - 1


def slow_answer(known: StepMemory, *, stands_down: bool = True) -> StepGovernor:
    """An answer of 60 tokens at half the target's speed."""
    governor = StepGovernor(known, stands_down=stands_down)
    for _ in range(60):
        governor.round(2.0, 1, 1, filled_slots=False)
        if governor.has_stood_down:
            break
    return governor


def test_standing_down_rests_for_longer_each_time() -> None:
    known = memory(*CHEAP)
    rests = []
    for _ in range(9):
        assert slow_answer(known).has_stood_down
        rests.append(0)
        while not known.may_draft():
            rests[-1] += 1
    assert rests == [1, 2, 4, 8, 16, 32, 64, 64, 64]


def test_a_fast_answer_shortens_the_next_rest() -> None:
    known = memory(*CHEAP)
    for _ in range(3):
        slow_answer(known)
    assert known.rest == 8
    fast = StepGovernor(known, stands_down=True)
    for _ in range(10):
        fast.round(1.2, 4, 5, filled_slots=False)
    assert not fast.has_stood_down
    assert known.rest == 1


def test_who_does_not_stand_down_never_does() -> None:
    known = memory(*DEAR)
    assert not slow_answer(known, stands_down=False).has_stood_down
    assert known.may_draft()


def test_an_answer_is_given_a_chance() -> None:
    governor = StepGovernor(memory(*CHEAP), stands_down=True)
    rounds = 0
    while not governor.has_stood_down:
        governor.round(9.0, 1, 1, filled_slots=False)
        rounds += 1
    assert 4 <= rounds <= 10


def test_a_hiccup_is_not_the_drafts_fault() -> None:
    governor = StepGovernor(memory(*CHEAP), stands_down=True)
    governor.round(900.0, 1, 1, filled_slots=False)
    assert not governor.has_stood_down
    assert governor.length([0.9] * 4) == 4


def test_rounds_that_became_too_dear_to_ask_for_are_doubted_in_the_end() -> None:
    known = memory(*CHEAP)
    known.rounds = [CHEAP[0], *(50 * seconds for seconds in CHEAP[1:])]
    answers = 0
    while True:
        governor = StepGovernor(known, stands_down=True)
        governor.begin(1.0, None)
        if not governor.has_stood_down:
            break
        answers += 1
    assert 10 < answers < 200
