"""`specrouter check` on running servers, and what a wrong vocabulary does."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import gguf
import httpx
import pytest
from click.testing import CliRunner, Result
from llama_support import (
    CHAT,
    StartRouter,
    StartServer,
    chat,
    client_of,
    drafting,
    until,
    until_decoding,
    write_topology,
)

from specrouter.cli import main
from specrouter.demo.processes import ManagedServer
from specrouter.managed.processes import free_port
from specrouter.ngram_pool import FLAGS

SETTINGS = {
    name: int(re.search(rf"{name.replace('_', '-')} (\d+)", FLAGS)[1]) for name in ("n_match", "n_min", "n_max")
}  # type: ignore[index]
"""What the flags of the session's target mean."""

SWAPPED = (1001, 30_022)
"""Ids of two ordinary tokens whose texts a draft model has the other way round."""


def check(tmp_path: Path, servers: Mapping[str, Any], routes: Mapping[str, Any], *options: str) -> Result:
    """What the command says to a topology."""
    file = write_topology(tmp_path / "topology.yaml", servers, routes)
    return CliRunner().invoke(main, ["check", str(file), *options])


def test_everything_is_fine(tmp_path: Path, target: ManagedServer, drafter: ManagedServer) -> None:
    result = check(tmp_path, {"big": target, "laptop": drafter}, {"fast": drafting()})
    assert result.exit_code == 0, result.output
    big = re.search(r"^  big: up, (.*)$", result.output, re.MULTILINE)
    assert big is not None, result.output
    assert "exact.gguf" in big[1]
    assert "slots 4" in big[1]
    assert "vocabulary 49152" in big[1]
    assert "fast: answered by big" in result.output
    settings = ", ".join(f"{name}={value}" for name, value in SETTINGS.items())
    assert f"drafts are verified by big (inject: {settings})" in result.output


def test_json(tmp_path: Path, target: ManagedServer, drafter: ManagedServer) -> None:
    result = check(tmp_path, {"big": target, "laptop": drafter}, {"fast": drafting()}, "--json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["ok"] is True
    assert [server["state"] for server in report["servers"]] == ["up", "up"]
    assert report["servers"][0]["info"]["slots"] == 4
    (pair,) = report["routes"][0]["pairs"]
    assert pair["details"] == SETTINGS
    assert pair["obstacle"] is None


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_draft_server_down(tmp_path: Path, target: ManagedServer, options: tuple[str, ...]) -> None:
    nowhere = {"url": f"http://127.0.0.1:{free_port()}"}
    result = check(tmp_path, {"big": target, "laptop": nowhere}, {"fast": drafting()}, *options)
    assert result.exit_code == 1, result.output
    if options:
        (route,) = json.loads(result.stdout)["routes"]
        assert route["served_by"] == "big"
        assert route["pairs"][0]["obstacle"].startswith("server laptop is down")
    else:
        assert "laptop: DOWN, " in result.output
        assert "fast: answered by big" in result.output
        assert "NO DRAFTS on big: server laptop is down" in result.output


def test_target_down(tmp_path: Path) -> None:
    nowhere = {"url": f"http://127.0.0.1:{free_port()}"}
    result = check(tmp_path, {"big": nowhere}, {"alone": {"target": "big"}})
    assert result.exit_code == 1, result.output
    assert "alone: NOT SERVED: no target is up" in result.output


def test_target_without_flags_is_told_which(tmp_path: Path, target: ManagedServer, drafter: ManagedServer) -> None:
    result = check(tmp_path, {"bare": drafter, "laptop": target}, {"fast": drafting("bare")})
    assert result.exit_code == 1, result.output
    assert "NO DRAFTS on bare: inject: server bare has no n-gram pool that verifies drafts" in result.output
    assert f"to change that: start it with {FLAGS}" in result.output


def test_target_with_the_servers_own_defaults_is_told_which_to_change(
    tmp_path: Path, model_file: Path, start_server: StartServer, drafter: ManagedServer
) -> None:
    usual = start_server(model_file, "-c", "4096", "--spec-default")
    result = check(tmp_path, {"big": usual, "laptop": drafter}, {"fast": drafting()})
    usual.stop()
    assert result.exit_code == 1, result.output
    assert "drafts only chains of 48 tokens and more" in result.output
    assert "to change that: start it with --spec-ngram-mod-n-min 1" in result.output


# -- a draft model with another vocabulary -----------------------------------------------------------------


@pytest.fixture(scope="module")
def other_texts(
    model_file: Path, start_server: StartServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ManagedServer]:
    """The same model, but two tokens have each other's text."""
    file = tmp_path_factory.mktemp("models") / "other.gguf"
    shutil.copyfile(model_file, file)
    texts = gguf.GGUFReader(file, "r+").fields["tokenizer.ggml.tokens"]
    one, other = (texts.parts[texts.data[token]] for token in SWAPPED)
    assert len(one) == len(other), "only texts of one length can change places within a file"
    one[:], other[:] = other.copy(), one.copy()
    one.flush()
    server = start_server(file, "-c", "4096")
    yield server
    server.stop()


def text_of_token(server: ManagedServer, token: int) -> str:
    with client_of(server) as client:
        text: str = client.post("/detokenize", json={"tokens": [token]}).json()["content"]
        return text


def test_wrong_vocabulary_is_found(tmp_path: Path, target: ManagedServer, other_texts: ManagedServer) -> None:
    result = check(tmp_path, {"big": target, "laptop": other_texts}, {"fast": drafting()})
    assert result.exit_code == 1, result.output
    first = SWAPPED[0]
    texts = [repr(text_of_token(server, first)) for server in (other_texts, target)]
    assert texts[0] != texts[1]
    difference = f"text of token {first}: draft has {texts[0]}, target has {texts[1]}"
    assert f"NO DRAFTS on big: tokenizers differ: {difference}" in result.output


def test_wrong_vocabulary_is_served_plainly(
    start_router: StartRouter, target: ManagedServer, other_texts: ManagedServer
) -> None:
    client: httpx.Client = start_router({"big": target, "laptop": other_texts}, {"fast": drafting()})
    assert until_decoding(client, "tokenizers differ", seconds=20).startswith(
        f"plain; reason=tokenizers differ: text of token {SWAPPED[0]}"
    )


def test_wrong_vocabulary_is_refused_where_the_route_says_so(
    start_router: StartRouter, target: ManagedServer, other_texts: ManagedServer
) -> None:
    routes = {"fast": drafting(), "strict": drafting(on_tokenizer_mismatch="refuse")}
    client = start_router({"big": target, "laptop": other_texts}, routes)
    body = {**chat("Hi", max_tokens=8), "model": "strict"}
    until(lambda: client.post(CHAT, json=body).status_code != 200, seconds=20)
    refused = client.post(CHAT, json=body)
    assert refused.status_code == 422, refused.text
    assert refused.json()["error"]["code"] == "tokenizer_mismatch"
    assert f"text of token {SWAPPED[0]}" in refused.json()["error"]["message"]
