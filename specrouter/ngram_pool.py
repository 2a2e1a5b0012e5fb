"""Finds out from outside whether a llama-server verifies n-grams it was shown, and with which settings.

The method: prime random tokens r and behind them one token x again and again, then let the server continue a piece of r
with x, forced by logit bias. If its n-gram pool (`--spec-type ngram-mod`) recognises the piece, it drafts what followed
there, more x, and accepts it, and its timings say so.

Drafts alone would prove nothing: the pool is a table without keys, up to a quarter full with what has been said to it,
and at a place that is taken it drafts a token of somebody else's text. So a draft counts where it was accepted, and the
pool is asked only once, behind the first x.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

from .random_text import random_tokens, sayable_token, tried_again
from .upstream import LlamaServer

FLAGS = "--spec-type ngram-mod --spec-ngram-mod-n-match 8 --spec-ngram-mod-n-min 1 --spec-ngram-mod-n-max 16"
"""What to add to a target's command line; llama-server's own default for n-min (48) admits no short draft."""

_LONGEST_MATCH = 64
_PRIMED = 70
_SAID = 2
"""Tokens that are forced: the pool is asked once, behind the first."""

_LOOKS = 2
"""Nothing has to be found so often: others' refused drafts may wipe the pool after it was shown something."""

_TRIES = 8
"""Attempts of which one has to meet no text of somebody else: where a quarter of all places is taken, all but 1 in
65,000 do."""

_PROBES = 4
"""Chances for a model that drafts only what it is sure of."""

_TIMEOUT = 120.0


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """`n_match` tokens find a continuation of `n_min` to `n_max` tokens."""

    n_match: int
    n_min: int
    n_max: int


async def find_pool(server: LlamaServer) -> PoolSettings | None:
    """The settings of a server's n-gram pool; None where there is none, or where other drafts hide it.

    Raises UpstreamError.

    Costs a prompt of 134 tokens, and for each of one to two dozen tries a short prompt and 2 generated tokens.
    """
    return await tried_again(partial(_find_pool, server))


async def _find_pool(server: LlamaServer) -> PoolSettings | None:
    x = await sayable_token(server)
    known = random_tokens(server, _LONGEST_MATCH)

    async def drafted(length: int) -> int:
        """How many tokens are drafted, and accepted, behind the last `length` ones of a long text and x."""
        for _ in range(_LOOKS):
            await server.prime([*known, *[x] * _PRIMED], timeout=_TIMEOUT)
            forced = await server.force(known[-length:], x, _SAID, timeout=_TIMEOUT)
            if forced.accepted:
                return forced.drafted
        return 0

    n_max = await drafted(_LONGEST_MATCH)
    if n_max == 0:
        return None
    n_match = await _smallest(1, _LONGEST_MATCH, drafted)
    if await _drafts_by_itself(server, n_match):
        return None

    async def drafted_of(follows: int) -> int:
        """What is drafted of a text that ends `follows` tokens later; a new one, the pool forgets nothing."""
        nothing = 0
        for _ in range(_TRIES):
            start, last = random_tokens(server, n_match), await sayable_token(server)
            await server.prime([*start, last, *random_tokens(server, follows)], timeout=_TIMEOUT)
            forced = await server.force(start, last, _SAID, timeout=_TIMEOUT)
            if 0 < forced.drafted <= follows:
                return forced.drafted
            # More than was there: it goes on with somebody else's text, and may have been too short without.
            nothing += forced.drafted == 0
            if nothing == _LOOKS:
                break
        return 0

    return PoolSettings(n_match, await _smallest(1, n_max, drafted_of), n_max)


async def _drafts_by_itself(server: LlamaServer, n_match: int) -> bool:
    """Whether it drafts where its pool is not asked, with a model of its own, whose drafts look like ours from here."""

    async def drafts(length: int) -> bool:
        start, last = random_tokens(server, length), await sayable_token(server)
        return (await server.force(start, last, _SAID, timeout=_TIMEOUT)).drafted > 0

    if n_match > 1:
        return any([await drafts(n_match - 1) for _ in range(_PROBES)])
    # A pool that matches one token is always asked, but seldom full enough to answer each time.
    return all([await drafts(1) for _ in range(_TRIES)])


async def _smallest(low: int, high: int, attempt: Callable[[int], Awaitable[int]]) -> int:
    """The smallest value from `low` to `high` at which something is drafted, where `high` is known to do."""
    while low < high:
        middle = (low + high) // 2
        if await attempt(middle):
            high = middle
        else:
            low = middle + 1
    return low
