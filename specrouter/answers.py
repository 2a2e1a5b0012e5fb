"""Answers that the router writes itself, in the form in which this very target writes its own.

The form differs from build to build, so it is not known here: the target answers a tiny request of each kind once, and
those specimens are what our answers are copied from.
"""

from __future__ import annotations

import abc
import enum
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


class Finish(enum.Enum):
    """Why an answer is over: the model ended its text, a stop string came up, the limit was reached."""

    END = "eos"
    STOP = "word"
    LIMIT = "limit"


@dataclass(frozen=True, slots=True)
class Ending:
    """How an answer ended; `stopped_by` is the stop string that came up, `truncated` whether the context was full.

    `unshown` is the end of the text that a target shows unstreamed only: at the limit, what might have become a stop
    string, or a part of a character.
    """

    why: Finish
    stopped_by: str = ""
    unshown: str = ""
    truncated: bool = False


@dataclass(frozen=True, slots=True)
class Said:
    """What a token, or the last one of a character, or the end of the answer adds to the visible text."""

    text: str
    token: int | None = None
    ending: Ending | None = None


@dataclass(slots=True)
class Totals:
    """What an answer has cost so far. Tokens; times in seconds.

    Of the `prompt` tokens, `cached` needed no evaluation. Of the `predicted` ones, `accepted` came from `drafted` ones.
    """

    prompt: int = 0
    cached: int = 0
    predicted: int = 0
    drafted: int = 0
    accepted: int = 0
    prompt_seconds: float = 0.0
    predicted_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Specimen:
    """A target's own answers to one tiny request: a stream's events, with and without `include_usage`, and the body."""

    stream: Sequence[Mapping[str, Any]]
    stream_with_usage: Sequence[Mapping[str, Any]]
    whole: Mapping[str, Any]


class AnswerWriter(abc.ABC):
    """Writes the events of one streamed answer, or the body of an unstreamed one.

    `prompt` is the prompt's text, for forms that show it in the end.
    """

    ends_with_done: bool
    prompt: str = ""

    @abc.abstractmethod
    def begin(self) -> list[dict[str, Any]]:
        """What comes before the first text."""

    @abc.abstractmethod
    def resume(self, event: Mapping[str, Any], /) -> None:
        """Go on with an answer of which `event` is an earlier one, instead of `begin`."""

    @abc.abstractmethod
    def text(self, text: str, token: int | None, totals: Totals, /) -> list[dict[str, Any]]:
        """The event that adds to the visible text, if there has to be one; `token` is the last id of it."""

    @abc.abstractmethod
    def end(self, ending: Ending, totals: Totals) -> list[dict[str, Any]]:
        """What comes after the last text."""

    def said(self, said: Said, totals: Totals) -> list[dict[str, Any]]:
        """The events for what was said, and where it has an ending, for the end of the answer."""
        return self.text(said.text, said.token, totals) + (self.end(said.ending, totals) if said.ending else [])

    @abc.abstractmethod
    def whole(self, text: str, ending: Ending, totals: Totals, /) -> dict[str, Any]:
        """The body of an unstreamed answer."""


def as_json(value: Mapping[str, Any]) -> bytes:
    """JSON text as llama-server writes it."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def timings(specimen: Mapping[str, Any], totals: Totals) -> dict[str, Any]:
    """llama-server's `timings` for the totals, with the members that the specimen has."""
    evaluated = totals.prompt - totals.cached
    known: dict[str, Any] = {
        "cache_n": totals.cached,
        **_times("prompt", evaluated, totals.prompt_seconds),
        # The first token belongs to the prompt's time.
        **_times("predicted", max(totals.predicted - 1, 0), totals.predicted_seconds),
        "predicted_n": totals.predicted,
    }
    ours = {key: known.get(key, value) for key, value in specimen.items()}
    if totals.drafted:
        ours.update(draft_n=totals.drafted, draft_n_accepted=totals.accepted)
    return ours


def _times(what: str, tokens: int, seconds: float) -> dict[str, Any]:
    milliseconds = seconds * 1000
    return {
        f"{what}_n": tokens,
        f"{what}_ms": round(milliseconds, 3),
        f"{what}_per_token_ms": round(milliseconds / tokens, 3) if tokens else 0.0,
        f"{what}_per_second": round(tokens / seconds, 3) if seconds else 0.0,
    }
