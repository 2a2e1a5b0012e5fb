"""What a request body says about sampling, and the seeds of positions."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from typing import Any

import pytest

from specrouter.sampling import RANDOM_SEED, max_tokens_of, position_seed, sampling_of
from specrouter.testing import chi_square
from specrouter.types import Sampling


@pytest.mark.parametrize(
    ("body", "greedy"),
    [
        ({"temperature": 0}, True),
        ({"temperature": 0.0}, True),
        ({"temperature": -1}, True),
        ({"top_k": 1}, True),
        ({"temperature": 0.8, "top_k": 1}, True),
        ({}, False),
        ({"temperature": 0.1}, False),
        ({"temperature": "0"}, False),
        ({"temperature": False}, False),
        ({"top_k": True}, False),
        ({"temperature": None}, False),
    ],
)
def test_greedy_is_certain_only_when_the_request_says_so(body: dict[str, Any], greedy: bool) -> None:
    assert sampling_of(body).is_greedy is greedy


def test_all_fields() -> None:
    body = {"temperature": 1, "top_k": 40, "top_p": 0.9, "min_p": 0.05, "seed": 7, "other": 1}
    assert sampling_of(body) == Sampling(1.0, 40, 0.9, 0.05, 7, constrained=False)


@pytest.mark.parametrize("key", ["grammar", "json_schema", "response_format", "tools"])
def test_constraints(key: str) -> None:
    assert sampling_of({key: {"a": 1}}).constrained
    assert not sampling_of({key: None}).constrained


@pytest.mark.parametrize(
    ("body", "limit"),
    [
        ({}, None),
        ({"max_tokens": 5}, 5),
        ({"n_predict": 0}, 0),
        ({"n_predict": -1}, None),
        ({"max_tokens": None, "n_predict": 9}, 9),
        ({"max_tokens": 5, "max_completion_tokens": 6}, 6),
        ({"max_tokens": 5, "max_completion_tokens": 6, "n_predict": 7}, 7),
        ({"max_tokens": 5, "n_predict": -1}, None),
        ({"max_tokens": 24.0}, 24),
        ({"max_tokens": math.inf}, None),
        ({"max_tokens": "5"}, None),
        ({"max_tokens": True}, None),
    ],
)
def test_limits(body: dict[str, Any], limit: int | None) -> None:
    assert max_tokens_of(body) == limit


# -- seeds -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seed", "position", "expected"),
    [(0, 0, 1431151741), (0, 1, 530561147), (1, 0, 3497668050), (42, 1000, 2731103299), (2**32 - 1, 2**31, 1193671599)],
)
def test_position_seeds_stay_what_they_are(seed: int, position: int, expected: int) -> None:
    """The text of a seed is the same in the next version."""
    assert position_seed(seed, position) == expected


@pytest.mark.parametrize(
    ("seed", "taken"),
    [(0, 0), (7, 7), (-2, -2), (-1, None), (RANDOM_SEED, None), (2**64 - 1, None), (None, None), ("7", None)],
)
def test_seeds_of_requests(seed: object, taken: int | None) -> None:
    assert sampling_of({"seed": seed}).seed == taken


def test_seeds_as_llama_server_reads_them() -> None:
    assert position_seed(-2, 5) == position_seed(2**32 - 2, 5)
    assert position_seed(2**32 + 7, 5) == position_seed(7, 5)


def test_never_the_random_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Hash:
        def __init__(self, message: bytes, *, digest_size: int) -> None:
            assert digest_size == 8

        def digest(self) -> bytes:
            return RANDOM_SEED.to_bytes(8, "little")

    monkeypatch.setattr(hashlib, "blake2b", Hash)
    assert position_seed(1, 2) == 0


def test_all_seeds_and_positions_differ() -> None:
    assert len({position_seed(seed, position) for seed in range(100) for position in range(100)}) == 10_000


@pytest.mark.parametrize(("seed_step", "position_step"), [(0, 1), (1, 0), (1, -1), (0, 2), (2, 1)])
def test_neighbours_have_nothing_in_common(seed_step: int, position_step: int) -> None:
    """The high and the low bits of neighbours, 256 pairs of values each, as equally likely as independent ones."""
    pairs = [
        (position_seed(seed, position), position_seed(seed + seed_step, position + position_step))
        for seed in range(200)
        for position in range(1, 101)
    ]
    expected = {(one, other): 1 / 256 for one in range(16) for other in range(16)}
    assert chi_square(Counter((one >> 28, other >> 28) for one, other in pairs), expected).p_value > 0.001
    assert chi_square(Counter((one & 15, other & 15) for one, other in pairs), expected).p_value > 0.001
