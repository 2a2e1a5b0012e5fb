"""Which requests a companion can follow, and how streams read and add up."""

from __future__ import annotations

import json
from typing import Any

import pytest

from specrouter.errors import UpstreamRejected, UpstreamUnavailable
from specrouter.formats import FORMATS, joined_answer, obstacle, stepwise_obstacle

TEXT_PART = {"type": "text", "text": "hi"}


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"messages": [{"role": "user", "content": "hi"}]}, None),
        ({"messages": [{"role": "user", "content": [TEXT_PART]}]}, None),
        ({"messages": [{"role": "assistant", "content": None, "tool_calls": []}]}, None),
        ({"prompt": "hi", "n_predict": -1}, None),
        ({"prompt": [1, 2, 3], "max_tokens": 100}, None),
        ({"prompt": "hi", "n": 1, "logprobs": None, "stream": True, "return_tokens": True}, None),
        ({"prompt": ["a", "b"]}, "several prompts or a prompt with media"),
        ({"prompt": [[1], [2]]}, "several prompts or a prompt with media"),
        ({"prompt": [True]}, "several prompts or a prompt with media"),
        ({"prompt": {"prompt_string": "x", "multimodal_data": []}}, "several prompts or a prompt with media"),
        ({"prompt": "hi", "n": 2}, "several answers wanted"),
        ({"prompt": "hi", "n_cmpl": 3}, "several answers wanted"),
        ({"prompt": "hi", "logprobs": 5}, "token probabilities wanted"),
        ({"messages": [], "top_logprobs": 2}, "token probabilities wanted"),
        ({"prompt": "hi", "n_probs": 1}, "token probabilities wanted"),
        ({"messages": [{"content": [TEXT_PART, {"type": "input_audio"}]}]}, "images or audio in the prompt"),
        ({"messages": [{"content": ["text"]}]}, "images or audio in the prompt"),
        ({"prompt": "hi", "max_tokens": 1}, "only 1 tokens wanted"),
        ({"prompt": "hi", "max_completion_tokens": 7}, "only 7 tokens wanted"),
        ({"prompt": "hi", "return_tokens": True}, "return_tokens without stream"),
        ({"prompt": "hi", "timings_per_token": True}, "timings_per_token without stream"),
    ],
)
def test_obstacles(body: dict[str, Any], reason: str | None) -> None:
    assert obstacle("/v1/chat/completions", body) == reason


@pytest.mark.parametrize("value", [None, 7, "x", [], {}, True, [None], {"a": 1}, 1.5, "2"])
@pytest.mark.parametrize("key", ["messages", "n", "logprobs", "max_tokens", "prompt", "stream", "return_tokens"])
def test_wrong_types_raise_nothing(key: str, value: object) -> None:
    """The target complains about them in its own words."""
    assert isinstance(obstacle("/completion", {key: value}), str | None)


def test_a_completion_stream() -> None:
    read = FORMATS["/completion"].new_reader()
    events = [
        {"content": " a", "tokens": [5], "stop": False, "tokens_predicted": 1},
        # A character of three tokens: one id is shown.
        {"content": "é", "tokens": [8], "stop": False, "tokens_predicted": 4},
        {"content": "", "tokens": [], "stop": True, "tokens_predicted": 4},
    ]
    found = [delta for event in events for delta in read(json.dumps(event).encode(), 3.0)]
    assert [(delta.text, tuple(delta.token_ids), delta.finished) for delta in found] == [
        (" a", (5,), False),
        ("é", (), False),
        ("", (), True),
    ]


def test_readers_of_one_format_share_nothing() -> None:
    event = b'{"content":"a","tokens":[5],"tokens_predicted":1}'
    for _ in range(2):
        [delta] = FORMATS["/completion"].new_reader()(event, 1.0)
        assert list(delta.token_ids) == [5]


@pytest.mark.parametrize("path", FORMATS)
def test_an_event_that_is_no_object_says_nothing(path: str) -> None:
    assert FORMATS[path].new_reader()(b"[1]", 1.0) == []


def test_joined_completion() -> None:
    settings = {"generation_settings": {"stream": True, "seed": 1}}
    events = [
        b'{"index":0,"content":"a","tokens":[1],"stop":false}',
        b'{"index":0,"content":"\xc3\xa9","tokens":[2],"stop":false}',
        json.dumps({"index": 0, "content": "", "tokens": [], "stop": True, **settings}).encode(),
    ]
    answer = joined_answer(FORMATS["/completion"], events, "big")
    assert json.loads(answer) == {
        "index": 0, "content": "aé", "tokens": [], "stop": True, "generation_settings": {"stream": False, "seed": 1},
    }  # fmt: skip
    assert "é".encode() in answer


def test_a_stream_that_ends_with_an_error() -> None:
    events = [b'{"choices":[]}', b'{"error":{"code":400,"message":"too long","type":"x"}}']
    with pytest.raises(UpstreamRejected, match="too long") as caught:
        joined_answer(FORMATS["/v1/chat/completions"], events, "big")
    assert caught.value.status == 400
    assert caught.value.body == events[1]


@pytest.mark.parametrize("events", [[], [b"hello"], [b"[1]"], [b'{"choices":[]}', b"{"]])
def test_a_stream_that_makes_no_sense(events: list[bytes]) -> None:
    with pytest.raises(UpstreamUnavailable, match="'big'"):
        joined_answer(FORMATS["/v1/chat/completions"], events, "big")


@pytest.mark.parametrize("event", [b'{"choices":7}', b'{"choices":[7]}', b'{"choices":[{"delta":"x"}]}'])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_joining_strange_shapes(path: str, event: bytes) -> None:
    """They are the target's fault and must be said to be."""
    try:
        answer = joined_answer(FORMATS[path], [event], "big")
    except UpstreamUnavailable:
        return
    assert json.loads(answer)


@pytest.mark.parametrize("path", ["/v1/completions", "/completion"])
@pytest.mark.parametrize("body", [{}, {"prompt": None}, {"prompt": 7}, {"messages": []}])
def test_what_is_no_prompt_is_left_to_the_target(path: str, body: dict[str, Any]) -> None:
    assert stepwise_obstacle(path, body, None) == "a prompt that is no text"
    assert stepwise_obstacle(path, {**body, "prompt": "hi"}, None) is None
    assert stepwise_obstacle("/v1/chat/completions", body, "no markup") is None
