"""What a request body says about sampling, under the names that llama-server and OpenAI share; seeds."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import Any

from .types import Sampling

RANDOM_SEED = 2**32 - 1
"""The `seed` that makes a llama-server take a random one; -1 is the same number to it."""

_SEED_BITS = 2**32 - 1

_CONSTRAINTS = ("grammar", "json_schema", "response_format", "tools")


def sampling_of(body: Mapping[str, Any]) -> Sampling:
    """The sampling settings of a request; fields of the wrong type count as absent, the target will complain."""
    return Sampling(
        temperature=_number(body.get("temperature")),
        top_k=_integer(body.get("top_k")),
        top_p=_number(body.get("top_p")),
        min_p=_number(body.get("min_p")),
        seed=_seed(body.get("seed")),
        constrained=any(body.get(key) for key in _CONSTRAINTS),
    )


def max_tokens_of(body: Mapping[str, Any]) -> int | None:
    """The request's own limit on generated tokens, None where it has none."""
    # In the order in which llama-server looks for them.
    for key in ("n_predict", "max_completion_tokens", "max_tokens"):
        limit = _integer(body.get(key))
        if limit is not None:
            return limit if limit >= 0 else None
    return None


def regime(sampling: Sampling) -> str:
    """Names requests under which a drafter's confidence means about the same."""
    if sampling.is_greedy:
        return "greedy"
    if sampling.temperature is None:
        return "server's default"
    return "cool" if sampling.temperature <= 0.5 else "warm" if sampling.temperature <= 1.0 else "hot"


def position_seed(seed: int, position: int) -> int:
    """The seed for the one token at `position`, counted from the start of the prompt, of a request with `seed`.

    A llama-server that is asked for one token draws one random number, so the request's seed itself would give all
    positions of an answer the same one. The position cannot just be added: the next seed would give the same numbers
    one position further on. A hash has no such pattern, and BLAKE2b (RFC 7693) is the same on every machine and in
    every version.

    The result is from 0 to 2**32 - 2, never RANDOM_SEED. Seeds that llama-server takes for one are one here (it
    keeps 32 bits).
    """
    message = (seed & _SEED_BITS).to_bytes(4, "little") + position.to_bytes(8, "little")
    return int.from_bytes(hashlib.blake2b(message, digest_size=8).digest(), "little") % RANDOM_SEED


def _seed(value: object) -> int | None:
    seed = _integer(value)
    return None if seed is None or seed & _SEED_BITS == RANDOM_SEED else seed


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def _integer(value: object) -> int | None:
    if isinstance(value, float) and math.isfinite(value):
        # 24.0 is what some clients write for 24; llama-server drops what is behind the point.
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None
