"""Makes a target's n-gram pool forget, from outside.

A pool that has heard an answer drafts it the next time, so an answer that was measured cannot be measured again. But
llama-server wipes its pool when, five times in a row, less than a quarter of what it drafted is accepted. So it is
shown chains of random tokens, then made by logit bias to say something else at the beginning of each of them. Whether
that worked is seen: a chain that was shown with the others must not be drafted any more.
"""

from __future__ import annotations

from .errors import SetupError
from .ngram_pool import PoolSettings
from .random_text import random_tokens, sayable_token
from .upstream import LlamaServer

_SAID = 8
"""Tokens that are forced; behind each but the first a draft is refused, and five are enough."""

_CHAIN = 4
_ATTEMPTS = 3
_TIMEOUT = 300.0


async def forget(server: LlamaServer, pool: PoolSettings) -> bool:
    """Empty the pool of a server; False where it stays. Raises UpstreamError.

    Costs a prompt of about `8 * (n_match + 4)` tokens, and about a dozen generated ones.
    """
    for _ in range(_ATTEMPTS):
        said = await sayable_token(server)
        canary, start = random_tokens(server, pool.n_match), random_tokens(server, pool.n_match)
        shown = [*canary, said, *_chain(server, pool)]
        for count in range(1, min(pool.n_match, _SAID) + 1):
            # What the pool is asked for when that many tokens were said: the last `n_match`.
            shown += [*start[count:], *[said] * count, *_chain(server, pool)]
        await server.prime(shown, timeout=_TIMEOUT)
        await server.force(start, said, _SAID, timeout=_TIMEOUT)
        if not (await server.force(canary, said, 2, timeout=_TIMEOUT)).drafted:
            return True
    return False


async def require_forgetting(server: LlamaServer, pool: PoolSettings) -> None:
    """Empty the pool of a server that was seen to do so. Raises SetupError where it does not any more."""
    if not await forget(server, pool):
        raise SetupError(f"server {server.name!r} does not forget what it has said any more; is it used by others?")


def _chain(server: LlamaServer, pool: PoolSettings) -> list[int]:
    return random_tokens(server, max(pool.n_min, _CHAIN))
