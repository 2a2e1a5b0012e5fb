"""Asks a llama-server for the one next token behind given tokens: what its own sampler chooses there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .errors import UpstreamUnavailable
from .text import PART_OF_A_CHARACTER
from .upstream import LlamaServer

SAMPLING_FIELDS = frozenset(
    {
        "temperature", "dynatemp_range", "dynatemp_exponent", "top_k", "top_p", "min_p", "top_n_sigma", "typical_p",
        "xtc_probability", "xtc_threshold", "repeat_last_n", "repeat_penalty", "presence_penalty", "frequency_penalty",
        "dry_multiplier", "dry_base", "dry_allowed_length", "dry_penalty_last_n", "dry_sequence_breakers", "min_keep",
        "samplers", "logit_bias", "ignore_eos", "seed",
    }
)  # fmt: skip
"""The fields of a request that decide what is sampled from given tokens, under one name on all endpoints.

Not among them is what remembers more than tokens from one token to the next: a grammar, mirostat.
"""


def sampling_fields(body: Mapping[str, Any]) -> dict[str, Any]:
    """The SAMPLING_FIELDS that a request's body gives a value; null is the server's default."""
    return {key: value for key, value in body.items() if key in SAMPLING_FIELDS and value is not None}


@dataclass(frozen=True, slots=True)
class Chosen:
    """What a server chose as the one next token.

    `ends` is whether its text is over with it. `pieces` are the bytes of it and of others, where they are known;
    control tokens show none. `distribution` (token id → probability, after all samplers) is there where it was asked
    for and no part of a character could have been chosen. `evaluated` counts prompt tokens, `cached` those that needed
    no evaluation.
    """

    token: int
    ends: bool
    pieces: Mapping[int, bytes]
    distribution: Mapping[int, float] | None
    evaluated: int
    cached: int


async def next_tokens(
    server: LlamaServer,
    prompts: Sequence[Sequence[int]],
    sampling: Mapping[str, Any],
    *,
    top: int = 0,
    timeout: float | None = None,
) -> list[Chosen]:
    """What the server's sampler, with the given SAMPLING_FIELDS, chooses behind each of the prompts, in one request.

    With a seed, all prompts get the same random number. `top` asks for that many entries of the distributions.
    Raises UpstreamError.
    """
    body: dict[str, Any] = {
        **sampling,
        "prompt": [list(ids) for ids in prompts] if len(prompts) > 1 else list(prompts[0]),
        "n_predict": 1,
        "cache_prompt": True,
        "return_tokens": True,
    }
    if top:
        body.update(n_probs=top, post_sampling_probs=True)
    answer = await server.call("POST", "/completion", body, timeout=timeout)
    try:
        # One prompt is answered with an object, several with a list in any order.
        results = sorted(answer, key=lambda result: int(result["index"])) if isinstance(answer, list) else [answer]
        chosen = [_chosen(result) for result in results]
    except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        raise _nonsense(server) from error
    if len(chosen) != len(prompts):
        raise _nonsense(server)
    return chosen


def _nonsense(server: LlamaServer) -> UpstreamUnavailable:
    return UpstreamUnavailable(f"server {server.name!r}: an answer makes no sense", server=server.name)


def is_text(piece: bytes) -> bool:
    """Whether a token is no part of a character."""
    try:
        piece.decode()
    except UnicodeDecodeError:
        return False
    return True


def _chosen(result: Mapping[str, Any]) -> Chosen:
    # With a character of several tokens, a server may go on to its end: the first one is what was asked for.
    said = [int(token) for token in result["tokens"]]
    text = str(result["content"])
    pieces: dict[int, bytes] = {}
    distribution = None
    entries = result.get("completion_probabilities")
    if entries:
        top = entries[0]["top_probs"]
        pieces = {int(entry["id"]): bytes(entry["bytes"]) for entry in top}
        # Servers show no distribution where they chose a part of a character. If it were used where they did not, such
        # parts would be chosen more often than they should: by the server, and from what remains of the distribution.
        if all(is_text(piece) for piece in pieces.values()):
            distribution = {int(entry["id"]): float(entry["prob"]) for entry in top}
    if len(said) == 1 and PART_OF_A_CHARACTER not in text:
        pieces[said[0]] = text.encode()
    timings = result.get("timings") or {}
    return Chosen(
        token=said[0],
        ends=result.get("stop_type") == "eos",
        pieces=pieces,
        distribution=distribution,
        evaluated=int(timings.get("prompt_n", 0)),
        cached=int(timings.get("cache_n", 0)),
    )
