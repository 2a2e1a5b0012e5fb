"""What an answer cost: the tokens that it reports itself, in whichever of the known forms it does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .jsonedit import loads


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of a request, None where the answer does not say.

    `prompt` tokens, of which `cached` ones needed no evaluation; `predicted` tokens, of which `accepted` ones came
    from `drafted` ones that the target verified by itself. `predicted_seconds` is the time from the first of them to
    the last.
    """

    prompt: int | None = None
    cached: int | None = None
    predicted: int | None = None
    predicted_seconds: float | None = None
    drafted: int | None = None
    accepted: int | None = None


def is_accounting(data: bytes) -> bool:
    """Whether this JSON text may say what the answer cost. Cheap; `usage_of` looks closely."""
    return b'"timings"' in data or b'"usage"' in data


def usage_of(data: bytes) -> Usage:
    """What a body, or the last event of a stream, reports.

    llama-server's `timings` say most, else it is OpenAI's or Anthropic's `usage`.
    """
    try:
        answer = loads(data)
    except ValueError:
        return Usage()
    if not isinstance(answer, dict):
        return Usage()
    # `/v1/responses` wraps the whole answer in its last event.
    inner = answer.get("response")
    timings = _mapping(answer, "timings")
    usage = _mapping(answer, "usage") or (_mapping(inner, "usage") if isinstance(inner, dict) else {})
    details = _mapping(usage, "prompt_tokens_details") or _mapping(usage, "input_tokens_details")
    evaluated, cached = _count(timings, "prompt_n"), _count(timings, "cache_n")
    whole = evaluated + (cached or 0) if evaluated is not None else None
    return Usage(
        prompt=_first(whole, _count(usage, "prompt_tokens"), _count(usage, "input_tokens")),
        cached=_first(cached, _count(details, "cached_tokens"), _count(usage, "cache_read_input_tokens")),
        predicted=_first(
            _count(timings, "predicted_n"), _count(usage, "completion_tokens"), _count(usage, "output_tokens")
        ),
        predicted_seconds=_seconds(timings, "predicted_ms"),
        drafted=_count(timings, "draft_n"),
        accepted=_count(timings, "draft_n_accepted"),
    )


def _mapping(answer: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = answer.get(key)
    return value if isinstance(value, dict) else {}


def _count(answer: Mapping[str, Any], key: str) -> int | None:
    value = answer.get(key)
    return value if isinstance(value, int) and _is_sane(value) else None


def _seconds(answer: Mapping[str, Any], key: str) -> float | None:
    value = answer.get(key)
    return value / 1000 if isinstance(value, (int, float)) and _is_sane(value) else None


def _is_sane(value: float) -> bool:
    """Nothing that would spoil a sum: servers can say `Infinity`, `-1` or a number of 400 digits."""
    return not isinstance(value, bool) and 0 <= value < 2**53


def _first(*counts: int | None) -> int | None:
    return next((count for count in counts if count is not None), None)
