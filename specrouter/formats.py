"""The endpoints whose answers a companion can follow: how each states its prompt, and how its stream reads."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from . import openai_api
from .answers import AnswerWriter, Specimen, as_json
from .errors import UpstreamBroke, UpstreamRejected, UpstreamUnavailable
from .jsonedit import loads
from .llama_api import CompletionAnswer, TokenCounter, completion_delta, joined_completion, rejected, wants_stream
from .next_token import SAMPLING_FIELDS
from .sampling import max_tokens_of
from .sse import DONE
from .types import Delta
from .upstream import LlamaServer

DeltaReader = Callable[[bytes, float], list[Delta]]
"""The data of one stream event and when it was received → what it adds to the visible answer."""

_SHORTEST_ANSWER = 8
"""Tokens; below, an answer is over before the first draft could be verified."""

_SHAPED_BY_STREAMING = ("reasoning_format", "return_tokens", "return_progress", "response_fields", "timings_per_token")
"""Fields that make an unstreamed answer differ from what its stream adds up to."""


@dataclass(frozen=True, slots=True)
class Format:
    """One kind of generation request.

    `prompt` gives the ids the target evaluates for a body; `prompt_elsewhere` those that a server with another
    vocabulary (the first one) evaluates for a body that the target (the second one) answers. `new_reader` gives a
    reader for one stream, `is_end` tells from the last event's data whether the stream was complete. `joined`
    makes the unstreamed body of all event objects of a stream; `streaming_members` are what the request body
    needs (as JSON text) so that nothing is missing for that. `writer` makes what writes answers itself, from a
    specimen, the request's body, the name of the model, and, where the answer `shows_prompt`, the prompt's text.
    """

    prompt: Callable[[LlamaServer, Mapping[str, Any]], Awaitable[list[int]]]
    prompt_elsewhere: Callable[[LlamaServer, LlamaServer, Mapping[str, Any]], Awaitable[list[int]]]
    new_reader: Callable[[], DeltaReader]
    is_end: Callable[[bytes], bool]
    joined: Callable[[Sequence[Mapping[str, Any]]], dict[str, Any]]
    streaming_members: Mapping[str, bytes]
    writer: Callable[[Specimen, Mapping[str, Any], str, str], AnswerWriter]
    shows_prompt: bool = False


def obstacle(path: str, body: Mapping[str, Any]) -> str | None:
    """Why no companion can follow the answer to this request, or None."""
    if path not in FORMATS:
        return "no companion follows this endpoint"
    if not isinstance(body.get("stream", False), bool | None):
        return "a stream that is no boolean"
    prompt = body.get("prompt")
    if isinstance(prompt, dict) or (isinstance(prompt, list) and not all(_is_token(item) for item in prompt)):
        return "several prompts or a prompt with media"
    if any(body.get(key) not in (None, 1) for key in ("n", "n_cmpl")):
        return "several answers wanted"
    if body.get("logprobs") or body.get("top_logprobs") or body.get("n_probs"):
        return "token probabilities wanted"
    if _has_media(body.get("messages")):
        return "images or audio in the prompt"
    limit = max_tokens_of(body)
    if limit is not None and limit < _SHORTEST_ANSWER:
        return f"only {limit} tokens wanted"
    if not wants_stream(body):
        shaped = [key for key in _SHAPED_BY_STREAMING if body.get(key)]
        if shaped:
            return f"{shaped[0]} without stream"
    return None


_STEPWISE_FIELDS = SAMPLING_FIELDS | {
    "model", "messages", "prompt", "stream", "stream_options", "max_tokens", "max_completion_tokens", "n_predict",
    "stop", "n", "n_cmpl", "return_tokens", "user", "metadata", "store", "prompt_cache_key", "chat_template_kwargs",
    "add_generation_prompt", "timings_per_token",
}  # fmt: skip
"""What a request may say so that its answer can be written token by token; everything else is the target's business."""

_OFF: tuple[object, ...] = (None, False, 0, "", [], {}, "none", {"type": "text"})

_NEVER_OFF = ("cache_prompt", "json_schema", "lora")
"""Fields that say something with a value from `_OFF`, too: a schema that any JSON fits, no adapters, no cache."""

_MARKUP = re.compile(r"think|reason|channel", re.IGNORECASE)


def stepwise_obstacle(path: str, body: Mapping[str, Any], chat_template: str | None) -> str | None:
    """Why the answer to a request cannot be put together from single tokens, or None."""
    others = [key for key in body if key not in _STEPWISE_FIELDS and not _is_usual(key, body[key])]
    if others:
        return f"fanout does not cover the field {others[0]}"
    if not _is_stop(body.get("stop")):
        return "a stop that is no text"
    if FORMATS[path] is not _CHAT and not isinstance(body.get("prompt"), str | list):
        return "a prompt that is no text"
    # What the target parses out of such answers is not in its tokens.
    if FORMATS[path] is _CHAT and (chat_template is None or _MARKUP.search(chat_template)):
        return "fanout does not cover chats with models that reason"
    return None


def _is_usual(key: str, value: object) -> bool:
    """Whether a field says nothing but what is the case without it."""
    if key in _NEVER_OFF:
        return value is None or (key == "cache_prompt" and value is True)
    return value in _OFF or (key == "tool_choice" and value == "auto")


def _is_stop(stop: object) -> bool:
    return stop is None or isinstance(stop, str) or (isinstance(stop, list) and all(isinstance(s, str) for s in stop))


def stops_of(body: Mapping[str, Any]) -> list[str]:
    """The stop strings of a request that has no stepwise obstacle."""
    stop = body.get("stop")
    return [stop] if isinstance(stop, str) else list(stop or ())


def _is_token(item: object) -> bool:
    return isinstance(item, int) and not isinstance(item, bool)


def _has_media(messages: object) -> bool:
    if not isinstance(messages, list):
        return False
    contents = [message.get("content") for message in messages if isinstance(message, dict)]
    parts = [part for content in contents if isinstance(content, list) for part in content]
    return any(not isinstance(part, dict) or part.get("type") != "text" for part in parts)


async def _chat_prompt(server: LlamaServer, body: Mapping[str, Any]) -> list[int]:
    text = await server.apply_template(body)
    return await _ids(server, text)


async def _chat_prompt_elsewhere(server: LlamaServer, target: LlamaServer, body: Mapping[str, Any]) -> list[int]:
    try:
        return await _chat_prompt(server, body)
    except UpstreamRejected:
        # Its template does not take such messages, say from `system` or with tools.
        return await _ids(server, await target.apply_template(body))


async def _text_prompt(server: LlamaServer, body: Mapping[str, Any]) -> list[int]:
    prompt = body.get("prompt")
    if isinstance(prompt, list):
        return [int(token) for token in prompt]
    return await _ids(server, str(prompt or ""))


async def _text_prompt_elsewhere(server: LlamaServer, target: LlamaServer, body: Mapping[str, Any]) -> list[int]:
    if isinstance(body.get("prompt"), list):
        return await _ids(server, await target.detokenize(await _text_prompt(target, body)))
    return await _text_prompt(server, body)


async def _ids(server: LlamaServer, prompt: str) -> list[int]:
    return [token.id for token in await server.tokenize(prompt, add_special=True)]


def _parsed(read: Callable[[Mapping[str, Any], float], list[Delta]]) -> DeltaReader:
    def reader(data: bytes, received: float) -> list[Delta]:
        event = loads(data)
        return read(event, received) if isinstance(event, dict) else []

    return reader


def _completion_reader() -> DeltaReader:
    counter = TokenCounter()
    return _parsed(lambda event, received: [completion_delta(event, counter, received)])


def _is_done_or_error(data: bytes) -> bool:
    return data == DONE or "error" in _object(data)


def _is_stop_or_error(data: bytes) -> bool:
    event = _object(data)
    return bool(event.get("stop")) or "error" in event


def is_error(data: bytes) -> bool:
    """Whether a stream event reports an error."""
    return b'"error"' in data and _object(data).get("error") is not None


def _object(data: bytes) -> dict[str, Any]:
    try:
        event = loads(data)
    except ValueError:
        return {}
    return event if isinstance(event, dict) else {}


_CHAT = Format(
    prompt=_chat_prompt,
    prompt_elsewhere=_chat_prompt_elsewhere,
    new_reader=lambda: _parsed(openai_api.chat_deltas),
    is_end=_is_done_or_error,
    joined=openai_api.joined_chat,
    streaming_members={"stream": b"true", "stream_options": b'{"include_usage":true}'},
    writer=openai_api.ChatAnswer,
)
_TEXT = Format(
    prompt=_text_prompt,
    prompt_elsewhere=_text_prompt_elsewhere,
    new_reader=lambda: _parsed(openai_api.text_deltas),
    is_end=_is_done_or_error,
    joined=openai_api.joined_text,
    streaming_members={"stream": b"true", "stream_options": b'{"include_usage":true}'},
    writer=openai_api.TextAnswer,
)
_COMPLETION = Format(
    prompt=_text_prompt,
    prompt_elsewhere=_text_prompt_elsewhere,
    new_reader=_completion_reader,
    is_end=_is_stop_or_error,
    joined=joined_completion,
    streaming_members={"stream": b"true"},
    writer=CompletionAnswer,
    shows_prompt=True,
)

FORMATS: Mapping[str, Format] = {
    "/v1/chat/completions": _CHAT,
    "/chat/completions": _CHAT,
    "/v1/completions": _TEXT,
    "/completion": _COMPLETION,
    "/completions": _COMPLETION,
}
"""Path → format, for the paths under which llama-server serves them."""


def cut_short(server: str) -> UpstreamBroke:
    """The error for a stream that was closed before its end."""
    return UpstreamBroke(f"server {server!r} closed the connection within its answer", server=server)


def joined_answer(form: Format, events: Sequence[bytes], server: str) -> bytes:
    """The unstreamed body that a stream's event data add up to.

    Raises UpstreamRejected for the error the stream ended with, UpstreamUnavailable if it makes no sense.
    """
    try:
        parsed = [loads(data) for data in events]
    except ValueError as error:
        raise UpstreamUnavailable(f"server {server!r}: a stream event is not JSON", server=server) from error
    for data, event in zip(events, parsed, strict=True):
        if isinstance(event, dict) and "error" in event:
            raise rejected(server, data)
    objects = [event for event in parsed if isinstance(event, dict)]
    if not objects:
        raise UpstreamUnavailable(f"server {server!r}: an empty answer", server=server)
    try:
        joined = form.joined(objects)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UpstreamUnavailable(f"server {server!r}: a stream event makes no sense", server=server) from error
    return as_json(joined)
