"""Measures on a running server what a token and what batches cost it, by the server's own clock."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .errors import UpstreamUnavailable
from .random_text import random_tokens, tried_again
from .upstream import LlamaServer

BATCHES = (2, 4, 8, 16, 32)
"""Sizes of the batches that are measured, in tokens."""

_CONTEXT = 32
_PLAIN_TOKENS = 10
_REPEATS = 3
_ROUND_TRIPS = 5
_GOOD = 0.9
"""The part of drafts that is accepted where they are as good as any."""

_TIMEOUT = 120.0


@dataclass(frozen=True, slots=True)
class TargetSpeed:
    """How fast a target is.

    Seconds of a step of it alone and of a round trip, and `batches[n]`, what a batch of n tokens costs in such steps:
    empty where it evaluates more than what is new to it.
    """

    plain_step: float
    round_trip: float
    batches: Mapping[int, float]


async def measure_target(
    target: LlamaServer, doing: Callable[[str], None] = lambda _: None, *, repeats: int = _REPEATS
) -> TargetSpeed:
    """What a step of a running target takes alone, and with more tokens in its batch. Raises UpstreamError.

    Plain steps are those of short answers without drafts, batches the evaluation of as many new tokens behind a
    prompt in the cache, each by the server's own clock; medians. `doing` is told what takes a while.
    """
    plain: list[float] = []
    costs: dict[int, list[float]] = {}
    for turn in range(1, repeats + 1):
        doing(f"what a token alone and what batches cost {target.name} ({turn} of {repeats})")
        # By turns, and each batch by the step of its turn: a machine's speed changes within seconds.
        plain.append(await _plain_step(target))
        for size, seconds in (await _batches(target)).items():
            costs.setdefault(size, []).append(seconds / plain[-1])
    batches = {size: statistics.median(found) for size, found in costs.items()}
    return TargetSpeed(statistics.median(plain), await measure_round_trip(target), batches)


async def measure_round_trip(server: LlamaServer) -> float:
    """Seconds from a small question to its answer: the shortest of a few. Raises UpstreamError."""

    async def ask() -> float:
        started = time.perf_counter()
        await server.call("GET", "/health", timeout=_TIMEOUT)
        return time.perf_counter() - started

    await ask()
    return min([await ask() for _ in range(_ROUND_TRIPS)])


def question_alone(server: LlamaServer, tokens: int = _PLAIN_TOKENS) -> dict[str, Any]:
    """The body of a `/completion` whose answer a server says alone, token by token; see `seconds_per_token`."""
    return {
        # Hot, and behind tokens that nobody has said before: its n-gram pool knows nothing of it.
        "prompt": random_tokens(server, _CONTEXT),
        "n_predict": tokens,
        "temperature": 2,
        "ignore_eos": True,
        "cache_prompt": False,
    }


def seconds_per_token(answer: Mapping[str, Any], *, drafted: bool = False) -> float | None:
    """The time of a step, by an answer's timings; None where it has none. Accepted draft tokens took no step.

    With `drafted` the time of a token, whoever thought of it.
    """
    try:
        timings = answer["timings"]
        said = int(timings["predicted_n"]) - (0 if drafted else int(timings.get("draft_n_accepted") or 0))
        # The first token belongs to the prompt's time.
        step = float(timings["predicted_ms"]) / 1000 / (said - 1)
    except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError):
        return None
    return step if 0 < step < math.inf else None


def counting_question() -> dict[str, Any]:
    """The body of a `/completion` that any model answers in the same way, and that any draft model foresees."""
    return {
        "prompt": "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16,",
        "n_predict": 24,
        "temperature": 0,
        "cache_prompt": False,
    }


def _is_foreseen(answer: Mapping[str, Any]) -> bool:
    timings = answer["timings"]
    try:
        return int(timings["draft_n_accepted"]) >= _GOOD * int(timings["draft_n"])
    except (KeyError, TypeError, ValueError):
        return False


async def measure_best_speed(drafting: LlamaServer, alone: LlamaServer) -> float | None:
    """What a server that drafts by itself makes of the speed of another one alone (1.0), with drafts as good as any.

    None where its drafts were not, or where a server does not say how long it takes. Raises UpstreamError.
    """
    ratios: list[float] = []
    for _ in range(_REPEATS):
        # By turns: a machine's speed changes within seconds.
        counted = await drafting.complete(counting_question(), timeout=_TIMEOUT)
        token = seconds_per_token(counted, drafted=True)
        step = await _step_alone(alone)
        if token is None or step is None or not _is_foreseen(counted):
            return None
        ratios.append(step / token)
    return statistics.median(ratios)


async def _step_alone(server: LlamaServer) -> float | None:
    async def ask() -> Mapping[str, Any]:
        return await server.complete(question_alone(server), timeout=_TIMEOUT)

    return seconds_per_token(await tried_again(ask))


async def _plain_step(target: LlamaServer) -> float:
    seconds = await _step_alone(target)
    if seconds is None:
        message = f"server {target.name!r} does not say how long it takes for a token"
        raise UpstreamUnavailable(message, server=target.name)
    return seconds


async def _batches(target: LlamaServer) -> dict[int, float]:
    """What batches take, in seconds, of the sizes that could be measured."""
    known = random_tokens(target, _CONTEXT)
    await target.prime(known, timeout=_TIMEOUT)
    found: dict[int, float] = {}
    for size in BATCHES:
        primed = await target.prime([*known, *random_tokens(target, size)], timeout=_TIMEOUT)
        # Somebody else's request may have taken the slot, and some models cannot go back to a part of a prompt.
        if primed.evaluated == size and primed.seconds > 0:
            found[size] = primed.seconds
    return found
