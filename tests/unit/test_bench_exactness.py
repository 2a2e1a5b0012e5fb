"""Answers are scored again by the target, token by token."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from specrouter.bench.exactness import audit, difference
from specrouter.types import Token

pytestmark = pytest.mark.anyio

VOCABULARY = {1: b" the", 2: b" t", 3: b"he", 4: b" cat", 5: b" dog", 6: "é".encode()[:1], 7: "é".encode()[1:], 8: b""}
PROMPT = [100, 101]


class Target:
    """Says what follows what, with probabilities; whatever else follows, it has never heard of."""

    name = "big"

    def __init__(self, following: Mapping[tuple[int, ...], Mapping[int, float]]) -> None:
        self.following = following
        self.asked: list[list[int]] = []

    async def tokenize(self, text: str) -> list[Token]:
        left, found = text.encode(), []
        while left:
            token = max(
                (t for t, piece in VOCABULARY.items() if piece and left.startswith(piece)),
                key=lambda t: len(VOCABULARY[t]),
            )
            found.append(Token(token, VOCABULARY[token]))
            left = left[len(VOCABULARY[token]) :]
        return found

    async def completion_events(self, body: Mapping[str, Any]) -> AsyncIterator[bytes]:
        assert body["n_predict"] == 1
        self.asked.append(body["prompt"])
        said = tuple(body["prompt"][len(PROMPT) :])
        shares = sorted(self.following[said].items(), key=lambda entry: -entry[1])
        top = [{"id": t, "logprob": math.log(share), "bytes": list(VOCABULARY[t])} for t, share in shares]
        yield json.dumps({"content": "", "completion_probabilities": [{"top_logprobs": top}]}).encode()
        yield json.dumps({"content": "", "stop": True}).encode()


@pytest.fixture
def target() -> Target:
    """Says ` the cat` and ends; at first ` t` is nearly as likely, and ` dog` a third as likely as ` cat`."""
    return Target(
        {
            (): {1: 0.5, 2: 0.49},
            (1,): {4: 0.6, 5: 0.2},
            (2,): {3: 1.0},
            (1, 4): {8: 0.9, 5: 0.1},
            (1, 5): {8: 1.0},
        }
    )


async def check(target: Target, text: str, *, ended: bool = True, **given: Any) -> tuple[int, list[float]]:
    """How many tokens were looked at, and the gaps."""
    found = await audit(target, PROMPT, text.encode(), ended=ended, **given)  # type: ignore[arg-type]
    return found.tokens, [round(gap, 3) for gap in found.gaps]


async def test_the_targets_own_answer(target: Target) -> None:
    assert await check(target, " the cat") == (3, [])
    assert target.asked == [PROMPT, [*PROMPT, 1], [*PROMPT, 1, 4]]


async def test_the_end_is_a_choice_too(target: Target) -> None:
    assert await check(target, " the cat", ended=False) == (2, [])
    assert await check(target, " the cat dog", ended=False) == (3, [round(math.log(9), 3)])


async def test_another_token_has_a_gap(target: Target) -> None:
    assert await check(target, " the dog") == (3, [round(math.log(3), 3)])


async def test_what_the_target_would_never_say(target: Target) -> None:
    assert await check(target, " the bird") == (2, [100.0])
    assert await check(target, "") == (1, [100.0]), "it would not end here"


async def test_only_the_beginning(target: Target) -> None:
    assert await check(target, " the dog", limit=1) == (1, [])


async def test_half_characters() -> None:
    half = Target({(): {6: 0.9, 1: 0.1}, (6,): {7: 1.0}, (6, 7): {8: 1.0}})
    assert await check(half, "é") == (3, [])


async def test_where_two_answers_part(target: Target) -> None:
    gap = await difference(target, PROMPT, " the cat", " the dog", ended=True)  # type: ignore[arg-type]
    assert gap == pytest.approx(math.log(3))
    longer = await difference(target, PROMPT, " the cat", " the cat dog", ended=False)  # type: ignore[arg-type]
    assert longer == pytest.approx(math.log(9))


async def test_an_answer_that_ends_sooner_than_the_targets_own() -> None:
    target = Target({(): {1: 1.0}, (1,): {4: 0.51, 8: 0.49}})
    gap = await difference(target, PROMPT, " the cat", " the", ended=True)  # type: ignore[arg-type]
    assert gap == pytest.approx(math.log(0.51 / 0.49))
