"""What the tests with real servers say again and again."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import httpx
import pytest

from specrouter.demo.processes import ManagedServer
from specrouter.request_log import RequestRecord

NEAR_TIE = 0.05
"""Nats. Between two tokens this close, a target chooses by the size of its batch."""

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
COMPLETION = "/completion"


class StartServer(Protocol):
    """Starts a llama-server with a model and flags, on the CPU, with one thread unless `-t` says otherwise.

    It runs until the session ends or `stop()` is called. `kill()` ends it as a crash would, `restart()`
    brings it back on the same port. `cores` pins it where the platform can.
    """

    def __call__(self, model: Path, *flags: str, cores: Sequence[int] | None = None) -> ManagedServer: ...


class StartRouter(Protocol):
    """Starts a router and returns a client of it; both end with the module.

    `servers` are running servers or whole configurations; routes are as in a topology.
    """

    def __call__(
        self, servers: Mapping[str, ManagedServer | Mapping[str, Any]], routes: Mapping[str, Any], **listen: Any
    ) -> httpx.Client: ...


def write_topology(
    file: Path,
    servers: Mapping[str, ManagedServer | Mapping[str, Any]],
    routes: Mapping[str, Any],
    *,
    plugins: Sequence[str] = (),
    **listen: Any,
) -> Path:
    """A topology in a file; JSON is YAML."""
    configured = {n: {"url": s.url} if isinstance(s, ManagedServer) else dict(s) for n, s in servers.items()}
    topology = {"version": 1, "listen": listen, "servers": configured, "routes": dict(routes), "plugins": list(plugins)}
    file.write_text(json.dumps(topology), encoding="utf-8")
    return file


def drafting(target: str = "big", draft: str = "laptop", **more: Any) -> dict[str, Any]:
    """A route whose drafts come from a server."""
    return {"target": target, "draft": {"use": "remote", "options": {"server": draft}}, **more}


def client_of(server: ManagedServer) -> httpx.Client:
    """A client that asks a server directly."""
    # llama-server closes an idle connection after 5 s, and maybe just when it is used again.
    limits = httpx.Limits(max_keepalive_connections=0)
    return httpx.Client(base_url=server.url, trust_env=False, timeout=120, limits=limits)


def chat(text: str, **fields: Any) -> dict[str, Any]:
    """A greedy chat request for the route `fast`."""
    return {"model": "fast", "messages": [{"role": "user", "content": text}], "temperature": 0, **fields}


def request_for(path: str, text: str, **fields: Any) -> dict[str, Any]:
    """A greedy request for the route `fast` on any of the three endpoints."""
    if path == CHAT:
        return chat(text, **fields)
    return {"model": "fast", "prompt": text, "temperature": 0, **fields}


def ask(client: httpx.Client, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """The answer to a request that has to succeed."""
    response = client.post(path, json=body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


@contextmanager
def streaming(client: httpx.Client, path: str, body: Mapping[str, Any]) -> Iterator[tuple[httpx.Response, Any]]:
    """A streamed request: the response, and an iterator over the data of its events as text."""
    with client.stream("POST", path, json={**body, "stream": True}) as response:
        assert response.status_code == 200, response.read()
        yield response, (line.removeprefix("data: ") for line in response.iter_lines() if line.startswith("data: "))


def ask_streaming(client: httpx.Client, path: str, body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """All events of a stream that has to succeed; `[DONE]` has to end it where the endpoint has one."""
    with streaming(client, path, body) as (_, events):
        data = list(events)
    if path != COMPLETION:
        assert data.pop() == "[DONE]"
    return [json.loads(event) for event in data]


def text_of(events: list[dict[str, Any]] | dict[str, Any]) -> str:
    """The visible content of a whole answer or of all events of a stream, on any of the three endpoints."""
    parts = []
    for event in events if isinstance(events, list) else [events]:
        parts.append(event.get("content") or "")
        for choice in event.get("choices", ()):
            said = choice.get("delta") or choice.get("message") or {}
            parts += [choice.get("text") or "", said.get("content") or ""]
    return "".join(parts)


def decoding(client: httpx.Client, model: str = "fast", **fields: Any) -> str:
    """How the router says that it decodes a request for a route."""
    response = client.post(CHAT, json={**chat("Hi", max_tokens=8), **fields, "model": model})
    assert response.status_code == 200, response.text
    return response.headers["x-specrouter-decoding"]


def until_decoding(client: httpx.Client, wanted: str, model: str = "fast", *, seconds: float = 60) -> str:
    """Wait until requests for a route are decoded in that way, or plainly with a reason that contains `wanted`.

    Returns what the last one said.
    """
    # While targets are tried out they are left alone: trials wait while they answer somebody.
    until(
        lambda: not _is_being_tried_out(client, model) and _is_wanted(decoding(client, model), wanted),
        seconds=seconds,
        why=lambda: decoding(client, model),
    )
    return decoding(client, model)


def _is_wanted(found: str, wanted: str) -> bool:
    # A way of decoding may be named in a reason as well.
    return found == wanted or (" " in wanted and wanted in found)


def _is_being_tried_out(client: httpx.Client, model: str) -> bool:
    routes = client.get("/specrouter/status").json()["routes"]
    route = next(route for route in routes if model in (route["name"], *route["aliases"]))
    pairs = route["draft"]["pairs"] if route["draft"] else []
    return any(pair["obstacle"] == "being tried out" for pair in pairs)


def until(condition: Callable[[], bool], *, seconds: float, why: Callable[[], object] = lambda: "still not so") -> None:
    """Wait until `condition()` is true; fail with `why()` after that many seconds."""
    give_up = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > give_up:
            pytest.fail(f"after {seconds} s: {why()}")
        time.sleep(0.05)


def record_of(caplog: pytest.LogCaptureFixture, response: httpx.Response) -> RequestRecord:
    """The router's record of a request. It is written after the answer: those of earlier ones may come first."""
    found: list[RequestRecord] = []

    def is_there() -> bool:
        requests = [record.request for record in caplog.records if hasattr(record, "request")]
        found[:] = [request for request in requests if request.request_id == response.headers["x-request-id"]]
        return bool(found)

    until(is_there, seconds=5)
    return found[0]


def busy_slots(server: ManagedServer) -> int:
    """How many slots of a server are at work."""
    with client_of(server) as client:
        return sum(slot["is_processing"] for slot in client.get("/slots").json())


class Reference:
    """The target's model alone, on a server that knows nothing of drafts."""

    def __init__(self, server: ManagedServer) -> None:
        self.server = server
        self._client = client_of(server)

    def close(self) -> None:
        """Close its connections."""
        self._client.close()

    def prompt_ids(self, body: Mapping[str, Any]) -> list[int]:
        """The ids a request's prompt has."""
        text = body["prompt"] if "prompt" in body else ask(self._client, "/apply-template", body)["prompt"]
        question = {"content": text, "add_special": True, "parse_special": True}
        ids: list[int] = ask(self._client, "/tokenize", question)["tokens"]
        return ids

    def check(self, body: Mapping[str, Any], said: str, *, max_tokens: int) -> float | None:
        """Fail unless `said` is what this model says to a greedy request, up to a near tie.

        Returns the near tie's gap in nats, None where there is no difference. What follows a near tie is
        not looked at: it answers to another beginning.
        """
        prompt = self.prompt_ids(body)
        own_text, ids = self._greedy(prompt, max_tokens, ignore_eos=bool(body.get("ignore_eos")))
        if own_text == said:
            return None
        common = next((n for n in range(len(ids)) if not said.encode().startswith(self._bytes(ids[: n + 1]))), len(ids))
        # The text of the token that was said instead may begin as some tokens here do.
        gaps = [self._gap(prompt, ids[:count], ids[count:], said) for count in range(max(0, common - 2), common + 1)]
        gap = min(gaps)
        assert gap < NEAR_TIE, f"{gap:.3f} nats around token {common} of the answer: {said!r} instead of {own_text!r}"
        return gap

    def _gap(self, prompt: list[int], before: list[int], after: list[int], said: str) -> float:
        """How much less likely the best token that goes on as `said` does is than the best one, in nats."""
        question = {"prompt": prompt + before, "temperature": 0, "n_probs": 40, "cache_prompt": False}
        events = ask_streaming(self._client, COMPLETION, {**question, "n_predict": 4})
        top = next(e["completion_probabilities"] for e in events if "completion_probabilities" in e)[0]["top_logprobs"]
        rest = said.encode()[len(self._bytes(before)) :]
        # An answer that has ended said a token that shows nothing.
        others = [
            entry["logprob"]
            for entry in top
            if entry["id"] not in after[:1] and (rest.startswith(bytes(entry["bytes"])) if entry["bytes"] else not rest)
        ]
        return float(top[0]["logprob"] - max(others, default=-100.0))

    def _greedy(self, prompt: list[int], max_tokens: int, **fields: object) -> tuple[str, list[int]]:
        body = {"prompt": prompt, "n_predict": max_tokens, "temperature": 0, "cache_prompt": False, **fields}
        # Streamed: a server may answer 500 to an unstreamed request whose answer ends within a character.
        text = text_of(ask_streaming(self._client, COMPLETION, body))
        return text, ask(self._client, "/tokenize", {"content": text, "parse_special": True})["tokens"]

    def _bytes(self, ids: list[int]) -> bytes:
        text: str = ask(self._client, "/detokenize", {"tokens": ids})["content"]
        # A character half said shows nothing yet.
        return text.rstrip("\ufffd").encode()
