"""The same request, straight to a target and through the router: the same answer, whatever the request is.

Compared are status, content type and body, or the sequence of events. Not compared are ids, times, model names and
what depends on the state of the target's cache. A target that does not give the same answer again proves nothing.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from typing import Any

import httpx
import pytest
from llama_support import client_of

from specrouter.demo.processes import ManagedServer

NUMBER = 200

VARYING = {
    # Ids and times.
    *("id", "item_id", "call_id", "created", "created_at", "completed_at", "timings", "id_slot"),
    # Names.
    *("model", "system_fingerprint"),
    # What was cached.
    *("cached_tokens", "cache_read_input_tokens", "input_tokens", "tokens_cached", "total_tokens"),
}

TEXTS = (
    "The capital of France is",
    "Count: one two three four",
    "",
    " ",
    "🦊🚀 naïve café",
    "你好世界今天",
    "\x00\x01\x1b[31m\x7f",
    "\ud83d half a pair",
    "<|im_end|>",
    "<|im_start|>assistant\n",
    'data: {"model": "x"}\n\n',
    "all work and no play " * 80,
)
PROMPTS = (
    *TEXTS,
    *TEXTS,
    [504, 3575, 282],
    [[504, 3575], [2683]],
    ["one", "two"],
    ["one", 282],
    [],
    [-1],
    [999999],
    {"prompt_string": "Hello"},
    5,
    None,
)
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"properties": {"city": {"type": "string"}}}}}
SCHEMA = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
MESSAGES = (
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is 2 + 2?"}],
    [{"role": "user", "content": [{"type": "text", "text": "Hi "}, {"type": "text", "text": "there"}]}],
    [{"role": "user", "content": "Say"}, {"role": "assistant", "content": "The answer"}],
    [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}]}],
    [{"role": "user", "content": None}],
    [{"role": "alien", "content": "Hi"}],
    [{"content": "Hi"}],
    [],
    "Hi",
    {"role": "user"},
)
ODD_FIELDS: tuple[dict[str, Any], ...] = (
    {"unknown_field": {"model": "x", "deep": [1.50, 1e-7, None]}},
    {"stop": ["e", "\n"]},
    {"stop": "a"},
    {"stop": 5},
    {"stop": ""},
    {"seed": "seven"},
    {"top_k": "many"},
    {"temperature": None},
    {"temperature": "hot"},
    {"logit_bias": [[282, False]]},
    {"logit_bias": "strong"},
    {"grammar": 'root ::= "yes" | "no"'},
    {"grammar": "root ::= ("},
    {"json_schema": SCHEMA},
    {"json_schema": {"type": "nonsense"}},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}},
    {"response_format": {"type": "nonsense"}},
    {"logprobs": True, "top_logprobs": 2},
    {"logprobs": 2},
    {"n_probs": 2},
    {"n": 2},
    {"n": 0},
    {"n": "two"},
    {"tools": [TOOL]},
    {"tools": [TOOL], "tool_choice": "required"},
    {"tools": "hammer"},
    {"stream_options": {"include_usage": True}},
    {"stream_options": 5},
    {"return_tokens": True},
    {"return_progress": True},
    {"timings_per_token": True},
    {"response_fields": ["content", "stop_type"]},
    {"ignore_eos": True},
    {"echo": True},
    {"cache_prompt": False},
    {"id_slot": 99},
    {"reasoning_format": "none"},
    {"parallel_tool_calls": True},
)
GENERATIONS = {
    "/v1/chat/completions": "messages",
    "/chat/completions": "messages",
    "/v1/completions": "prompt",
    "/completion": "prompt",
    "/completions": "prompt",
    "/v1/messages": "messages",
    "/v1/responses": "input",
    "/infill": "input_prefix",
}
OTHERS = {
    "/v1/embeddings": "input",
    "/embedding": "content",
    "/rerank": "query",
    "/tokenize": "content",
    "/detokenize": "tokens",
    "/apply-template": "messages",
    "/v1/messages/count_tokens": "messages",
    "/v1/responses/input_tokens": "input",
    "/v1/audio/transcriptions": "file",
    "/v1/no/such/path": "prompt",
}


def requests() -> Iterator[tuple[str, dict[str, Any], bool]]:
    """Path, body and whether the body is sent in ASCII."""
    rng = random.Random(13)
    for _ in range(NUMBER):
        path = rng.choice((*GENERATIONS, *GENERATIONS, *OTHERS))
        member = {**GENERATIONS, **OTHERS}[path]
        body: dict[str, Any] = {"model": rng.choice(("plain", "fast", "fast")), "temperature": 0}
        if rng.random() < 0.95:
            body[member] = _messages(rng) if member == "messages" else rng.choice(PROMPTS)
        if path in GENERATIONS:
            # Never without: some builds take a limit of a wrong type for none at all.
            limits = ("max_tokens", "n_predict", "max_output_tokens")
            body.update(dict.fromkeys(limits, rng.choice((1, 2, 9, 10, 12))))
            if rng.random() < 0.85:
                body["stream"] = rng.choice((True, True, True, False, False, 1, "true", None))
        for _ in range(rng.choice((0, 0, 1, 1, 2))):
            body.update(rng.choice(ODD_FIELDS))
        if not body.get(member):
            # llama-server b11434 never answers this.
            body.pop("n", None)
        text = json.dumps(body, ensure_ascii=False)
        yield path, body, "\ud83d" in text or rng.random() < 0.5


def _messages(rng: random.Random) -> Any:
    return [{"role": "user", "content": rng.choice(TEXTS)}] if rng.random() < 0.6 else rng.choice(MESSAGES)


def answer(client: httpx.Client, path: str, content: bytes) -> dict[str, Any]:
    """What is compared of an answer."""
    response = client.post(path, content=content, headers={"content-type": "application/json"})
    kind = response.headers.get("content-type", "")
    body: Any = response.text
    if kind.startswith("text/event-stream"):
        body = _in_order([_event(event) for event in body.split("\n\n") if not event.startswith(":")])
    elif "json" in kind:
        body = _lasting(json.loads(body))
    return {"status": response.status_code, "content-type": kind, "body": body}


def _event(event: str) -> dict[str, Any]:
    lines = dict(line.split(": ", 1) for line in event.splitlines())
    data = lines.get("data", "")
    return {**lines, "data": _lasting(json.loads(data)) if data.startswith("{") else data}


def _in_order(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those of the first of several answers before those of the next; those that belong to none stay in their places.

    Several prompts are answered side by side, and chance decides which of them says a token first.
    """
    places = [place for place, event in enumerate(events) if _choice(event) is not None]
    ordered = sorted((events[place] for place in places), key=_choice)  # type: ignore[arg-type, return-value]
    moved = dict(zip(places, ordered, strict=True))
    return [moved.get(place, event) for place, event in enumerate(events)]


def _choice(event: dict[str, Any]) -> int | None:
    data = event["data"] if isinstance(event["data"], dict) else {}
    index: int | None = (data.get("choices") or [data])[0].get("index")
    return index


def _lasting(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _lasting(inner) for key, inner in value.items() if key not in VARYING}
    return [_lasting(inner) for inner in value] if isinstance(value, list) else value


def difference(one: Any, other: Any, where: str = "answer") -> str | None:
    """The first difference between two values, None if there is none."""
    if isinstance(one, dict) and isinstance(other, dict):
        pairs: Mapping[Any, Any] = {
            key: (one.get(key, "nothing"), other.get(key, "nothing")) for key in {**one, **other}
        }
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        pairs = dict(enumerate(zip(one, other, strict=True)))
    else:
        return None if one == other else f"{where}: {str(one)[:600]} directly, {str(other)[:600]} through the router"
    found = (difference(*pair, f"{where}.{key}") for key, pair in pairs.items())
    return next((text for text in found if text is not None), None)


@pytest.fixture(scope="module")
def direct(target: ManagedServer) -> Iterator[httpx.Client]:
    with client_of(target) as client:
        yield client


@pytest.fixture(scope="module")
def target_name(direct: httpx.Client) -> str:
    """The target's own name for its model."""
    name: str = direct.get("/v1/models").json()["data"][0]["id"]
    return name


@pytest.mark.parametrize(
    ("path", "body", "in_ascii"),
    [pytest.param(*request, id=f"{number}{request[0]}") for number, request in enumerate(requests())],
)
def test_the_router_changes_nothing(
    direct: httpx.Client, target_name: str, router: httpx.Client, path: str, body: dict[str, Any], in_ascii: bool
) -> None:
    content = json.dumps(body, ensure_ascii=in_ascii).encode()
    # What the router sends, or a complaint about column 40 would be one about column 60.
    named = json.dumps({**body, "model": target_name}, ensure_ascii=in_ascii).encode()
    straight = answer(direct, path, named)
    found = difference(straight, answer(router, path, content))
    if found is not None and difference(straight, answer(direct, path, named)) is None:
        pytest.fail(f"POST {path} {content.decode()[:1000]}\n{found}", pytrace=False)
