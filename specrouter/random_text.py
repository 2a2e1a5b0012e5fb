"""Tokens that nobody has said to a server before."""

from __future__ import annotations

import random

from .upstream import LlamaServer


def random_tokens(server: LlamaServer, count: int) -> list[int]:
    """Ids from the middle of the vocabulary: the ends have control tokens, bytes and padding."""
    size = server.info.n_vocab or 30_000
    return [random.randrange(size // 16, size - size // 16) for _ in range(count)]  # noqa: S311  (not a secret)
