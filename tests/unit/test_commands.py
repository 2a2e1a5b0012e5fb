"""The command lines that `specrouter commands` prints."""

from __future__ import annotations

import shlex
from pathlib import Path

import click.testing
import pytest

from specrouter import cli
from specrouter.commands import command_lines
from specrouter.config import LoadedTopology, load_topology
from specrouter.errors import SetupError
from specrouter.types import ServerInfo

TOPOLOGY = """
version: 1
servers:
  big: {url: http://server:8080}
  big-rpc: {url: http://server:8090}
  heads: {url: "https://server", api_key: hush-hush}
  laptop: {url: http://127.0.0.1:8081}
  own: {run: {command: [llama-server, --api-key, hush-hush, --port, "${port}"]}}
routes:
  plain: {target: [big, own]}
  rpc: {target: big, draft: {use: rpc, options: {server: big-rpc, workers: [laptop:50052, "127.0.0.1:50053"]}}}
  mtp: {target: heads, aliases: [default], draft: {use: rpc, options: {server: heads}}}
  inject: {target: big, draft: {use: first_of, options: {strategies: [{use: remote, options: {server: laptop}}]}}}
  fanout: {target: big, draft: prompt_lookup, verify: fanout}
"""


@pytest.fixture
def loaded(tmp_path: Path) -> LoadedTopology:
    file = tmp_path / "topology.yaml"
    file.write_text(TOPOLOGY, encoding="utf-8")
    return load_topology(file)


def commands(text: str) -> list[list[str]]:
    """The words of each command, as a shell understands the text."""
    joined = text.replace("\\\n", " ")
    return [shlex.split(line) for line in joined.splitlines() if line and not line.startswith("#")]


def test_draft_model_on_rpc_workers(loaded: LoadedTopology) -> None:
    assert commands(command_lines(loaded, "rpc", {})) == [
        ["ggml-rpc-server", "--host", "0.0.0.0", "--port", "50052"],
        ["ggml-rpc-server", "--host", "127.0.0.1", "--port", "50053"],
        [
            *("GGML_NO_BACKTRACE=1", "llama-server", "--model", "TARGET.gguf", "--host", "0.0.0.0", "--port", "8090"),
            *("--device", "none", "--spec-type", "draft-simple", "--model-draft", "DRAFT.gguf"),
            *("--rpc", "laptop:50052,127.0.0.1:50053", "--spec-draft-device", "RPC0,RPC1"),
        ],
        ["llama-server", "--model", "TARGET.gguf", "--host", "0.0.0.0", "--port", "8080"],
    ]


def test_machines_and_dangers_are_named(loaded: LoadedTopology) -> None:
    lines = command_lines(loaded, "rpc", {}).splitlines()
    assert [line for line in lines if line.startswith("# on ")] == [
        "# on laptop: the RPC worker laptop:50052",
        "# on this machine: the RPC worker 127.0.0.1:50053",
        "# on server: big-rpc, drafts by itself on the RPC workers (http://server:8090)",
        "# on server: big, answers alone (http://server:8080)",
    ]
    assert sum("no authentication" in line for line in lines) == 2


def test_heads_of_the_model(loaded: LoadedTopology) -> None:
    text = command_lines(loaded, "default", {})
    assert commands(text) == [
        shlex.split(
            "llama-server --model TARGET.gguf --host 0.0.0.0 --port 443 --api-key-file KEY-FILE --spec-type draft-mtp"
        )
    ]
    assert "hush-hush" not in text
    assert "#   --spec-type draft-eagle3 --model-draft DRAFT.gguf" in text


def test_drafts_that_the_target_verifies(loaded: LoadedTopology) -> None:
    draft, target = commands(command_lines(loaded, "inject", {}))
    assert draft == shlex.split("llama-server --model DRAFT.gguf --host 127.0.0.1 --port 8081")
    assert target[-8:] == shlex.split(
        "--spec-type ngram-mod --spec-ngram-mod-n-match 8 --spec-ngram-mod-n-min 1 --spec-ngram-mod-n-max 16"
    )


def test_a_target_that_is_asked_for_each_token(loaded: LoadedTopology) -> None:
    [target] = commands(command_lines(loaded, "fanout", {}))
    assert target[-2:] == ["--parallel", "4"]


def test_no_drafts_and_a_server_that_the_router_runs(loaded: LoadedTopology) -> None:
    text = command_lines(loaded, "plain", {})
    first, second = commands(text)
    assert first == shlex.split("llama-server --model TARGET.gguf --host 0.0.0.0 --port 8080")
    assert second == ["llama-server", "--model", "TARGET.gguf", "--port", "${port}"]
    assert "# The router runs it as `servers.own.run.command` says: these flags belong there." in text
    assert "hush-hush" not in text


def test_files_of_running_servers(loaded: LoadedTopology) -> None:
    """One machine's two servers with the same model have the same file."""
    known = {"big": ServerInfo(model_path="/models/the big one.gguf"), "laptop": ServerInfo(model_path="small.gguf")}
    *_, drafting, plain = commands(command_lines(loaded, "rpc", known))
    assert drafting[3] == plain[2] == "/models/the big one.gguf"
    draft, target = commands(command_lines(loaded, "inject", known))
    assert (draft[2], target[2]) == ("small.gguf", "/models/the big one.gguf")


def test_a_route_that_is_none(loaded: LoadedTopology) -> None:
    with pytest.raises(SetupError, match=r"has no route 'nope' \(there are: plain, rpc, mtp, inject, fanout\)"):
        command_lines(loaded, "nope", {})


def test_the_command(tmp_path: Path) -> None:
    file = tmp_path / "topology.yaml"
    file.write_text("version: 1\nservers: {big: {url: http://127.0.0.1:1}}\nroutes: {chat: {target: big}}\n", "utf-8")
    runner = click.testing.CliRunner()
    result = runner.invoke(cli.main, ["commands", str(file), "chat"])
    assert result.exit_code == 0
    assert commands(result.stdout) == [shlex.split("llama-server --model TARGET.gguf --host 127.0.0.1 --port 1")]
    result = runner.invoke(cli.main, ["commands", str(file), "chatt"])
    assert (result.exit_code, result.stdout) == (1, "")
    assert "has no route 'chatt' (there are: chat)" in result.stderr
