"""Has a target answer a tiny request of each kind, to see in which form it writes its answers."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from typing import Any

from .answers import Specimen
from .errors import UpstreamRejected, UpstreamUnavailable
from .formats import FORMATS
from .sse import DONE
from .upstream import LlamaServer

log = logging.getLogger(__name__)

_REQUESTS: Mapping[str, Mapping[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Count to three."}]},
    "/v1/completions": {"prompt": "One, two,"},
    "/completion": {"prompt": "One, two,"},
}

_TOKENS = 3


async def take_specimens(target: LlamaServer) -> Mapping[str, Specimen]:
    """A specimen for every path that has a format, but those on which the target refuses. Raises UpstreamError."""
    taken: dict[int, Specimen] = {}
    for path in _REQUESTS:
        try:
            taken[id(FORMATS[path])] = await take_specimen(target, path)
        except UpstreamRejected as error:
            # A chat template that takes no such messages, say, is nothing to the other paths.
            log.warning("no answers are drafted for %s: %s", path, error)
    return {path: taken[id(form)] for path, form in FORMATS.items() if id(form) in taken}


async def take_specimen(target: LlamaServer, path: str) -> Specimen:
    """A specimen for one path. Raises UpstreamError."""
    path = next(known for known in _REQUESTS if FORMATS[known] is FORMATS[path])
    request = {**_REQUESTS[path], "max_tokens": _TOKENS, "temperature": 0, "logit_bias": {}, "ignore_eos": True}
    if target.model_name is not None:
        request["model"] = target.model_name
    specimen = Specimen(
        stream=await _events(target, path, {**request, "stream": True}),
        stream_with_usage=await _events(
            target, path, {**request, "stream": True, "stream_options": {"include_usage": True}}
        ),
        whole=await target.call("POST", path, request),
    )
    events = (specimen.stream, specimen.stream_with_usage)
    if not all(_has_text(path, stream) for stream in events) or not isinstance(specimen.whole, dict):
        raise UpstreamUnavailable(f"server {target.name!r}: {path} answered without text", server=target.name)
    return specimen


def _has_text(path: str, events: Sequence[Mapping[str, Any]]) -> bool:
    read = FORMATS[path].new_reader()
    return any(delta.text for event in events for delta in read(json.dumps(event).encode(), 0.0))


async def _events(target: LlamaServer, path: str, body: Mapping[str, Any]) -> list[dict[str, Any]]:
    async with aclosing(target.events(path, body)) as events:
        found = [json.loads(data) async for data in events if data != DONE]
    return [event for event in found if isinstance(event, dict)]
