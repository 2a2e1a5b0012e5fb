"""Drafts that no model makes: real targets accept them, and say what they would have said."""

from __future__ import annotations

import logging
from typing import Any

import httpx
import pytest
from llama_support import CHAT, COMPLETION, TEXT, Reference, StartRouter, chat, record_of, text_of, until_decoding

from specrouter.demo.processes import ManagedServer

SENTENCE = "The quick brown fox jumps over the lazy dog while the old grey cat sleeps in the warm kitchen.\n"

LOOKUP = {"use": "prompt_lookup"}
REMOTE = {"use": "remote", "options": {"server": "laptop"}}
ROUTES = {
    "lookup": {"target": "big", "draft": LOOKUP},
    "both": {"target": "big", "draft": {"use": "first_of", "options": {"strategies": [LOOKUP, REMOTE]}}},
}

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": (CHAT, chat(f"Repeat this line five times:\n{SENTENCE * 3}", max_tokens=64) | {"model": "lookup"}),
    "completion": (COMPLETION, {"model": "lookup", "prompt": SENTENCE.upper() * 4, "temperature": 0, "n_predict": 64}),
    "emoji": (TEXT, {"model": "lookup", "prompt": "🍎 👩‍👩‍👧 日本語 é\n" * 8, "temperature": 0, "max_tokens": 64}),
    "before a draft model": (TEXT, {"model": "both", "prompt": SENTENCE * 4, "temperature": 0, "max_tokens": 64}),
}


@pytest.fixture(scope="module")
def client(start_router: StartRouter, target: ManagedServer, drafter: ManagedServer) -> httpx.Client:
    """A client of a router that looks up what may follow."""
    client = start_router({"big": target, "laptop": drafter}, ROUTES)
    for route in ROUTES:
        until_decoding(client, "inject", route)
    return client


@pytest.mark.parametrize(("path", "body"), CASES.values(), ids=CASES)
def test_what_was_said_before_is_drafted(
    client: httpx.Client, reference: Reference, caplog: pytest.LogCaptureFixture, path: str, body: dict[str, Any]
) -> None:
    caplog.set_level(logging.INFO, "specrouter.requests")
    response = client.post(path, json=body)
    assert response.status_code == 200, response.text
    confirmed = record_of(caplog, response).confirmed
    assert confirmed is not None
    assert confirmed > 0
    reference.check(body, text_of(response.json()), max_tokens=64)
