"""The slots of a fake server, and its answers of one token for several prompts at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .toy_model import ToyModel

_SIMILAR = 0.1
"""The share of a prompt that a slot must have to be preferred, as llama-server's `--slot-prompt-similarity`."""

END = 259
"""The toy vocabulary's token that ends a text."""


class FakeSlots:
    """What each slot has evaluated last. With `forget`, all is forgotten whenever a request begins."""

    def __init__(self, count: int) -> None:
        self.forget = False
        self._cached: dict[int, list[int]] = {}
        self._idle_longest = list(range(count))

    def clear(self) -> None:
        """The server was started again."""
        self._cached.clear()

    def take(self, prompts: Sequence[list[int]], wanted: int = -1) -> list[tuple[int, int]]:
        """For each prompt of a request a slot, and how many of its tokens are cached there. One is always evaluated.

        That is the slot that has most of it, at least a tenth; of several, or without one, that idle longest.
        """
        if self.forget:
            self.clear()
        free = list(self._idle_longest)
        taken = []
        for prompt in prompts:
            slot = (
                wanted if wanted >= 0 else max(free or self._idle_longest, key=lambda slot: self._similar(slot, prompt))
            )
            taken.append((slot, self._common(slot, prompt)))
            free = [other for other in free if other != slot]
        for prompt, (slot, _) in zip(prompts, taken, strict=True):
            self._cached[slot] = prompt
            self._idle_longest.remove(slot)
            self._idle_longest.append(slot)
        return taken

    def _similar(self, slot: int, prompt: Sequence[int]) -> int:
        common = self._common(slot, prompt)
        return common if common > _SIMILAR * len(prompt) else 0

    def _common(self, slot: int, prompt: Sequence[int]) -> int:
        cached = self._cached.get(slot, [])
        pairs = enumerate(zip(cached, prompt, strict=False))
        same = next((i for i, (one, other) in pairs if one != other), min(len(cached), len(prompt)))
        return max(min(same, len(prompt) - 1), 0)


def next_answers(
    model: ToyModel, prompts: Sequence[list[int]], taken: Sequence[tuple[int, int]], body: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """What `/completion` answers to each prompt with `n_predict` 1, as llama-server does: the last prompt's first.

    The end of the text is a token as well. A part of a character is shown as U+FFFD, without probabilities.
    """
    answers = []
    for index, (prompt, (slot, cached)) in enumerate(zip(prompts, taken, strict=True)):
        said = model.next_token(prompt)
        token = END if said is None else said
        piece = b"" if token == END else model.vocabulary.pieces[token]
        text = piece.decode("utf-8", "replace")
        timings = {"cache_n": cached, "prompt_n": len(prompt) - cached, "prompt_ms": 1.0, "predicted_n": 1}
        answer: dict[str, Any] = {"index": index, "content": text, "tokens": [token], "id_slot": slot, "stop": True}
        answer |= {"stop_type": "eos" if token == END else "limit", "tokens_predicted": 1, "timings": timings}
        if body.get("n_probs") and text.encode() == piece:
            entry = {"id": token, "token": text, "bytes": list(piece), "prob": 1.0}
            answer["completion_probabilities"] = [{**entry, "top_probs": [entry]}]
        answers.append(answer)
    return answers[::-1]


def settings_of(body: Mapping[str, Any]) -> dict[str, Any]:
    """Some of the `generation_settings` that an answer ends with."""
    limits = [body.get(key) for key in ("max_completion_tokens", "max_tokens", "n_predict")]
    settings: dict[str, Any] = {"n_predict": next((limit for limit in limits if limit is not None), -1)}
    settings |= {"temperature": float(body.get("temperature") or 0.0), "seed": body.get("seed", 2**32 - 1)}
    settings |= {"logit_bias": [{"bias": None, "token": END}] if body.get("ignore_eos") else []}
    return {**settings, "stop": body.get("stop", []), "stream": bool(body.get("stream"))}
