"""Through a drafting route: drafts are accepted, and the answer is the target's own in every key and value."""

from __future__ import annotations

import json
import logging
from typing import Any

import httpx
import pytest
from llama_support import (
    CHAT,
    COMPLETION,
    TEXT,
    Reference,
    StartRouter,
    ask,
    ask_streaming,
    chat,
    client_of,
    drafting,
    record_of,
    request_for,
    streaming,
    text_of,
    until_decoding,
)

from specrouter.demo.processes import ManagedServer

PATHS = [CHAT, TEXT, COMPLETION]

ATTEMPTS = 3
"""A near tie falls one way or the other with what else is in a batch; what differs is different every time."""


@pytest.fixture
def direct(target: ManagedServer) -> Any:
    """A client that asks the target without the router."""
    with client_of(target) as client:
        yield client


# -- drafts are accepted -----------------------------------------------------------------------------------

SUBJECTS = [
    "a bridge",
    "a storm",
    "a clock",
    "a garden",
    "a train",
    "a mirror",
    "a lighthouse",
    "a violin",
    "a letter",
    "a lamp",
    "a fox",
]


@pytest.fixture
def fresh_router(start_router: StartRouter, target: ManagedServer, drafter: ManagedServer) -> httpx.Client:
    """A router that has not learned yet whether drafting pays on this machine."""
    client = start_router({"big": target, "laptop": drafter}, {"fast": drafting()})
    until_decoding(client, "inject")
    return client


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "unstreamed"])
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.usefixtures("drafts_pay")
def test_drafts_are_accepted(
    fresh_router: httpx.Client, caplog: pytest.LogCaptureFixture, path: str, stream: bool
) -> None:
    caplog.set_level(logging.INFO, "specrouter.requests")
    # Several, and never one twice: drafting may stand down, and the target's pool remembers its answers.
    for subject in SUBJECTS:
        begin = f"Endpoint {PATHS.index(path)}, {stream}: a story about {subject}. Once upon a time, there was"
        caplog.clear()
        body = request_for(path, begin, max_tokens=64, ignore_eos=True)
        if stream:
            with streaming(fresh_router, path, body) as (response, events):
                last = [event for event in events if '"timings"' in event][-1]
            timings = json.loads(last)["timings"]
        else:
            response = fresh_router.post(path, json=body)
            timings = response.json()["timings"]
        assert response.headers["x-specrouter-decoding"] == "inject"
        logged = record_of(caplog, response)
        if timings.get("draft_n_accepted") and logged.confirmed and logged.primed:
            return
    pytest.fail(f"nothing accepted in {len(SUBJECTS)} answers; the last: {timings}, {caplog.text}")


# -- the answer is the target's own ------------------------------------------------------------------------

PLACES = ["a harbour", "a desert", "an island", "a tower", "a farm", "a station", "a mine", "a palace"]


@pytest.mark.usefixtures("drafts_pay")
def test_answers_in_the_slots_of_earlier_primes(fresh_router: httpx.Client, reference: Reference) -> None:
    """A target gives an answer the slot that was idle longest. A prime that names its slot would empty it."""
    for place in PLACES:
        body = request_for(TEXT, f"A letter from {place}. My dear friends,", max_tokens=48, cache_prompt=False)
        reference.check(body, text_of(ask(fresh_router, TEXT, body)), max_tokens=48)


_VARYING = {"id", "created", "model", "timings", "cached_tokens", "id_slot", "tokens_cached", "stream"}


def normal(value: Any) -> Any:
    """An answer without what differs from one request to the next; the keys stay."""
    if isinstance(value, dict):
        return {key: normal(item) for key, item in value.items() if key not in _VARYING} | {
            key: _shape(value[key]) for key in _VARYING & value.keys()
        }
    if isinstance(value, list):
        return [normal(item) for item in value]
    return value


def whole_characters(value: Any) -> Any:
    """Without the replacement character of a character that the limit cut off: only unstreamed answers show it."""
    if isinstance(value, dict):
        return {key: whole_characters(item) for key, item in value.items()}
    if isinstance(value, list):
        return [whole_characters(item) for item in value]
    return value.rstrip("\ufffd") if isinstance(value, str) else value


def _shape(value: Any) -> Any:
    if isinstance(value, dict):
        # The draft counts are only there when something was drafted.
        return sorted(key for key in value if not key.startswith("draft_n"))
    return type(value).__name__


TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather of a city",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
}

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": (CHAT, chat("What is a bridge?", max_tokens=40)),
    "chat to its end": (CHAT, chat("Say hello.", max_tokens=200)),
    "max_completion_tokens": (CHAT, chat("What is a river?", max_completion_tokens=12)),
    "emoji": (CHAT, chat("Repeat: 👩‍👩‍👧 🍎 🎉 é ñ", max_tokens=40)),
    "CJK": (CHAT, chat("日本語で自己紹介してください。", max_tokens=40)),
    "stop": (CHAT, chat("Count from 1 to 20.", max_tokens=60, stop=["5", "fifth"])),
    "tools": (CHAT, chat("How is the weather in Paris?", max_tokens=40, tools=TOOLS)),
    "required tool": (
        CHAT,
        chat("Call get_weather for Paris.", max_tokens=120, tools=TOOLS, tool_choice="required"),
    ),
    "json schema": (
        CHAT,
        chat(
            "Invent a person.",
            max_tokens=60,
            response_format={"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}},
        ),
    ),
    "reasoning": (
        CHAT,
        chat(
            "What is 2 + 3?",
            max_tokens=40,
            reasoning_format="deepseek",
            grammar='root ::= "<think>Two and three, the sum is to be found.</think>The sum is five, as you see."',
        ),
    ),
    "several turns": (
        CHAT,
        {
            "model": "fast",
            "temperature": 0,
            "max_tokens": 24,
            "messages": [
                {"role": "system", "content": "You are a poet."},
                {"role": "user", "content": "Hi"},
                {"role": "assistant", "content": "Hello, friend."},
                {"role": "user", "content": [{"type": "text", "text": "Write a line about rain."}]},
            ],
        },
    ),
    "text": (TEXT, request_for(TEXT, "The sun is", max_tokens=40)),
    "text, stop": (TEXT, request_for(TEXT, "1. one\n2. two\n3.", max_tokens=40, stop=["\n6."])),
    "text, emoji": (TEXT, request_for(TEXT, "🍎 🍌 🍇 🍎 🍌 🍇 🍎 🍌", max_tokens=40)),
    "completion": (COMPLETION, request_for(COMPLETION, "The moon is", n_predict=40)),
    "completion, stop": (COMPLETION, request_for(COMPLETION, "1. one\n2. two\n3.", n_predict=40, stop=["\n6."])),
    "completion, schema": (COMPLETION, request_for(COMPLETION, "A person:", n_predict=40, json_schema=SCHEMA)),
    "completion, CJK": (COMPLETION, request_for(COMPLETION, "日本の首都は", n_predict=40)),
}


@pytest.mark.parametrize(("path", "body"), CASES.values(), ids=CASES)
def test_unstreamed_answer_is_the_targets(
    router: httpx.Client, direct: httpx.Client, path: str, body: dict[str, Any]
) -> None:
    for _ in range(ATTEMPTS):
        own = ask(direct, path, body)
        response = router.post(path, json=body)
        if normal(response.json()) == whole_characters(normal(own)):
            break
    # Streams may tell reasoning apart in another way: such an answer is left to the target alone.
    decoding = response.headers["x-specrouter-decoding"]
    shaped = "reasoning_format" in body
    # A short one may be over before a draft has begun.
    assert decoding.startswith("plain" if shaped else "inject") or decoding.endswith("the answer was over first")
    answer = response.json()
    assert answer["model"] == "fast" or path == COMPLETION
    assert normal(answer) == whole_characters(normal(own))


@pytest.mark.parametrize("usage", [True, False], ids=["usage", "no usage"])
@pytest.mark.parametrize(("path", "body"), CASES.values(), ids=CASES)
def test_events_are_the_targets(
    router: httpx.Client, direct: httpx.Client, path: str, body: dict[str, Any], usage: bool
) -> None:
    if usage:
        body = {**body, "stream_options": {"include_usage": True}}
    for _ in range(ATTEMPTS):
        own = ask_streaming(direct, path, body)
        events = ask_streaming(router, path, body)
        if normal(events) == normal(own):
            break
    assert all(event["model"] == "fast" for event in events if "model" in event)
    assert normal(events) == normal(own)
    if path == CHAT:
        assert sum(not event["choices"] for event in events) == usage


def test_the_cases_show_what_they_are_for(router: httpx.Client) -> None:
    """Stop strings stop, limits end: or their cases would compare nothing."""
    assert ask(router, *CASES["stop"])["choices"][0]["finish_reason"] == "stop"
    assert ask(router, *CASES["max_completion_tokens"])["choices"][0]["finish_reason"] == "length"


def test_answers_with_a_seed_are_repeated(router: httpx.Client) -> None:
    body = chat("Write a story about a fox.", max_tokens=32) | {"temperature": 0.8, "seed": 7}
    first, again = (text_of(ask(router, CHAT, body)) for _ in range(2))
    assert first == again


def test_unstreamed_text_is_the_model_alones(router: httpx.Client, reference: Reference) -> None:
    body = chat("Explain how bread is made.", max_tokens=48)
    reference.check(body, text_of(ask(router, CHAT, body)), max_tokens=48)
