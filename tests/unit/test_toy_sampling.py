"""The toy models that sample say what their probabilities say."""

from __future__ import annotations

import math
import random
from collections import Counter

import pytest

from specrouter.testing import PROMPT, ToyDistribution, chi_square

MODEL = ToyDistribution.random(1)
OTHER = ToyDistribution.random(2)


def test_rows() -> None:
    assert len(MODEL.rows) == 16
    assert all(len(row) == 3 and math.isclose(sum(row.values()), 1) for row in MODEL.rows.values())
    assert ToyDistribution.random(1).rows == MODEL.rows != OTHER.rows
    # What other places and versions must find too.
    assert MODEL.distribution(PROMPT) == pytest.approx({0: 0.2755989708, 2: 0.1233318224, 3: 0.6010692068})


def test_blend() -> None:
    row, other = MODEL.distribution(PROMPT), OTHER.distribution(PROMPT)
    half = MODEL.blend(OTHER, 0.5).distribution(PROMPT)
    assert half == {token: (row.get(token, 0) + other.get(token, 0)) / 2 for token in sorted({*row, *other})}
    drop_zeros = {token: share for token, share in MODEL.blend(OTHER, 0).distribution(PROMPT).items() if share}
    assert drop_zeros == row


def test_draws() -> None:
    model = ToyDistribution({(0, 1): {2: 0.25, 5: 0.75}})
    assert [model.draw((9, 0, 1), number) for number in (0.0, 0.2499, 0.25, 0.999)] == [2, 2, 5, 5]
    rounded = ToyDistribution({(0, 1): {2: 0.3, 5: 0.6999}})
    assert rounded.draw((0, 1), 0.99999) == 5


def test_joint() -> None:
    joint = MODEL.joint(PROMPT, 3)
    assert len(joint) == 27
    assert math.fsum(joint.values()) == pytest.approx(1.0)
    rng = random.Random(1)
    counts: Counter[tuple[int, ...]] = Counter()
    for _ in range(10_000):
        said: tuple[int, ...] = ()
        for _ in range(3):
            said = (*said, MODEL.draw((*PROMPT, *said), rng.random()))
        counts[said] += 1
    assert chi_square(counts, joint).p_value > 0.001
