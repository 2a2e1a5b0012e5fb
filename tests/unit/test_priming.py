"""When the next prime is due and what is in it, event by event."""

from __future__ import annotations

import pytest

from specrouter.governor import Memory
from specrouter.priming import Prime, Priming
from specrouter.types import Delta, DraftToken

PLAIN = 0.1
PROMPT = list(range(100, 120))
N_MATCH, N_MAX = 4, 8


@pytest.fixture
def priming() -> Priming:
    """Of an answer on a target whose batches are nearly free, for drafts that were always right."""
    memory = Memory.fresh(is_greedy=True, batches={2: 1.01, 32: 1.1})
    memory.add_plain_step(PLAIN)
    for _ in range(200):
        memory.calibration.add(0.9, accepted=True)
    return Priming(PROMPT, memory, n_match=N_MATCH, n_max=N_MAX)


def draft(priming: Priming, *ids: int) -> None:
    for token in ids:
        assert priming.follower.add_draft(DraftToken(token, b"t%d " % token, 0.9))


def say(priming: Priming, at: float, *ids: int) -> None:
    """A step ends: its tokens arrive together."""
    for token in ids:
        if priming.clock.begins_step(at):
            priming.begin_step(at)
        priming.follower.take(Delta("", token_ids=[token], received=at))
        priming.clock.tokens += 1
    priming.settle()


def prime(priming: Priming) -> Prime:
    count = priming.tokens_to_prime()
    assert count
    return priming.prime(count)


def test_nothing_is_primed_before_the_first_token(priming: Priming) -> None:
    priming.restart()
    draft(priming, *range(8))
    assert priming.tokens_to_prime() == 0
    say(priming, 1.0, 0)
    assert priming.tokens_to_prime() == 7


def test_a_prime_begins_with_what_the_pool_needs_and_is_due_before_the_step_ends(priming: Priming) -> None:
    priming.restart()
    draft(priming, *range(8))
    say(priming, 1.0, 0)
    assert 1.0 < priming.prime_due(0.0) < 1.0 + PLAIN
    assert priming.prime_due(0.05) == pytest.approx(priming.prime_due(0.0) - 0.05)
    sent = prime(priming)
    assert list(sent.ids) == [*PROMPT[-N_MATCH:], *range(8)]
    assert sent.start + len(sent.ids) == sent.end == len(PROMPT) + 8
    # One in a step, and only one before the slot is known.
    assert priming.tokens_to_prime() == 0


def test_what_a_wrong_draft_had_evaluated_is_not_counted_on(priming: Priming) -> None:
    priming.restart()
    draft(priming, *range(8))
    say(priming, 1.0, 0)
    sent = prime(priming)
    say(priming, 1.1, 55)
    assert priming.should_stop_draft
    priming.answered(sent, 1.2, evaluated=12)
    assert priming.evaluated_to == priming.primed_to == len(PROMPT) + 2
    priming.restart()
    draft(priming, *range(60, 68))
    say(priming, 1.2, 60)
    again = prime(priming)
    assert again.generation > sent.generation
    assert list(again.ids)[-7:] == list(range(61, 68))


def test_a_prime_that_failed_is_sent_again(priming: Priming) -> None:
    priming.restart()
    draft(priming, *range(8))
    say(priming, 1.0, 0)
    sent = prime(priming)
    priming.failed(sent)
    say(priming, 1.1, 1)
    assert prime(priming).end == sent.end


def test_a_target_that_drafts_by_itself_is_left_alone(priming: Priming) -> None:
    priming.restart()
    draft(priming, *range(20))
    say(priming, 1.0, 0)
    # It repeats what it said before: its pool knew.
    say(priming, 1.1, 1, 2, 3)
    assert priming.tokens_to_prime() == 0
    say(priming, 1.2, 4)
    assert priming.tokens_to_prime() > 0


def test_verified_tokens_are_not_the_target_s_own(priming: Priming) -> None:
    priming.restart()
    draft(priming, *range(24))
    say(priming, 1.0, 0)
    sent = prime(priming)
    priming.answered(sent, 1.1, evaluated=len(sent.ids))
    say(priming, 1.1, 1)
    say(priming, 1.2, *range(2, 8))
    finished = priming.begin_step(1.3)
    assert finished is not None
    assert (finished.tokens, finished.verified) == (6, N_MAX)


def test_what_the_prompt_says_already_is_not_primed(priming: Priming) -> None:
    text = PROMPT[5:13]
    for index, token in enumerate(text[:N_MATCH]):
        say(priming, 1.0 + index * PLAIN, token)
    priming.restart()
    draft(priming, *text[N_MATCH:])
    assert priming.tokens_to_prime() == 0
    draft(priming, 1)
    assert priming.tokens_to_prime() > 0
