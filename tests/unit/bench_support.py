"""Answers and pairs as a measurement has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from specrouter.bench.figures import Answer, Chunk, Group, Pair, Series
from specrouter.bench.plan import BenchOptions
from specrouter.bench.prompts import Prompt, Question
from specrouter.bench.runner import FORGETS, Results
from specrouter.types import ServerInfo

PROMPT = Prompt("chat", "Why is the <sky> blue & not green?")


def answer(sizes: Sequence[int] = (1,) * 20, *, step: float = 0.1, first: float = 0.5, **given: Any) -> Answer:
    """An answer whose steps of `step` seconds bring that many tokens each; all but the last of a step were drafted."""
    chunks = [Chunk(first + step * index, f" w{index}{n}") for index, size in enumerate(sizes) for n in range(size)]
    accepted = sum(sizes) - len(sizes)
    counts = {"tokens": sum(sizes), "accepted": accepted, "drafted": 2 * accepted, "primed": 3 * accepted}
    return Answer(chunks=tuple(chunks), finish="length", **{**counts, **given})


def pair(plain: Answer | None = None, drafted: Answer | None = None, prompt: Prompt = PROMPT, **given: Any) -> Pair:
    """A pair of answers to one prompt, by default twice as fast with drafts."""
    return Pair(
        Question(prompt, prompt, plain_first=True),
        plain or answer(),
        drafted or answer((1, *(2,) * 9, 1)),
        **given,
    )


def results(*series: Series, **given: Any) -> Results:
    """A whole measurement."""
    return Results(
        BenchOptions(prompts=[PROMPT]),
        "topology.yaml",
        servers={"big": ServerInfo(model="big.gguf", build="b1")},
        methods={"big": FORGETS},
        series=list(series),
        **given,
    )


def series(*pairs: Pair, **given: Any) -> Series:
    """A series of pairs that were asked one after the other."""
    groups = [Group((one,), one.plain.seconds, one.drafted.seconds) for one in pairs]
    return Series(**{"route": "chat", "target": "big", "groups": groups, **given})
