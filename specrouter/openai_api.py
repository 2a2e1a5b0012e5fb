"""OpenAI's JSON: errors, the list of models, stream chunks and the answers they add up to. No other file knows it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from .errors import RequestError
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
    return b"data: " + json.dumps(error_body(error)).encode() + b"\n\n"


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
