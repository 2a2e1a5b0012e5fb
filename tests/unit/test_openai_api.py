"""OpenAI's JSON, read and written."""

from __future__ import annotations

import json
from typing import Any

import pytest

from specrouter import openai_api
from specrouter.errors import InvalidRequest, UnknownModel, UpstreamUnavailable
from specrouter.types import Channel, ServerInfo

BASE = {"created": 1, "id": "chatcmpl-1", "model": "m", "system_fingerprint": "b1", "object": "chat.completion.chunk"}


def chunk(delta: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
    return {"choices": [{"finish_reason": reason, "index": 0, "delta": delta}], **BASE}


def test_an_error() -> None:
    body = openai_api.error_body(UnknownModel("no model 'x'"))
    expected = {"message": "no model 'x'", "type": "invalid_request_error", "param": "model", "code": "model_not_found"}
    assert body == {"error": expected}
    body = openai_api.error_body(InvalidRequest("bad", param="n"))
    assert body["error"]["param"] == "n"
    assert body["error"]["code"] == 400


def test_an_error_event() -> None:
    event = openai_api.error_event(UpstreamUnavailable("gone\n\nnow", server="big"))
    assert event.startswith(b"data: {")
    assert event.count(b"\n") == 2
    assert json.loads(event[6:])["error"]["code"] == "upstream_unavailable"


def test_a_model() -> None:
    entry = openai_api.model_entry("fast", 7, ServerInfo(n_vocab=100, n_ctx=None))
    assert entry == {
        "id": "fast", "object": "model", "created": 7, "owned_by": "specrouter", "meta": {"n_vocab": 100},
    }  # fmt: skip
    assert "meta" not in openai_api.model_entry("fast", 7, None)


def test_chat_deltas() -> None:
    assert openai_api.chat_deltas(chunk({"role": "assistant", "content": None}), 1.0) == []
    [delta] = openai_api.chat_deltas(chunk({"content": "hé"}), 2.5)
    assert (delta.text, delta.channel, delta.received, delta.token_ids) == ("hé", Channel.CONTENT, 2.5, ())
    [delta] = openai_api.chat_deltas(chunk({"reasoning_content": "hm"}), 1.0)
    assert (delta.text, delta.channel) == ("hm", Channel.REASONING)
    call = {"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a'}}
    found = openai_api.chat_deltas(chunk({"tool_calls": [call]}), 1.0)
    assert [(delta.text, delta.channel) for delta in found] == [
        ("f", Channel.TOOL_CALL),
        ('{"a', Channel.TOOL_CALL),
    ]
    [delta] = openai_api.chat_deltas(chunk({}, "stop"), 1.0)
    assert delta.finished
    assert openai_api.chat_deltas({"choices": []}, 1.0) == []


def test_text_deltas() -> None:
    [delta] = openai_api.text_deltas({"choices": [{"text": "x", "index": 0, "finish_reason": None}]}, 1.0)
    assert (delta.text, delta.finished) == ("x", False)
    [delta] = openai_api.text_deltas({"choices": [{"text": "", "index": 0, "finish_reason": "stop"}]}, 1.0)
    assert (delta.text, delta.finished) == ("", True)


def test_joined_chat() -> None:
    usage = {"completion_tokens": 2, "prompt_tokens": 3, "total_tokens": 5}
    chunks = [
        chunk({"role": "assistant", "content": None}),
        chunk({"reasoning_content": "hm "}),
        chunk({"reasoning_content": "so"}),
        chunk({"content": "a"}),
        chunk({"content": "b"}),
        chunk({}, "length"),
        {"choices": [], **BASE, "usage": usage, "timings": {"predicted_n": 2}},
    ]
    message = {"role": "assistant", "content": "ab", "reasoning_content": "hm so"}
    assert openai_api.joined_chat(chunks) == {
        **BASE,
        "object": "chat.completion",
        "choices": [{"finish_reason": "length", "index": 0, "message": message}],
        "usage": usage,
        "timings": {"predicted_n": 2},
    }


def test_joined_tool_calls() -> None:
    def call(index: int, **more: Any) -> dict[str, Any]:
        return chunk({"tool_calls": [{"index": index, **more}]})

    chunks = [
        chunk({"role": "assistant", "content": None}),
        call(0, id="one", type="function", function={"name": "f", "arguments": ""}),
        call(0, function={"arguments": '{"a":'}),
        call(1, id="two", type="function", function={"name": "g", "arguments": "{}"}),
        call(0, function={"arguments": "1}"}),
        chunk({}, "tool_calls"),
    ]
    [choice] = openai_api.joined_chat(chunks)["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["tool_calls"] == [
        {"id": "one", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}},
        {"id": "two", "type": "function", "function": {"name": "g", "arguments": "{}"}},
    ]


@pytest.mark.parametrize("reason", ["stop", "length"])
def test_joined_text(reason: str) -> None:
    base = {"created": 1, "model": "m", "object": "text_completion", "id": "1"}
    choices = [("a", None), ("b", None), ("", reason)]
    chunks: list[dict[str, Any]] = [
        {"choices": [{"text": text, "index": 0, "logprobs": None, "finish_reason": end}], **base}
        for text, end in choices
    ]
    chunks[-1]["usage"] = {"total_tokens": 2}
    assert openai_api.joined_text(chunks) == {
        **base,
        "choices": [{"text": "ab", "index": 0, "logprobs": None, "finish_reason": reason}],
        "usage": {"total_tokens": 2},
    }
