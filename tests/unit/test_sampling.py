"""What a request body says about sampling."""

from __future__ import annotations

from typing import Any

import pytest

from specrouter.sampling import max_tokens_of, sampling_of
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
        ({"max_tokens": "5"}, None),
        ({"max_tokens": True}, None),
    ],
)
def test_limits(body: dict[str, Any], limit: int | None) -> None:
    assert max_tokens_of(body) == limit
