"""Finds out from outside whether a llama-server verifies n-grams it was shown, and with which settings.

The method: prime random tokens r, then let the server continue a piece of r with a token forced by logit bias. If its
n-gram pool (`--spec-type ngram-mod`) recognises the piece, it drafts what followed there, and its timings say so.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

from .random_text import random_tokens, tried_again
from .text import PART_OF_A_CHARACTER
from .upstream import LlamaServer

FLAGS = "--spec-type ngram-mod --spec-ngram-mod-n-match 8 --spec-ngram-mod-n-min 1 --spec-ngram-mod-n-max 16"
"""What to add to a target's command line; llama-server's own default for n-min (48) admits no short draft."""

_LONGEST_MATCH = 64
_START = 70
_PRIMED = 70
_TIMEOUT = 120.0
_ATTEMPTS = 8


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """`n_match` tokens find a continuation of `n_min` to `n_max` tokens."""

    n_match: int
    n_min: int
    n_max: int


async def find_pool(server: LlamaServer) -> PoolSettings | None:
    """The settings of a server's n-gram pool; None where there is none, or where other drafts hide it.

    Raises UpstreamError.

    Costs a prompt of 140 tokens, and for each of about a dozen tries a short prompt and 3 generated tokens.
    """
    return await tried_again(partial(_find_pool, server), _ATTEMPTS)


async def _find_pool(server: LlamaServer) -> PoolSettings | None:
    known = await _random_text(server, _START, _PRIMED)

    async def drafted(length: int) -> int:
        """What is drafted behind `length` tokens of a long text that was primed."""
        return await _drafted(server, known, known[_START - length : _START + 1])

    n_max = await drafted(_LONGEST_MATCH)
    if n_max == 0:
        return None
    unprimed = await _random_text(server, _LONGEST_MATCH, 0)
    if (await server.force(unprimed[:-1], unprimed[-1], count=3, timeout=_TIMEOUT)).drafted:
        # It drafts what nobody showed it: with a model of its own, whose drafts look like ours from here.
        return None
    n_match = await _smallest(1, _LONGEST_MATCH, drafted)

    async def drafted_of(follows: int) -> int:
        """What is drafted of a text that ends `follows` tokens later; a new one, the pool forgets nothing."""
        text = await _random_text(server, n_match, follows)
        return await _drafted(server, text, text[: n_match + 1])

    return PoolSettings(n_match, await _smallest(1, n_max, drafted_of), n_max)


async def _drafted(server: LlamaServer, primed: list[int], said: list[int]) -> int:
    """How many tokens the server drafts after `said`, a piece of `primed`."""
    # Each time afresh: a forced run writes n-grams of its own over the primed ones.
    await server.prime(primed, timeout=_TIMEOUT)
    forced = await server.force(said[:-1], said[-1], count=3, timeout=_TIMEOUT)
    return forced.drafted


async def _random_text(server: LlamaServer, before: int, after: int) -> list[int]:
    """Random tokens around one that can be forced: its text is a stop string, so it must not be half a character."""
    while True:
        [token] = random_tokens(server, 1)
        text = await server.detokenize([token])
        if text and PART_OF_A_CHARACTER not in text:
            return [*random_tokens(server, before), token, *random_tokens(server, after)]


async def _smallest(low: int, high: int, attempt: Callable[[int], Awaitable[int]]) -> int:
    """The smallest value from `low` to `high` at which something is drafted, where `high` is known to do."""
    while low < high:
        middle = (low + high) // 2
        if await attempt(middle):
            high = middle
        else:
            low = middle + 1
    return low
