"""What the draft side does or fails to do never harms an answer."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from llama_support import (
    CHAT,
    Reference,
    StartRouter,
    StartServer,
    ask,
    ask_streaming,
    chat,
    decoding,
    drafting,
    streaming,
    text_of,
    until_decoding,
)

from specrouter.demo.processes import ManagedServer
from specrouter.ngram_pool import FLAGS

MAX_TOKENS = 40


@pytest.fixture(scope="module")
def laptop(model_file: Path, start_server: StartServer) -> Iterator[ManagedServer]:
    """A draft server for which bad things happen; every test leaves it running."""
    server = start_server(model_file, "-c", "4096")
    yield server
    server.stop()


@pytest.fixture(scope="module")
def client(start_router: StartRouter, target: ManagedServer, laptop: ManagedServer) -> httpx.Client:
    """A client of a router that drafts on that server."""
    return start_router({"big": target, "laptop": laptop}, {"fast": drafting(), "plain": {"target": "big"}})


def check_complete(events: list[str], body: dict[str, object], reference: Reference) -> None:
    """Fail unless a stream's events are one whole answer, the model's own."""
    assert events[-1] == "[DONE]"
    parsed = [json.loads(event) for event in events[:-1]]
    assert not any("error" in event for event in parsed)
    assert [c["finish_reason"] for event in parsed for c in event["choices"] if c["finish_reason"]] == ["length"]
    reference.check(body, text_of(parsed), max_tokens=MAX_TOKENS)


@pytest.mark.slow
@pytest.mark.parametrize("attempt", range(0, 20, 4))
def test_draft_server_killed_mid_stream(
    client: httpx.Client, laptop: ManagedServer, reference: Reference, attempt: int
) -> None:
    # That drafts are back after each death is half of the test.
    until_decoding(client, "inject")
    body = chat(f"Describe planet number {attempt}.", max_tokens=MAX_TOKENS, ignore_eos=True)
    with streaming(client, CHAT, body) as (response, events):
        assert response.headers["x-specrouter-decoding"] == "inject"
        received = [next(events) for _ in range(1 + attempt)]
        laptop.kill()
        received += events
    laptop.restart()
    check_complete(received, body, reference)


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGSTOP")
def test_draft_server_that_hangs(client: httpx.Client, laptop: ManagedServer, reference: Reference) -> None:
    until_decoding(client, "inject")
    started = time.monotonic()
    ask_streaming(
        client, CHAT, {**chat("Describe a mountain.", max_tokens=MAX_TOKENS, ignore_eos=True), "model": "plain"}
    )
    plain = time.monotonic() - started
    os.killpg(laptop.pid, signal.SIGSTOP)
    try:
        for what in ("a forest", "a desert", "an ocean"):
            body = chat(f"Describe {what}.", max_tokens=MAX_TOKENS, ignore_eos=True)
            started = time.monotonic()
            with streaming(client, CHAT, body) as (_, events):
                received = list(events)
            assert time.monotonic() - started < 3 * plain + 3
            check_complete(received, body, reference)
    finally:
        os.killpg(laptop.pid, signal.SIGCONT)
    until_decoding(client, "inject")


def test_draft_server_that_is_not_there_yet(
    start_router: StartRouter, target: ManagedServer, laptop: ManagedServer
) -> None:
    laptop.kill()
    client = start_router({"big": target, "laptop": laptop}, {"fast": drafting()})
    assert decoding(client).startswith("plain; reason=draft server laptop is ")
    laptop.restart()
    until_decoding(client, "inject")


def test_draft_server_with_a_short_context(
    start_router: StartRouter, start_server: StartServer, model_file: Path, target: ManagedServer, reference: Reference
) -> None:
    short = start_server(model_file, "-c", "64", "-np", "1")
    client = start_router({"big": target, "laptop": short}, {"fast": drafting()})
    until_decoding(client, "inject")
    n_ctx = httpx.get(f"{short.url}/props", trust_env=False).json()["default_generation_settings"]["n_ctx"]
    # Over it from the start, and over it on the way.
    for words in (n_ctx + 50, n_ctx - 50):
        body = chat("go " * words, max_tokens=60, ignore_eos=True)
        answer = ask(client, CHAT, body)
        assert answer["usage"]["completion_tokens"] == 60
        reference.check({**body, "max_tokens": 60}, text_of(answer), max_tokens=60)
    short.stop()


def test_targets_that_cannot_verify_say_why(
    start_router: StartRouter,
    start_server: StartServer,
    model_file: Path,
    drafter: ManagedServer,
    laptop: ManagedServer,
) -> None:
    usual = start_server(model_file, "-c", "4096", "--spec-default")
    single = start_server(model_file, "-c", "4096", "-np", "1", *FLAGS.split())
    servers = {"bare": drafter, "usual": usual, "single": single, "laptop": laptop}
    client = start_router(servers, {target: drafting(target) for target in ("bare", "usual", "single")})
    reasons = {
        "bare": "server bare has no n-gram pool that verifies drafts",
        "usual": "server usual drafts only chains of 48 tokens and more",
        "single": "server single has one slot",
    }
    for model, reason in reasons.items():
        assert until_decoding(client, reason, model).startswith("plain; reason=inject: ")
        answer = ask(client, CHAT, {**chat("Hi", max_tokens=12, ignore_eos=True), "model": model})
        assert answer["usage"]["completion_tokens"] == 12
    usual.stop()
    single.stop()


def test_target_that_comes_back_is_used_again(
    start_router: StartRouter, start_server: StartServer, model_file: Path, laptop: ManagedServer
) -> None:
    big = start_server(model_file, "-c", "4096", *FLAGS.split())
    client = start_router({"big": {"url": big.url, "load_wait": 1}, "laptop": laptop}, {"fast": drafting()})
    until_decoding(client, "inject")
    body = chat("Describe a train.", max_tokens=400, ignore_eos=True)
    with streaming(client, CHAT, body) as (_, events):
        received = [next(events) for _ in range(8)]
        big.kill()
        received += events
    assert received[-1].startswith('{"error": ')
    assert not any('"finish_reason":"' in event for event in received)
    response = client.post(CHAT, json=body)
    assert response.status_code == 502
    assert response.json()["error"]["code"] == "upstream_unavailable"
    big.restart()
    # At once, not only when a probe has found it.
    assert ask(client, CHAT, chat("Hi", max_tokens=8))["choices"]
    until_decoding(client, "inject")
    big.stop()
