"""Measures what a prediction starts from: how fast drafts come, and which of them the target would have said."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from .bench.prompts import shipped
from .drafting import close_drafter
from .formats import FORMATS, Format
from .interfaces import Drafter, Generation
from .sampling import sampling_of
from .simulator import Drafted
from .types import DraftToken
from .upstream import LlamaServer

Start = Callable[[Generation, Format, Mapping[str, Any]], Drafter | None]
"""Makes the drafter for a request with this body, or None where nothing is drafted for it."""

_PATH = "/v1/chat/completions"
_KINDS = ("chat", "code", "translation")
_ANSWER = 32
_DRAFT = 16


@dataclass(frozen=True, slots=True)
class DraftSpeed:
    """How fast and how good drafts are.

    `token` is the time from one token to the next, `first` the time from asking for a draft to its first token, round
    trip included; None where too little was drafted to tell. `trace` has every position of the measured answers,
    `silent` of them without a draft token.
    """

    token: float | None
    first: float | None
    trace: Sequence[Drafted]
    silent: int = 0

    @property
    def acceptance(self) -> float:
        """Share of positions at which the drafter says what the target says."""
        return sum(token.accepted for token in self.trace) / len(self.trace) if self.trace else 0.0


@dataclass(frozen=True, slots=True)
class Answer:
    """A target's answer to a request with this `body`, in token ids, and the kind of its prompt."""

    kind: str
    body: Mapping[str, Any]
    prompt: Sequence[int]
    said: Sequence[int]


async def answers_of(target: LlamaServer, doing: Callable[[str], None] = lambda _: None) -> list[Answer]:
    """What a target says to a few prompts, greedily: the beginnings of its answers. Raises UpstreamError."""
    answers = []
    for kind, text in _prompts():
        doing(f"what {target.name} says ({kind})")
        body = {"messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": _ANSWER}
        ids = await FORMATS[_PATH].prompt(target, body)
        answers.append(Answer(kind, body, ids, await _said(target, ids)))
    return answers


async def measure_drafts(
    target: LlamaServer,
    answers: Sequence[Answer],
    start: Start,
    *,
    route: str = "",
    vocabulary_limit: int | None = None,
    doing: Callable[[str], None] = lambda _: None,
) -> DraftSpeed:
    """Have drafts made for every position of a target's answers. Raises UpstreamError, PluginError.

    A draft goes on while it is right, and the next one begins behind what the target says instead. So every position
    is drafted once, from the target's own text, as it is in use.
    """
    walks: list[_Walk] = []
    for answer in answers:
        generation = Generation(
            route, target, answer.prompt, sampling_of(answer.body), len(answer.said), vocabulary_limit
        )
        drafter = start(generation, FORMATS[_PATH], answer.body)
        if drafter is None:
            continue
        doing(f"drafts for what {target.name} says ({answer.kind})")
        try:
            walk = _Walk(answer)
            await walk.run(drafter)
            walks.append(walk)
        finally:
            await close_drafter(drafter)
    return DraftSpeed(
        token=_median([gap for walk in walks for gap in walk.gaps]),
        # The first draft of an answer waits for its prompt to be evaluated.
        first=_median([first for walk in walks for first in walk.firsts[1:]]),
        trace=[token for walk in walks for token in walk.trace],
        silent=sum(walk.silent for walk in walks),
    )


def _prompts() -> list[tuple[str, str]]:
    """One of each kind."""
    prompts = shipped()
    return [(kind, next(prompt.text for prompt in prompts if prompt.kind == kind)) for kind in _KINDS]


async def _said(target: LlamaServer, ids: Sequence[int]) -> list[int]:
    said: list[int] = []
    async with aclosing(target.generate(ids, _ANSWER)) as events:
        async for event in events:
            if event.complete:
                said += event.tokens
            elif event.text:
                # A character of several tokens shows one id of them.
                said += [token.id for token in await target.tokenize(event.text)]
    return said


class _Walk:
    """Drafts along an answer. `firsts` and `gaps` are seconds: to a draft's first token, and between its others."""

    def __init__(self, answer: Answer) -> None:
        self.trace: list[Drafted] = []
        self.firsts: list[float] = []
        self.gaps: list[float] = []
        self.silent = 0
        self._prompt = answer.prompt
        self._said = answer.said

    async def run(self, drafter: Drafter) -> None:
        """To the answer's end. Raises what the drafter raises."""
        while len(self.trace) < len(self._said):
            before = len(self.trace)
            await self._draft(drafter)
            if len(self.trace) == before:
                # The drafter has nothing to say here.
                self.silent += 1
                self.trace.append(Drafted(None, accepted=False))

    async def _draft(self, drafter: Drafter) -> None:
        position = len(self.trace)
        context = [*self._prompt, *self._said[:position]]
        times = [time.perf_counter()]
        async with aclosing(drafter.draft(context, min(_DRAFT, len(self._said) - position))) as tokens:
            async for token in tokens:
                times.append(time.perf_counter())
                if not self._take(token):
                    break
        if len(times) > 1:
            self.firsts.append(times[1] - times[0])
        if len(times) > 2:
            # Of the whole draft: several tokens may arrive together.
            self.gaps.append((times[-1] - times[1]) / (len(times) - 2))

    def _take(self, token: DraftToken) -> bool:
        position = len(self.trace)
        if position == len(self._said):
            return False
        accepted = token.id == self._said[position]
        self.trace.append(Drafted(token.probability, accepted))
        return accepted


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None
