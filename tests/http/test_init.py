"""`specrouter init` asks fake servers, and strange ones."""

from __future__ import annotations

from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import httpx
import pytest
from http_support import StartFake, is_being_tried_out
from init_support_http import ANSWER, BIG, SMALL, big_toy, files_in, init, run, weighs

from specrouter.app import serve_in_background
from specrouter.config import load_topology
from specrouter.ngram_pool import FLAGS
from specrouter.testing import Exchange, FakeServer, ToyModel, ToyVocabulary, respond_with

pytestmark = pytest.mark.anyio

UNSUPPORTED = {"error": {"code": 501, "message": "Start it with `--embeddings`", "type": "not_supported_error"}}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which the command runs."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@asynccontextmanager
async def served(file: Path) -> Any:
    async with serve_in_background(file) as url, httpx.AsyncClient(base_url=url, timeout=20) as client:
        yield client


@pytest.fixture
async def target(fake: StartFake) -> FakeServer:
    """See big_toy."""
    return await big_toy(fake)


@pytest.fixture
async def drafter(fake: StartFake) -> FakeServer:
    """A small model that says the same."""
    return weighs(await fake(ANSWER, name="/models/Toy-1B-Q8_0.gguf"), SMALL)


@pytest.fixture
async def plain(fake: StartFake) -> FakeServer:
    """The big model on a server that can verify no drafts."""
    server = await fake(ANSWER, name="/models/Toy-20B-Q4_K_M.gguf")
    server.forgetful = True
    server.step_seconds = 0.02
    return weighs(server, BIG)


# -- what is written ---------------------------------------------------------------------------------------


async def test_three_servers_and_a_drafted_answer(
    target: FakeServer, drafter: FakeServer, plain: FakeServer, here: Path
) -> None:
    result = await init(drafter, plain, target)
    assert result.exit_code == 0, result.output
    topology = load_topology(here / "topology.yaml").topology
    urls = {name: server.url for name, server in topology.servers.items()}
    assert set(topology.routes) == {"Toy-20B", "Toy-20B-plain"}
    assert [urls[name] for name in topology.routes["Toy-20B"].targets] == [target.url]
    assert urls[topology.routes["Toy-20B"].draft.options["server"]] == drafter.url
    assert [urls[name] for name in topology.routes["Toy-20B-plain"].targets] == [plain.url, target.url]
    checked = await run("check", "topology.yaml")
    assert checked.exit_code == 0, checked.output
    assert checked.stderr == f"trying out the route Toy-20B on {topology.routes['Toy-20B'].targets[0]}\n"
    async with served(here / "topology.yaml") as client:
        body = {"messages": [{"role": "user", "content": "hi"}], "temperature": 0, "cache_prompt": False}
        with anyio.fail_after(60):
            while True:
                while await is_being_tried_out(client):
                    await anyio.sleep(0.02)
                response = await client.post("/v1/chat/completions", json={"model": "Toy-20B", **body})
                if response.headers["x-specrouter-decoding"] == "inject":
                    break
        assert response.json()["choices"][0]["message"]["content"] == ANSWER
        assert response.json()["timings"]["draft_n_accepted"] > 0


async def test_what_is_said_at_the_end(target: FakeServer, drafter: FakeServer) -> None:
    said = (await init(target, drafter)).stdout
    assert said.startswith("topology.yaml: written\n")
    assert "Toy-20B-Q4_K_M.gguf, 20.0 GiB, context 4096, 4 slots, 50.0 tokens/s alone" in said
    assert "Toy-20B (alias default): target Toy-20B, draft remote from Toy-1B" in said
    assert "and is 20.0 times as fast." in said
    assert "verifies drafts (inject: n_match=4, n_min=1, n_max=16)" in said
    assert "Toy-1B and Toy-20B are on one machine." in said
    assert "\n  specrouter serve topology.yaml\n  curl -i http://127.0.0.1:" in said


async def test_the_command_that_is_shown_works(target: FakeServer, here: Path) -> None:
    said = (await init(target)).stdout
    body = said.rpartition("-d '")[2].rpartition("'")[0]
    async with served(here / "topology.yaml") as client:
        response = await client.post("/v1/chat/completions", content=body)
    assert response.status_code == 200, response.text


async def test_flags_that_are_missing(plain: FakeServer, drafter: FakeServer, here: Path) -> None:
    result = await init(plain, drafter)
    assert result.exit_code == 0, result.output
    assert "NO DRAFTS YET: " in result.stdout
    assert f"start it with {FLAGS}" in " ".join(result.stdout.split())
    assert f"start it with {FLAGS}" in " ".join((here / "topology.yaml").read_text().replace("#", " ").split())
    checked = await run("check", "topology.yaml")
    assert checked.exit_code == 0, checked.output
    assert checked.stderr == ""


async def test_another_vocabulary_crosses_as_text(target: FakeServer, fake: StartFake, here: Path) -> None:
    other = await fake(ToyModel(ANSWER, vocabulary=ToyVocabulary(reverse=True)), name="Other-1B.gguf")
    result = await init(target, weighs(other, SMALL))
    assert result.exit_code == 0, result.output
    topology = load_topology(here / "topology.yaml").topology
    assert topology.routes["Toy-20B"].on_tokenizer_mismatch == "text"
    assert "drafts cross as text (text of token 264: draft has ' zuzu', target has ' baba')" in result.stdout
    assert (await run("check", "topology.yaml")).exit_code == 0


async def test_embeddings_and_reranking(target: FakeServer, fake: StartFake, here: Path) -> None:
    embedder, reranker = await fake(name="bge-m3.gguf"), await fake(name="bge-reranker.gguf")
    target.replies["/v1/embeddings"] = respond_with(UNSUPPORTED, 501)
    embedder.replies["/v1/embeddings"] = respond_with({"object": "list", "data": [{"embedding": [0.0]}]})
    reranker.replies["/v1/rerank"] = respond_with({"results": []})
    result = await init(embedder, reranker, target)
    assert result.exit_code == 0, result.output
    routes = load_topology(here / "topology.yaml").topology.routes
    assert list(routes) == ["Toy-20B", "Toy-20B-plain", "bge-m3", "bge-reranker"]
    assert not embedder.received("/completion")
    only = await init(embedder, options=("--output", "only.yaml"))
    assert "/v1/embeddings" in only.stdout
    assert (await run("check", "only.yaml")).exit_code == 0


async def test_hostile_names(target: FakeServer, fake: StartFake, here: Path) -> None:
    name = "evil\x1b[2J\nroutes: {}\n\"'${HOME}{{#\u2028.gguf"
    result = await init(target, weighs(await fake(ANSWER, name=name), SMALL, ftype=name))
    assert result.exit_code == 0, result.output
    assert "\x1b" not in result.output
    assert "\x1b" not in (here / "topology.yaml").read_text()
    assert len(load_topology(here / "topology.yaml").topology.servers) == 2


# -- keys --------------------------------------------------------------------------------------------------


def locked(server: FakeServer, key: str) -> FakeServer:
    """Let a fake ask for a key as a llama-server does: everywhere but for its health."""
    weighed = dict(server.replies)
    server.replies.clear()

    async def reply(exchange: Exchange) -> None:
        path = exchange.request.path
        if path != "/health" and exchange.request.header("authorization") != f"Bearer {key}":
            await exchange.respond({"error": {"code": 401, "message": "Invalid API Key"}}, 401)
            return
        await weighed.get(path, server.unscripted(exchange))(exchange)

    server.replies["*"] = reply
    return server


async def test_keys_stay_in_their_variables(
    target: FakeServer, drafter: FakeServer, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BIG_KEY", "hush-big")
    monkeypatch.setenv("SMALL_KEY", "hush-small")
    locked(target, "hush-big")
    locked(drafter, "hush-small")
    with_key = drafter.url.replace("://", "://${SMALL_KEY}@")
    result = await init(target, with_key, options=("--api-key-env", "BIG_KEY"))
    assert result.exit_code == 0, result.output
    text = (here / "topology.yaml").read_text()
    assert "hush" not in text + result.output
    assert 'api_key: "${BIG_KEY}"' in text
    assert 'api_key: "${SMALL_KEY}"' in text
    assert (await run("check", "topology.yaml")).exit_code == 0


async def test_a_key_is_only_sent_to_who_asks_for_one(
    target: FakeServer, drafter: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BIG_KEY", "hush-big")
    locked(target, "hush-big")
    result = await init(target, drafter, options=("--api-key-env", "BIG_KEY"))
    assert result.exit_code == 0, result.output
    assert {request.header("authorization") for request in drafter.requests} == {None}


async def test_a_wrong_key(target: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BIG_KEY", "hush-wrong")
    result = await init(locked(target, "hush-big"), options=("--api-key-env", "BIG_KEY"))
    assert result.exit_code == 1
    assert "does not take the key in BIG_KEY" in result.stderr
    assert "hush" not in result.output


async def test_a_key_in_place_of_its_variable_is_not_shown(target: FakeServer) -> None:
    result = await init(target, options=("--api-key-env", "hush_hush"))
    assert result.exit_code == 1
    assert "--api-key-env takes the NAME of an environment variable" in result.stderr
    assert "hush" not in result.output
    assert target.requests == []


# -- the command -------------------------------------------------------------------------------------------


async def test_a_file_is_not_replaced_unless_that_is_asked_for(target: FakeServer, here: Path) -> None:
    file = here / "topology.yaml"
    file.write_text("mine")
    result = await init(target)
    assert result.exit_code == 1
    assert result.stderr == "topology.yaml exists (replace it with --force, or name another file with --output)\n"
    assert file.read_text() == "mine"
    assert target.requests == []
    assert (await init(target, options=("--force",))).exit_code == 0
    assert "Toy-20B" in file.read_text()


@pytest.mark.parametrize(("output", "problem"), [(".", "it is a folder"), ("no/t.yaml", "there is no folder no")])
async def test_places_that_cannot_be_written_to(target: FakeServer, output: str, problem: str) -> None:
    result = await init(target, options=("--output", output))
    assert (result.exit_code, result.stderr) == (1, f"cannot write {output}: {problem}\n")
    assert target.requests == []


async def test_standard_output_has_the_topology_alone(target: FakeServer, here: Path) -> None:
    result = await init(target, options=("--output", "-"))
    assert result.exit_code == 0, result.output
    assert files_in(here) == []
    (here / "piped.yaml").write_text(result.stdout)
    assert list(load_topology(here / "piped.yaml").topology.routes) == ["Toy-20B", "Toy-20B-plain"]
    assert "specrouter serve topology.yaml" in result.stderr


async def test_a_port_that_is_free(target: FakeServer, here: Path) -> None:
    """Not that of a server that was given, even while it is down."""
    result = await init(target, "127.0.0.1:8080")
    assert result.exit_code == 3, result.output
    assert load_topology(here / "topology.yaml").topology.listen.port != 8080


async def test_no_addresses_and_nobody_to_ask() -> None:
    result = await init()
    assert result.exit_code == 2
    assert "Give the addresses of your llama-servers" in result.stderr


async def test_addresses_that_are_asked_for(target: FakeServer, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specrouter.init.command._is_asked", lambda: True)
    result = await run("init", stdin=f"{target.url}, {target.url}\n")
    assert result.exit_code == 0, result.output
    assert (here / "topology.yaml").exists()
    (here / "topology.yaml").unlink()
    nothing = await run("init", stdin="\n")
    assert nothing.exit_code == 1
    assert "llama-server -m BIG.gguf" in nothing.stderr


async def test_an_address_that_is_none(target: FakeServer) -> None:
    result = await init(target, "http://hush-hush@server")
    assert result.exit_code == 1
    assert "has a user or a key in it" in result.stderr
    assert "hush" not in result.stderr
    assert target.requests == []
