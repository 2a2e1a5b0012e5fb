"""Which draft tokens come true: recorded or drawn. Pure, deterministic with a seed."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_APART = 0.2


@dataclass(frozen=True, slots=True)
class Drafted:
    """What the drafter says at one position of the target's answer, when it knows all that comes before.

    `probability` is its confidence, None where it has none; `accepted` whether the target says the same.
    """

    probability: float | None
    accepted: bool


Trace = Sequence[Drafted]
"""One for each position of an answer. Longer answers begin it again."""


def steady(acceptance: float, *, tokens: int, seed: int, is_telling: bool = True) -> Trace:
    """Every token is accepted with the same probability, whatever came before.

    With `is_telling`, the drafter is surer of tokens that are accepted, as draft models are.
    """
    rng = random.Random(seed)  # noqa: S311  (a simulation, not a secret)
    return [_drawn(rng, acceptance, is_telling=is_telling) for _ in range(tokens)]


def stretches(
    easy: float, hard: float, *, tokens: int, seed: int, mean_length: float = 24.0, is_telling: bool = True
) -> Trace:
    """Two kinds of stretches by turns, as in real text: a Markov chain with two states of the same mean length."""
    rng = random.Random(seed)  # noqa: S311
    trace, is_easy = [], True
    for _ in range(tokens):
        is_easy ^= rng.random() < 1 / mean_length
        trace.append(_drawn(rng, easy if is_easy else hard, is_telling=is_telling))
    return trace


def like_text(acceptance: float, *, tokens: int, seed: int) -> Trace:
    """Stretches that make up this acceptance together, as far apart as easy and hard parts of a text are."""
    apart = min(1 - acceptance, acceptance, _APART)
    return stretches(acceptance + apart, acceptance - apart, tokens=tokens, seed=seed)


def _drawn(rng: random.Random, acceptance: float, *, is_telling: bool) -> Drafted:
    accepted = rng.random() < acceptance
    # How sure small models were of tokens that larger ones of their family said, and of those that they did not.
    likely = accepted if is_telling else rng.random() < acceptance
    return Drafted(rng.betavariate(2.5, 0.6) if likely else rng.betavariate(1.6, 1.8), accepted)


def as_lines(trace: Trace) -> str:
    """A trace as JSON lines: `{"probability": 0.93, "accepted": true}`."""
    return "".join(json.dumps({"probability": token.probability, "accepted": token.accepted}) + "\n" for token in trace)


def from_lines(lines: Iterable[str]) -> Trace:
    """A trace from JSON lines. Raises ValueError with the line that makes no sense."""
    trace = []
    for number, line in enumerate(lines, start=1):
        try:
            entry = json.loads(line)
            probability, accepted = entry["probability"], entry["accepted"]
        except (ValueError, KeyError, TypeError):
            probability, accepted = -1, None
        likely = probability is None or (isinstance(probability, int | float) and 0 <= probability <= 1)
        if not likely or not isinstance(accepted, bool):
            wanted = '{"probability": 0.93 or null, "accepted": true}'
            raise ValueError(f"line {number} is {line.strip()[:80]!r}, not {wanted}")
        trace.append(Drafted(probability, accepted))
    return trace
