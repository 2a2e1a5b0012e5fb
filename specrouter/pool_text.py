"""What a target's n-gram pool knows by itself of the answer that it is saying. Pure."""

from __future__ import annotations

from collections.abc import Sequence

_CHUNK = 32
"""A server adds what it has said as soon as there are more than so many tokens behind the last n-gram it added."""

_LONGEST = 4096
"""Tokens of a prompt, its last ones, that are looked at."""


class PoolText:
    """A copy of the part of a pool that comes from one request: its prompt, and what was said up to a while ago."""

    def __init__(self, prompt: Sequence[int], n_match: int) -> None:
        self._n_match = n_match
        self._next: dict[tuple[int, ...], int] = {}
        self._added = max(0, len(prompt) - _LONGEST)
        self._add(prompt)

    def said(self, confirmed: Sequence[int]) -> None:
        """The target has said this, prompt included."""
        # The token said last is not in its slot yet.
        if self._added + _CHUNK < len(confirmed) - 1:
            self._add(confirmed[:-1])

    def _add(self, text: Sequence[int]) -> None:
        for start in range(self._added, len(text) - self._n_match):
            self._next[tuple(text[start : start + self._n_match])] = text[start + self._n_match]
        self._added = max(self._added, len(text) - self._n_match)

    def leads(self, confirmed: Sequence[int], draft: Sequence[int]) -> int:
        """How many tokens of a draft behind what was confirmed it finds by itself."""
        text = [*confirmed[-self._n_match :], *draft]
        for count, token in enumerate(draft):
            if self._next.get(tuple(text[count : count + self._n_match])) != token:
                return count
        return len(draft)
