"""Tokens that nobody has said to a server before, and trials that are made with them."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from .errors import UpstreamRejected
from .text import PART_OF_A_CHARACTER
from .upstream import LlamaServer

T = TypeVar("T")

_ATTEMPTS = 8


def random_tokens(server: LlamaServer, count: int) -> list[int]:
    """Ids from the middle of the vocabulary: the ends have control tokens, bytes and padding."""
    size = server.info.n_vocab or 30_000
    return [random.randrange(size // 16, size - size // 16) for _ in range(count)]  # noqa: S311  (not a secret)


async def sayable_token(server: LlamaServer) -> int:
    """A token whose text ends an answer when it is a stop string: not blank, and not a part of a character."""
    while True:
        [token] = random_tokens(server, 1)
        text = await server.detokenize([token])
        if text.strip() and PART_OF_A_CHARACTER not in text:
            return token


async def tried_again(trial: Callable[[], Awaitable[T]], attempts: int = _ATTEMPTS) -> T:
    """What a trial with random text finds, at the latest at the last of so many attempts.

    Some builds answer with an error where random text makes them end within a character. Raises what the last attempt
    raises, and at once what is no UpstreamRejected.
    """
    for _ in range(attempts - 1):
        with contextlib.suppress(UpstreamRejected):
            return await trial()
    return await trial()
