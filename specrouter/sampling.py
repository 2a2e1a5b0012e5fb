"""What a request body says about sampling, under the names that llama-server and OpenAI share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .types import Sampling

_CONSTRAINTS = ("grammar", "json_schema", "response_format", "tools")


def sampling_of(body: Mapping[str, Any]) -> Sampling:
    """The sampling settings of a request; fields of the wrong type count as absent, the target will complain."""
    return Sampling(
        temperature=_number(body.get("temperature")),
        top_k=_integer(body.get("top_k")),
        top_p=_number(body.get("top_p")),
        min_p=_number(body.get("min_p")),
        seed=_integer(body.get("seed")),
        constrained=any(body.get(key) for key in _CONSTRAINTS),
    )


def max_tokens_of(body: Mapping[str, Any]) -> int | None:
    """The request's own limit on generated tokens, None where it has none."""
    for key in ("max_completion_tokens", "max_tokens", "n_predict"):
        limit = _integer(body.get(key))
        if limit is not None and limit >= 0:
            return limit
    return None


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def _integer(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
