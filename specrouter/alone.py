"""The rest of an answer as a target says it alone, from tokens that are confirmed already."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from .answers import Ending, Finish, Said, Totals
from .formats import cut_short
from .llama_api import parsed_event
from .sampling import RANDOM_SEED, position_seed
from .text import TextWriter
from .types import Sampling
from .upstream import LlamaServer


async def say_alone(
    target: LlamaServer,
    context: Sequence[int],
    fields: Mapping[str, Any],
    sampling: Sampling,
    *,
    max_tokens: int | None,
    text: TextWriter,
    totals: Totals,
) -> AsyncGenerator[Said]:
    """What follows `context` (prompt and answer so far), event by event, the last one with its ending.

    `fields` are the request's own SAMPLING_FIELDS, `max_tokens` is what is left of its limit. A seed is derived for the
    place at which the target begins. `text` and `totals` go on from where they are. Raises UpstreamError.
    """
    seed = RANDOM_SEED if sampling.seed is None else position_seed(sampling.seed, len(context))
    body = {
        **fields,
        "seed": seed,
        "prompt": list(context),
        "n_predict": -1 if max_tokens is None else max_tokens,
        "stream": True,
        "cache_prompt": True,
    }
    started, before, spent = time.monotonic(), totals.predicted, totals.predicted_seconds
    async with aclosing(target.completion_events(body)) as events:
        async for data in events:
            event = parsed_event(target.name, data)
            totals.predicted = before + int(event.get("tokens_predicted", 0))
            totals.predicted_seconds = spent + time.monotonic() - started
            said = _said(event, text)
            yield said
            if said.ending is not None:
                return
    raise cut_short(target.name)


def _said(event: Mapping[str, Any], text: TextWriter) -> Said:
    token = next(reversed(event.get("tokens") or ()), None)
    visible = text.push(str(event.get("content") or ""))
    if text.stopped_by is not None:
        return Said(visible, token, Ending(Finish.STOP, text.stopped_by))
    if not event.get("stop"):
        return Said(visible, token)
    if event.get("stop_type") == "eos":
        return Said(visible + text.finish(), token, Ending(Finish.END))
    return Said(visible, token, Ending(Finish.LIMIT, unshown=text.held, truncated=bool(event.get("truncated"))))
