"""OpenAI's JSON: errors, the list of models, stream chunks and the answers they add up to. No other file knows it."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any

from .answers import AnswerWriter, Ending, Finish, Specimen, Totals, timings
from .errors import RequestError
from .sse import encoded
from .types import Channel, Delta, ServerInfo


def error_body(error: RequestError) -> dict[str, Any]:
    """The error object that OpenAI's clients understand."""
    return {
        "error": {
            "message": str(error),
            "type": error.type,
            "param": error.param,
            "code": error.code or error.status,
        }
    }


def error_event(error: RequestError) -> bytes:
    """The same as the last event of a stream that cannot go on; no `[DONE]` follows it."""
    return encoded(json.dumps(error_body(error)).encode())


def model_entry(name: str, created: int, info: ServerInfo | None) -> dict[str, Any]:
    """One model of `/v1/models`; `meta` as llama-server gives it, with what is known."""
    entry: dict[str, Any] = {"id": name, "object": "model", "created": created, "owned_by": "specrouter"}
    if info is not None:
        meta = {
            "vocab_type": info.vocab_type,
            "n_vocab": info.n_vocab,
            "n_ctx": info.n_ctx,
            "n_ctx_train": info.n_ctx_train,
            "n_params": info.n_params,
        }
        entry["meta"] = {key: value for key, value in meta.items() if value is not None}
    return entry


def chat_deltas(chunk: Mapping[str, Any], received: float) -> list[Delta]:
    """What a chunk of `/v1/chat/completions` adds to the visible answer."""
    deltas = []
    for choice in chunk.get("choices") or ():
        delta = choice.get("delta") or {}
        if delta.get("reasoning_content"):
            deltas.append(Delta(str(delta["reasoning_content"]), Channel.REASONING, received=received))
        if delta.get("content"):
            deltas.append(Delta(str(delta["content"]), Channel.CONTENT, received=received))
        for call in delta.get("tool_calls") or ():
            function = call.get("function") or {}
            deltas += [
                Delta(str(text), Channel.TOOL_CALL, received=received)
                for text in (function.get("name"), function.get("arguments"))
                if text
            ]
        if choice.get("finish_reason") is not None:
            deltas.append(Delta(finished=True, received=received))
    return deltas


def text_deltas(chunk: Mapping[str, Any], received: float) -> list[Delta]:
    """What a chunk of `/v1/completions` adds to the visible answer."""
    return [
        Delta(
            str(choice.get("text") or ""),
            finished=choice.get("finish_reason") is not None,
            received=received,
        )
        for choice in chunk.get("choices") or ()
    ]


def joined_chat(chunks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The body that `/v1/chat/completions` would have answered without `stream`, from all chunks of a stream."""
    message: dict[str, Any] = {"role": "assistant", "content": ""}
    calls: dict[int, dict[str, Any]] = {}
    finish_reason: str | None = None
    for chunk in chunks:
        for choice in chunk.get("choices") or ():
            finish_reason = choice.get("finish_reason") or finish_reason
            for key, value in (choice.get("delta") or {}).items():
                if key == "tool_calls":
                    for call in value:
                        _join_call(calls.setdefault(call.get("index", 0), {}), call)
                elif key != "role" and isinstance(value, str):
                    message[key] = message.get(key, "") + value
    if calls:
        message["tool_calls"] = [calls[index] for index in sorted(calls)]
    choice = {"finish_reason": finish_reason, "index": 0, "message": message}
    return _joined(chunks, choice, "chat.completion")


def joined_text(chunks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The body that `/v1/completions` would have answered without `stream`, from all chunks of a stream."""
    choices = [choice for chunk in chunks for choice in chunk.get("choices") or ()]
    text = "".join(str(choice.get("text") or "") for choice in choices)
    finish_reason = next((choice["finish_reason"] for choice in choices if choice.get("finish_reason")), None)
    choice = {"text": text, "index": 0, "logprobs": None, "finish_reason": finish_reason}
    return _joined(chunks, choice, "text_completion")


def _join_call(call: dict[str, Any], delta: Mapping[str, Any]) -> None:
    function = call.setdefault("function", {"name": "", "arguments": ""})
    call.setdefault("type", delta.get("type", "function"))
    if delta.get("id"):
        call["id"] = delta["id"]
    for key, value in (delta.get("function") or {}).items():
        function[key] = function.get(key, "") + value


def _joined(chunks: Sequence[Mapping[str, Any]], choice: dict[str, Any], kind: str) -> dict[str, Any]:
    # Later chunks say more: usage and timings are in the last one only.
    merged: dict[str, Any] = {"choices": [choice]}
    for chunk in chunks:
        merged.update((key, value) for key, value in chunk.items() if key not in ("choices", "object"))
    return {**merged, "object": kind}


class _Answer(AnswerWriter):
    """What the two endpoints share: chunks with one choice, and what surrounds it."""

    ends_with_done = True
    _shows_every_token = False

    def __init__(self, specimen: Specimen, body: Mapping[str, Any], model: str, _prompt: str) -> None:
        options = body.get("stream_options")
        usage = isinstance(options, dict) and bool(options.get("include_usage"))
        self._chunks = specimen.stream_with_usage if usage else specimen.stream
        self._whole = specimen.whole
        self._is_timed = body.get("timings_per_token") is True
        self._stamp: dict[str, Any] = {
            "id": f"chatcmpl-{secrets.token_urlsafe(24)}",
            "created": int(time.time()),
            "model": model,
        }

    def begin(self) -> list[dict[str, Any]]:
        """Chunks without text, which say who speaks."""
        first = next((index for index, chunk in enumerate(self._chunks) if self._has_text(chunk)), 0)
        return [self._stamped(chunk) for chunk in self._chunks[:first]]

    def resume(self, event: Mapping[str, Any]) -> None:
        """All chunks of an answer have its id and its time."""
        self._stamp.update((key, event[key]) for key in ("id", "created") if key in event)

    def text(self, text: str, token: int | None, totals: Totals) -> list[dict[str, Any]]:
        """A chunk with text."""
        if not text and (token is None or not self._shows_every_token):
            return []
        chunk = self._with_choice(self._stamped(self._text_chunk), self._text_choice(text))
        if self._is_timed:
            chunk["timings"] = timings(self._chunks[-1].get("timings", {}), totals)
        return [chunk]

    def end(self, ending: Ending, totals: Totals) -> list[dict[str, Any]]:
        """The chunk that says why, and the one that says what it cost, if it is wanted."""
        last = [chunk for chunk in self._chunks if not chunk.get("choices") or _finish_reason(chunk)]
        return [self._finished(chunk, ending, totals) for chunk in last]

    def whole(self, text: str, ending: Ending, totals: Totals) -> dict[str, Any]:
        """The body."""
        body = self._with_choice(self._stamped(self._whole), self._whole_choice(text))
        return self._finished(body, ending, totals)

    @property
    def _text_chunk(self) -> Mapping[str, Any]:
        return next(chunk for chunk in self._chunks if self._has_text(chunk))

    def _has_text(self, chunk: Mapping[str, Any]) -> bool:
        raise NotImplementedError

    def _text_choice(self, text: str) -> dict[str, Any]:
        raise NotImplementedError

    def _whole_choice(self, text: str) -> dict[str, Any]:
        raise NotImplementedError

    def _stamped(self, chunk: Mapping[str, Any]) -> dict[str, Any]:
        return {**chunk, **self._stamp}

    def _with_choice(self, chunk: dict[str, Any], members: Mapping[str, Any]) -> dict[str, Any]:
        return {**chunk, "choices": [{**chunk["choices"][0], **members}]}

    def _finished(self, chunk: Mapping[str, Any], ending: Ending, totals: Totals) -> dict[str, Any]:
        finished = self._stamped(chunk)
        if finished.get("choices"):
            reason = "length" if ending.why is Finish.LIMIT else "stop"
            finished = self._with_choice(finished, {"finish_reason": reason})
        if "usage" in finished:
            finished["usage"] = _usage(finished["usage"], totals)
        if "timings" in finished:
            finished["timings"] = timings(finished["timings"], totals)
        return finished


class ChatAnswer(_Answer):
    """Writes answers of `/v1/chat/completions`."""

    def _has_text(self, chunk: Mapping[str, Any]) -> bool:
        return any((choice.get("delta") or {}).get("content") for choice in chunk.get("choices") or ())

    def _text_choice(self, text: str) -> dict[str, Any]:
        return {"delta": {**self._text_chunk["choices"][0]["delta"], "content": text}}

    def _whole_choice(self, text: str) -> dict[str, Any]:
        return {"message": {**self._whole["choices"][0]["message"], "content": text}}


class TextAnswer(_Answer):
    """Writes answers of `/v1/completions`."""

    _shows_every_token = True

    def _has_text(self, chunk: Mapping[str, Any]) -> bool:
        return any(choice.get("text") for choice in chunk.get("choices") or ())

    def _text_choice(self, text: str) -> dict[str, Any]:
        return {"text": text}

    def _whole_choice(self, text: str) -> dict[str, Any]:
        return {"text": text}


def _finish_reason(chunk: Mapping[str, Any]) -> str | None:
    choices = chunk.get("choices")
    return choices[0].get("finish_reason") if choices else None


def _usage(specimen: Mapping[str, Any], totals: Totals) -> dict[str, Any]:
    counts: dict[str, Any] = {
        "completion_tokens": totals.predicted,
        "prompt_tokens": totals.prompt,
        "total_tokens": totals.prompt + totals.predicted,
    }
    ours = {key: counts.get(key, value) for key, value in specimen.items()}
    if isinstance(ours.get("prompt_tokens_details"), dict):
        ours["prompt_tokens_details"] = {**ours["prompt_tokens_details"], "cached_tokens": totals.cached}
    return ours
