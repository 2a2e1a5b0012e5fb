"""What is made of measured answers: medians with their range, steps and who said each token. Pure.

Speeds are tokens per second after the first token, times are in seconds.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from .prompts import Question

SHORTEST_ANSWER = 8
"""Tokens under which an answer has no speed worth comparing."""

FEWEST_PAIRS = 3
"""Pairs under which a median is nothing to rely on."""

NOISY = 0.15
"""Share by which the plain target's speed may vary within a run before the figures need a warning."""

NEAR_TIE = 0.05
"""Nats. Between two tokens this close, a target chooses by the size of its batch."""

_SAME_INSTANT = 0.003


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of an answer's text and when it arrived, from the moment of asking."""

    at: float
    text: str


@dataclass(frozen=True, slots=True)
class Answer:
    """One measured answer.

    `tokens` are those that the target counted, `drafted` and `accepted` its own figures, `primed` those that it
    evaluated for the companion. `chunks` end with an empty one where the model has ended its text. `server` is who
    answered, `decoding` what the router says about it, `ended_early` why drafting stopped before its end.
    """

    tokens: int
    chunks: tuple[Chunk, ...]
    finish: str
    drafted: int = 0
    accepted: int = 0
    primed: int = 0
    server: str | None = None
    decoding: str = "plain"
    ended_early: str | None = None

    @property
    def text(self) -> str:
        """All that was said."""
        return "".join(chunk.text for chunk in self.chunks)

    @property
    def first(self) -> float:
        """Time to first token."""
        return self.chunks[0].at

    @property
    def seconds(self) -> float:
        """From asking to the end."""
        return self.chunks[-1].at

    @property
    def speed(self) -> float | None:
        """None where there are too few tokens to tell."""
        after_first = self.seconds - self.first
        return (self.tokens - 1) / after_first if self.tokens >= SHORTEST_ANSWER and after_first > 0 else None


@dataclass(frozen=True, slots=True)
class Audit:
    """How an answer compares with the target's own choices: `gaps`, in nats, between the best token and the one said.

    `tokens` were looked at; gaps of 0 are not listed.
    """

    tokens: int
    gaps: tuple[float, ...]

    @property
    def worst(self) -> float:
        """The largest gap, 0 if every token is the target's first choice."""
        return max(self.gaps, default=0.0)

    @property
    def is_exact(self) -> bool:
        """Nothing is worse than a near tie."""
        return self.worst < NEAR_TIE


@dataclass(frozen=True, slots=True)
class Pair:
    """The plain answer and the drafted one to a question.

    `difference` is how large the target's preference was where greedy answers part, in nats; None where they do
    not, or where nobody looked. `audit` is of the drafted answer. The first pair of a route `is_first`: medians leave
    it out.
    """

    question: Question
    plain: Answer
    drafted: Answer
    difference: float | None = None
    audit: Audit | None = None
    is_first: bool = False

    @property
    def kind(self) -> str:
        """The kind of the prompts."""
        return self.question.drafted.kind

    @property
    def ratio(self) -> float | None:
        """Speed with drafts over speed without; None where one of the answers is too short."""
        plain, drafted = self.plain.speed, self.drafted.speed
        return drafted / plain if plain and drafted else None

    @property
    def is_equal(self) -> bool | None:
        """Whether the texts are equal; None where they need not be."""
        if not self.question.is_same or self.question.drafted.temperature > 0:
            return None
        return self.plain.text == self.drafted.text


@dataclass(frozen=True, slots=True)
class Group:
    """Pairs that were asked at the same time, and the seconds from the first question to the last answer's end."""

    pairs: tuple[Pair, ...]
    plain_seconds: float
    drafted_seconds: float


@dataclass(frozen=True, slots=True)
class Missing:
    """A question that one of the routes did not answer, or that was asked together with such a one; and why."""

    question: Question
    reason: str


@dataclass(slots=True)
class Series:
    """A route under one condition. Round trips are added ones, in seconds.

    With `cached`, the target may have had a prompt in its cache when it was asked the second time. `missing` are the
    questions without a pair of answers.
    """

    route: str
    target: str
    concurrency: int = 1
    rtt: float = 0.0
    rtt_target: float = 0.0
    cached: bool = False
    groups: list[Group] = field(default_factory=list)
    missing: list[Missing] = field(default_factory=list)

    @property
    def all_pairs(self) -> list[Pair]:
        """In the order in which they were asked, the first ones included."""
        return [pair for group in self.groups for pair in group.pairs]

    @property
    def pairs(self) -> list[Pair]:
        """Those that count."""
        return [pair for pair in self.all_pairs if not pair.is_first]

    def together(self) -> tuple[float, float] | None:
        """Tokens per second of all answers at once, waiting included: plain and drafted. None without any."""
        counted = [group for group in self.groups if not any(pair.is_first for pair in group.pairs)]
        if not counted:
            return None
        plain = sum(pair.plain.tokens for group in counted for pair in group.pairs)
        drafted = sum(pair.drafted.tokens for group in counted for pair in group.pairs)
        return (
            plain / sum(group.plain_seconds for group in counted),
            drafted / sum(group.drafted_seconds for group in counted),
        )


# -- medians -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and range of `n` values."""

    n: int
    median: float
    low: float
    high: float


def spread(values: Iterable[float | None]) -> Spread | None:
    """Of the values that are there; None if there is none."""
    known = [value for value in values if value is not None]
    return Spread(len(known), statistics.median(known), min(known), max(known)) if known else None


@dataclass(frozen=True, slots=True)
class Row:
    """The figures of some pairs. Counts are of all of them together; None where there is nothing to divide by.

    `per_step` are the tokens that the target said per step: the mean acceptance length, steps without a draft
    included. `primed` and `verified` are draft tokens evaluated per token said. Of `compared` texts `equal` are equal,
    `ties` part at a near tie; `audited` tokens were looked at, `worst` is the largest gap found, in nats.
    """

    pairs: int
    plain: Spread | None
    drafted: Spread | None
    ratio: Spread | None
    first_plain: Spread | None
    first_drafted: Spread | None
    acceptance: float | None
    per_step: float | None
    primed: float | None
    verified: float | None
    compared: int
    equal: int
    ties: int
    audited: int
    worst: float | None


def row(pairs: Sequence[Pair]) -> Row:
    """The figures of pairs."""
    tokens = sum(pair.drafted.tokens for pair in pairs)
    drafted, accepted = (sum(getattr(pair.drafted, key) for pair in pairs) for key in ("drafted", "accepted"))
    compared = [pair for pair in pairs if pair.is_equal is not None]
    parted = [pair.difference for pair in compared if pair.difference is not None]
    audits = [pair.audit for pair in pairs if pair.audit is not None]
    return Row(
        pairs=len(pairs),
        plain=spread(pair.plain.speed for pair in pairs),
        drafted=spread(pair.drafted.speed for pair in pairs),
        ratio=spread(pair.ratio for pair in pairs),
        first_plain=spread(pair.plain.first for pair in pairs),
        first_drafted=spread(pair.drafted.first for pair in pairs),
        acceptance=accepted / drafted if drafted else None,
        per_step=tokens / (tokens - accepted) if tokens > accepted else None,
        primed=sum(pair.drafted.primed for pair in pairs) / tokens if tokens else None,
        verified=drafted / tokens if tokens else None,
        compared=len(compared),
        equal=sum(pair.is_equal is True for pair in compared),
        ties=sum(gap < NEAR_TIE for gap in parted),
        audited=sum(audit.tokens for audit in audits),
        worst=max([*parted, *(audit.worst for audit in audits)], default=None),
    )


def rows(pairs: Sequence[Pair]) -> list[tuple[str, Row]]:
    """A row for each kind, and one for all of them where there are several."""
    kinds = list(dict.fromkeys(pair.kind for pair in pairs))
    by_kind = [(kind, row([pair for pair in pairs if pair.kind == kind])) for kind in kinds]
    return [*by_kind, ("all", row(pairs))] if len(kinds) > 1 else by_kind


def undrafted_speed(pairs: Sequence[Pair]) -> Spread | None:
    """The speed of the target by itself. Answers for which it found drafts of its own do not count."""
    return spread(pair.plain.speed for pair in pairs if not pair.plain.accepted)


def is_noisy(alone: Spread) -> bool:
    """Whether a target's own speed varied so much that ratios need a warning."""
    return alone.n >= FEWEST_PAIRS and alone.high - alone.low > NOISY * alone.median


# -- steps -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Steps:
    """How many chunks each step of the target brought. In each, the last is the target's own token, those before it
    accepted draft tokens. `is_certain` is whether the steps can be told apart by when their chunks arrived.
    """

    sizes: tuple[int, ...]
    is_certain: bool

    def accepted(self) -> list[bool]:
        """For each chunk, whether it is an accepted draft token."""
        return [index < size - 1 for size in self.sizes for index in range(size)]


def steps(answer: Answer) -> Steps:
    """An answer's steps. How many there were is known: one for each token that was not an accepted draft token.

    So the longest pauses are those between steps.
    """
    count = min(max(answer.tokens - answer.accepted, 1), len(answer.chunks))
    pauses = [later.at - earlier.at for earlier, later in pairwise(answer.chunks)]
    longest = sorted(range(len(pauses)), key=lambda index: pauses[index], reverse=True)
    ends = sorted(longest[: count - 1])
    between = min((pauses[index] for index in ends), default=None)
    within = max((pauses[index] for index in longest[count - 1 :]), default=0.0)
    borders = [-1, *ends, len(answer.chunks) - 1]
    return Steps(
        sizes=tuple(after - before for before, after in pairwise(borders)),
        is_certain=between is None or between > max(2 * within, _SAME_INSTANT) or within == 0,
    )


def acceptance_by_position(answers: Iterable[Answer]) -> list[float]:
    """The share of steps in which at least 1, 2, 3, … draft tokens were accepted, for answers with certain steps."""
    taken = [size - 1 for found in map(steps, answers) if found.is_certain for size in found.sizes[1:]]
    return [sum(size >= position for size in taken) / len(taken) for position in range(1, max(taken, default=0) + 1)]
