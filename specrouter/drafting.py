"""How drafting for a request begins, whoever verifies its drafts."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import anyio

from .crossing import CrossingDrafter
from .errors import SpecrouterError
from .formats import Format
from .guarded import GuardedDrafter
from .interfaces import Drafter, Generation
from .pairing import Pair
from .plugins import guard
from .route import Route
from .sampling import max_tokens_of, sampling_of

log = logging.getLogger(__name__)

_CLOSING_SECONDS = 0.1
"""How long a drafter may take to let go when its request has ended: the client waits for that."""


def generation_of(route: Route, pair: Pair, prompt: Sequence[int], body: Mapping[str, Any]) -> Generation:
    """A request with this body and prompt, as its drafter and its verifier see it."""
    return Generation(
        route=route.config.name,
        target=pair.target,
        prompt=prompt,
        sampling=sampling_of(body),
        max_tokens=max_tokens_of(body),
        vocabulary_limit=pair.vocabulary_limit,
        draft_server=pair.draft_server,
    )


def start_drafter(
    route: Route, pair: Pair, generation: Generation, form: Format, body: Mapping[str, Any]
) -> Drafter | None:
    """The drafter of a request with this body, or None where nothing is to be drafted for it. Does no I/O.

    It drafts tokens of the target, also where the draft model has another vocabulary. Its faults carry the strategy's
    name. Raises PluginError.
    """

    def start(generation: Generation) -> Drafter | None:
        with guard(route.strategy.info):
            drafter = route.strategy.plugin.start(generation)
        return None if drafter is None else GuardedDrafter(drafter, route.strategy.info)

    server = pair.crosses_as_text
    if server is None:
        return start(generation)
    return CrossingDrafter(generation, server, partial(form.prompt_elsewhere, server, pair.target, body), start)


async def close_drafter(drafter: Drafter) -> None:
    """Have a drafter let go, also where the request was cancelled. A fault of it is logged, it has no part any more."""
    with anyio.move_on_after(_CLOSING_SECONDS, shield=True):
        try:
            await drafter.aclose()
        except SpecrouterError as error:
            log.error("%s", error, exc_info=error)
