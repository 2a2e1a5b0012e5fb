"""A vocabulary, a model and an n-gram pool small enough to know by heart, and how they generate. Deterministic."""

from __future__ import annotations

import itertools
import re
from collections.abc import AsyncGenerator, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio

SPECIALS = ("<s>", "</s>", "<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "</tool_call>")
"""The special tokens: ids 256 to 263."""

_SYLLABLES = ["".join(letters) for letters in itertools.product("bdfghjklmnprstvz", "aeiou")]
_WORD = rf" (?:{'|'.join(_SYLLABLES)}){{2}}"


class ToyVocabulary:
    """256 bytes, 8 special tokens, and 6,400 words of two syllables with a space before them (` bako`).

    Any text can be written with it, and a character beyond ASCII takes several tokens. `padding` adds unused ids at
    the end. `reverse` gives the words other ids: a vocabulary of the same size that does not fit.
    """

    def __init__(self, *, padding: int = 0, reverse: bool = False) -> None:
        words = [f" {first}{second}" for first in _SYLLABLES for second in _SYLLABLES]
        if reverse:
            words.reverse()
        self.pieces = [bytes([value]) for value in range(256)]
        self.pieces += [piece.encode() for piece in (*SPECIALS, *words)]
        self.pieces += [b""] * padding
        self._ids = {piece: index for index, piece in enumerate(self.pieces) if piece}
        self._token = re.compile(f"{'|'.join(map(re.escape, SPECIALS))}|{_WORD}|.".encode(), re.DOTALL)

    def __len__(self) -> int:
        return len(self.pieces)

    def tokenize(self, text: str) -> list[int]:
        """The ids of a text, special tokens included."""
        return [self._ids[match[0]] for match in self._token.finditer(text.encode())]

    def detokenize(self, ids: Sequence[int]) -> bytes:
        """The bytes that ids stand for."""
        return b"".join(self.pieces[token_id] for token_id in ids)


class ToyModel:
    """A model that says one text after any prompt, and goes on where a prompt ends within that text.

    `mistakes` are the positions (in tokens of the text) at which it says another word, as a draft model does that is
    not as good as its target; the text then goes on behind the target's word.
    """

    def __init__(self, says: str, *, vocabulary: ToyVocabulary | None = None, mistakes: Collection[int] = ()) -> None:
        self.vocabulary = vocabulary or ToyVocabulary()
        self.says = says
        self.tokens = self.vocabulary.tokenize(says)
        self.mistakes = frozenset(mistakes)

    def next_token(self, context: Sequence[int]) -> int | None:
        """The token after `context`, None where the text has ended."""
        said = self._said(context)
        if said >= len(self.tokens):
            return None
        token = self.tokens[said]
        return token if said not in self.mistakes else 264 + (token + 1) % 6400

    def _said(self, context: Sequence[int]) -> int:
        longest = min(len(context), len(self.tokens))
        candidates = range(longest, 0, -1)
        return next((n for n in candidates if list(context[-n:]) == self.tokens[:n]), 0)


class NgramPool:
    """What `--spec-type ngram-mod` keeps: `n_match` tokens → the token that followed them last.

    A draft has `n_min` to `n_max` tokens.
    """

    def __init__(self, *, n_match: int = 4, n_min: int = 1, n_max: int = 16) -> None:
        self.n_match = n_match
        self.n_min = n_min
        self.n_max = n_max
        self._following: dict[tuple[int, ...], int] = {}

    def add(self, ids: Sequence[int]) -> None:
        """Remember what follows what in a prompt."""
        for end in range(self.n_match, len(ids)):
            self._following[tuple(ids[end - self.n_match : end])] = ids[end]

    def following(self, last: Sequence[int]) -> int | None:
        """What has followed these `n_match` tokens; None where they are not known."""
        return self._following.get(tuple(last))

    def draft(self, context: Sequence[int]) -> list[int]:
        """The tokens that may follow, empty if fewer than `n_min` are known."""
        if len(context) <= self.n_match:
            return []
        last = list(context[-self.n_match :])
        found: list[int] = []
        while len(found) < self.n_max:
            following = self.following(last)
            if following is None:
                break
            found.append(following)
            last = [*last[1:], following]
        return found if len(found) >= self.n_min else []


@dataclass(slots=True)
class Run:
    """One generation: what it was asked, what it has said, and what was drafted for it.

    `limit` is in tokens, `forced` a token that is said whatever the model thinks, `cached` how many of the prompt's
    tokens needed no evaluation. A step takes `seconds`.
    """

    prompt: list[int]
    limit: int
    forced: int | None
    stops: Sequence[str]
    slot: int
    cached: int
    seconds: float
    said: list[int] = field(default_factory=list)
    drafted: int = 0
    accepted: int = 0

    async def steps(self, model: ToyModel, pool: NgramPool | None) -> AsyncGenerator[tuple[list[int], int]]:
        """The tokens of each step, one and what was accepted of a draft; and how many were said in all."""
        draft: list[int] = []
        while len(self.said) < self.limit:
            await anyio.sleep(self.seconds)
            tokens, ended = self._step(model, draft)
            yield tokens, len(self.said)
            if ended:
                return
            draft = pool.draft(self.prompt + self.said) if pool is not None else []

    def _step(self, model: ToyModel, draft: Sequence[int]) -> tuple[list[int], bool]:
        tokens: list[int] = []
        self.drafted += len(draft)
        for expected in (*draft, None):
            token = self.forced if self.forced is not None else model.next_token(self.prompt + self.said)
            if token is None:
                return tokens, True
            self.said.append(token)
            tokens.append(token)
            self.accepted += token == expected
            if token != expected or len(self.said) == self.limit:
                break
        return tokens, False

    @property
    def finish_reason(self) -> str:
        """Why it ended, in OpenAI's words."""
        return "length" if len(self.said) == self.limit else "stop"

    def usage(self) -> dict[str, Any]:
        """OpenAI's `usage`."""
        said, prompt = len(self.said), len(self.prompt)
        usage = {"completion_tokens": said, "prompt_tokens": prompt, "total_tokens": said + prompt}
        return {**usage, "prompt_tokens_details": {"cached_tokens": self.cached}}

    def timings(self) -> dict[str, Any]:
        """llama-server's `timings`, with a millisecond for what takes no time. The first token is the prompt's."""
        evaluated, step = len(self.prompt) - self.cached, max(1000 * self.seconds, 1.0)
        timings = {"cache_n": self.cached, "prompt_n": evaluated, "prompt_ms": 1.0 * evaluated}
        timings |= {"predicted_n": len(self.said), "predicted_ms": step * max(len(self.said) - 1, 0)}
        if self.drafted:
            timings |= {"draft_n": self.drafted, "draft_n_accepted": self.accepted}
        return timings
