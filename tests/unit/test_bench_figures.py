"""What is made of measured answers."""

from __future__ import annotations

import pytest
from bench_support import PROMPT, answer, pair, series
from hypothesis import given
from hypothesis import strategies as st

from specrouter.bench.figures import (
    Answer,
    Audit,
    Chunk,
    Group,
    Spread,
    acceptance_by_position,
    is_noisy,
    row,
    rows,
    spread,
    steps,
    undrafted_speed,
)
from specrouter.bench.prompts import Prompt, Question

POSITIVE = st.floats(0.001, 1000)


@given(st.lists(POSITIVE, min_size=1))
def test_a_median_lies_in_its_range(values: list[float]) -> None:
    found = spread([*values, None])
    assert found is not None
    assert found.n == len(values)
    assert found.low == min(values) <= found.median <= max(values) == found.high
    assert sum(value < found.median for value in values) <= len(values) / 2


def test_no_values() -> None:
    assert spread([None, None]) is None


@given(st.data())
def test_steps_are_told_apart_by_their_pauses(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(1, 17), min_size=1, max_size=30))
    now, chunks = 1.0, []
    for size in sizes:
        now += data.draw(st.floats(0.02, 1.0))
        for _ in range(size):
            now += data.draw(st.floats(0, 0.005))
            chunks.append(Chunk(now, "x"))
    accepted = sum(sizes) - len(sizes)
    found = steps(Answer(tokens=sum(sizes), chunks=tuple(chunks), finish="length", accepted=accepted))
    assert found.sizes == tuple(sizes)
    assert found.is_certain
    assert found.accepted().count(True) == accepted
    assert len(found.accepted()) == len(chunks)


@given(st.lists(POSITIVE, min_size=1, max_size=40), st.integers(0, 60), st.integers(0, 60))
def test_steps_of_anything_hold_all_chunks(pauses: list[float], tokens: int, accepted: int) -> None:
    chunks = tuple(Chunk(sum(pauses[: index + 1]), "x") for index in range(len(pauses)))
    found = steps(Answer(tokens=tokens, chunks=chunks, finish="stop", accepted=accepted))
    assert sum(found.sizes) == len(chunks)
    assert min(found.sizes) > 0


def test_even_pauses_tell_nothing() -> None:
    evenly = tuple(Chunk(0.1 * index, "x") for index in range(12))
    assert not steps(Answer(tokens=12, chunks=evenly, finish="length", accepted=6)).is_certain


def test_the_last_token_of_a_step_is_the_targets_own() -> None:
    assert steps(answer((1, 3, 1, 2))).accepted() == [False, True, True, False, False, True, False]


def test_acceptance_by_position() -> None:
    # The first step comes with the prompt: nothing can be drafted for it.
    assert acceptance_by_position([answer((1, 3, 1, 2, 1))]) == [0.5, 0.25]
    assert acceptance_by_position([answer()]) == []
    assert acceptance_by_position([]) == []


def test_speed_counts_from_the_first_token() -> None:
    found = answer((1,) * 11, step=0.1, first=5.0)
    assert found.speed == pytest.approx(10)
    assert found.first == 5.0
    assert found.seconds == pytest.approx(6.0)
    assert answer((1,) * 7).speed is None, "too short to tell"
    assert answer((8,)).speed is None, "all at once"


def test_figures_of_pairs() -> None:
    slow = pair(drafted=answer((1, *(2,) * 9, 1), step=0.4))
    found = row([pair(), slow, pair()])
    assert found.ratio is not None
    assert found.ratio == Spread(3, pytest.approx(1.9), pytest.approx(0.475), pytest.approx(1.9))
    assert found.acceptance == 0.5
    assert found.per_step == pytest.approx(20 / 11)
    assert found.verified == pytest.approx(18 / 20)
    assert found.primed == pytest.approx(27 / 20)
    assert (found.compared, found.equal, found.worst) == (3, 0, None)


def test_texts_are_compared_where_they_must_be_equal() -> None:
    same = answer()
    sampled = Prompt("open", "Invent a word.", 0.8)
    different = Question(PROMPT, Prompt("chat", "Why is the sea salty?"), plain_first=True)
    assert pair(same, same).is_equal is True
    assert pair().is_equal is False
    assert pair(prompt=sampled).is_equal is None
    assert different.is_same is False
    found = row([pair(same, same), pair(difference=0.01), pair(difference=0.3), pair(audit=Audit(9, (0.2, 0.4)))])
    assert (found.compared, found.equal, found.ties, found.audited, found.worst) == (4, 1, 1, 9, 0.4)


def test_audits() -> None:
    assert Audit(3, ()).is_exact
    assert Audit(3, (0.04,)).is_exact
    assert not Audit(3, (0.04, 0.06)).is_exact


def test_a_row_for_each_kind_and_one_for_all() -> None:
    code = Prompt("code", "Write a loop.")
    assert [kind for kind, _ in rows([pair(), pair(prompt=code), pair()])] == ["chat", "code", "all"]
    assert [kind for kind, _ in rows([pair(), pair()])] == ["chat"]
    assert rows([]) == []


@pytest.mark.parametrize(
    ("steps_taken", "noisy"), [((0.1, 0.1, 0.11), False), ((0.1, 0.1, 0.13), True), ((0.1, 0.2), False)]
)
def test_noise_is_how_much_the_target_alone_varied(steps_taken: tuple[float, ...], noisy: bool) -> None:
    drafting_itself = pair(plain=answer((1, 8, 8, 8)))
    alone = undrafted_speed([*(pair(plain=answer(step=step)) for step in steps_taken), drafting_itself])
    assert alone is not None
    assert is_noisy(alone) is noisy


def test_first_answers_do_not_count() -> None:
    found = series(pair(is_first=True), pair())
    assert len(found.all_pairs) == 2
    assert len(found.pairs) == 1
    assert found.together() == (pytest.approx(20 / 2.4), pytest.approx(20 / 1.5))
    assert series(pair(is_first=True)).together() is None


def test_answers_at_the_same_time_share_their_seconds() -> None:
    found = series(concurrency=2)
    found.groups.append(Group((pair(), pair()), plain_seconds=4.0, drafted_seconds=2.0))
    assert found.together() == (10.0, 20.0)
