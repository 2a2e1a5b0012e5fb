"""The plain proxied request: the client's body goes to a target, the target's bytes come back.

Everything is one of these. A companion (`engine`) may run beside it and is never in its way.
"""

from __future__ import annotations

import logging

from starlette.types import Send

from .continuing import Spoken
from .errors import (
    UpstreamBroke,
    UpstreamLoading,
    UpstreamTimeout,
    UpstreamUnavailable,
)
from .exchange import Exchange
from .proxied import ProxyRequest, Result
from .route import Route
from .types import ServerState

log = logging.getLogger(__name__)

_WORTH_TRYING = (ServerState.UP, ServerState.UNKNOWN)

_MOST_DEATHS = 2
"""Servers that may die within one request before it is taken for the cause."""


async def proxy(request: ProxyRequest, route: Route, send: Send, result: Result) -> None:
    """Answer a request from the route's targets, and let another one go on where one dies within its answer.

    Raises RequestError, also within an answer: whoever calls tells the client, as far as that is possible then.
    """
    keys = route.prompt_keys(request.body, request.headers)
    candidates = route.candidates(keys) if request.drafts else route.candidates_alone(keys)
    route.wake(candidates[0], drafts=request.drafts)
    spoken = Spoken(request.path, request.body) if len(candidates) > 1 and request.streams else None
    failures: list[UpstreamUnavailable | UpstreamTimeout | UpstreamLoading] = []
    tried = deaths = 0
    for index, target in enumerate(candidates):
        if spoken is not None and spoken.has_begun and not spoken.can_be_continued(target):
            continue
        result.server, result.takeovers = target.name, tried
        tried += 1
        others = any(other.state in _WORTH_TRYING for other in candidates[index + 1 :])
        load_wait = 0 if others else target.config.load_wait
        exchange = Exchange(request, route, target, send, result, keys=keys, load_wait=load_wait, spoken=spoken)
        try:
            with target.answering():
                await exchange.run()
            return
        except (UpstreamUnavailable, UpstreamTimeout, UpstreamLoading) as failure:
            log.warning("%s", failure)
            failures.append(failure)
            deaths += isinstance(failure, UpstreamBroke)
            if deaths == _MOST_DEATHS or (result.first_byte is not None and (spoken is None or not result.is_stream)):
                break
    assert failures, "a route has at least one target"
    error = failures[-1]
    if result.first_byte is None and len(failures) > 1:
        words = "; ".join(str(failure) for failure in failures)
        raise type(error)(f"no target of {route.config.name!r} answers: {words}", server=error.server) from error
    raise error
