"""Whether an answer is what the target itself says: its tokens are scored again, one by one, by the target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import aclosing
from typing import Any

from specrouter.errors import UpstreamUnavailable
from specrouter.llama_api import parsed_event
from specrouter.upstream import LlamaServer

from .figures import Audit

_TOP = 40
_BEFORE = 2
_BEYOND = 2

_UNLIKELY = 100.0
"""Nats, for what is not among the most likely tokens at all."""


async def audit(
    server: LlamaServer, prompt: Sequence[int], said: bytes, *, ended: bool, limit: int | None = None
) -> Audit:
    """Score a greedy answer to `prompt`, or its first `limit` tokens.

    At each position, the most likely token that goes on as the text does is compared with the most likely one. `ended`
    says that the model ended the text, which is a choice as well. Raises UpstreamError.
    """
    ids, rest = list(prompt), said
    gaps: list[float] = []
    while (rest or ended) and (limit is None or len(gaps) < limit):
        top = await _top(server, ids)
        fitting = next((entry for entry in top if _fits(bytes(entry["bytes"]), rest)), None)
        gaps.append(top[0]["logprob"] - fitting["logprob"] if fitting is not None else _UNLIKELY)
        if not rest or fitting is None:
            break
        ids.append(int(fitting["id"]))
        rest = rest[len(fitting["bytes"]) :]
    return Audit(len(gaps), tuple(gap for gap in gaps if gap > 0))


def _fits(piece: bytes, rest: bytes) -> bool:
    """Whether a token goes on with the text. Tokens that end a text show nothing."""
    return rest.startswith(piece) if piece else not rest


async def difference(server: LlamaServer, prompt: Sequence[int], own: str, said: str, *, ended: bool) -> float:
    """How much the target prefers its own greedy answer to `prompt` where `said` parts from it, in nats.

    What follows is not looked at: it answers to another beginning. Raises UpstreamError.
    """
    common, rest = [], said.encode()
    for token in await server.tokenize(own):
        if not rest.startswith(token.piece):
            break
        common.append(token)
        rest = rest[len(token.piece) :]
    # The text of the token that was said instead may begin as the last ones in common do.
    again = common[-_BEFORE:]
    before = [token.id for token in common[: len(common) - len(again)]]
    rest = b"".join(token.piece for token in again) + rest
    return (await audit(server, [*prompt, *before], rest, ended=ended, limit=len(again) + _BEYOND)).worst


async def _top(server: LlamaServer, ids: Sequence[int]) -> list[Mapping[str, Any]]:
    """The most likely next tokens, the most likely one first."""
    body = {"prompt": list(ids), "n_predict": 1, "n_probs": _TOP, "temperature": 0, "cache_prompt": True}
    # Streamed, because unstreamed some builds answer 500 to text that ends within a character.
    async with aclosing(server.completion_events({**body, "stream": True})) as events:
        async for data in events:
            probabilities = parsed_event(server.name, data).get("completion_probabilities")
            if probabilities:
                top: list[Mapping[str, Any]] = probabilities[0]["top_logprobs"]
                return top
    raise UpstreamUnavailable(f"server {server.name!r} shows no probabilities", server=server.name)
