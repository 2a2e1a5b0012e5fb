"""How drafting for a request begins, whoever verifies its drafts."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from .crossing import CrossingDrafter
from .formats import Format
from .guarded import GuardedDrafter
from .interfaces import Drafter, Generation
from .pairing import Pair
from .plugins import guard
from .routing import Route


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
