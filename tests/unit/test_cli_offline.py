"""The commands that need no server."""

from __future__ import annotations

import io
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import click.testing
import config_plugins
import pytest
from rich.console import Console

from specrouter import __version__, cli, terminal
from specrouter.config import topology_schema

CONFIG = Path(__file__).resolve().parent.parent.parent / "config"


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch):
    """Run a command with the plugins of these tests in place of the installed ones."""
    monkeypatch.setattr("specrouter.config.load_plugins", config_plugins.load_registry)
    monkeypatch.setattr("specrouter.cli.load_plugins", config_plugins.load_registry)
    runner = click.testing.CliRunner()
    return lambda *arguments: runner.invoke(cli.main, [str(argument) for argument in arguments])


def test_check(run) -> None:
    result = run("check", CONFIG / "example.yaml", "--offline")
    assert result.exit_code == 0
    assert result.stderr == ""
    assert result.stdout.splitlines() == [
        f"{CONFIG / 'example.yaml'}: ok",
        "  qwen-122b (alias default): target big, draft remote from laptop, verify auto, accept auto, "
        "tokenizer checks vocabulary, probe_text",
        "  qwen-122b-plain: target big, no drafts",
    ]


def test_check_with_servers_that_are_not_there(run, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    path = tmp_path / "topology.yaml"
    path.write_text(
        f"version: 1\nservers: {{big: {{url: 'http://127.0.0.1:{port}'}}}}\nroutes: {{chat: {{target: big}}}}\n"
    )
    result = run("check", path)
    assert result.exit_code == 1
    assert f"big: DOWN, server 'big': no connection (http://127.0.0.1:{port})" in result.stdout
    assert "chat: NOT SERVED: no target is up" in result.stdout
    report = json.loads(run("check", "--json", path).stdout)
    assert report["ok"] is False
    assert report["servers"][0]["state"] == "down"


def test_check_with_problems(run, tmp_path: Path) -> None:
    path = tmp_path / "topology.yaml"
    path.write_text("version: 2\nservers: {big: {url: http://big}}\nroutes: {chat: {target: bgi}}\n")
    result = run("check", path)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.splitlines() == [
        f"{path}:1:10: version: is the number `2`, must be 1",
        f"{path}:3:25: routes.chat.target: `bgi` is not a server of this topology (did you mean `big`? servers: big)",
    ]


def test_check_with_warnings(run, tmp_path: Path) -> None:
    path = tmp_path / "topology.yaml"
    path.write_text((CONFIG / "minimal.yaml").read_text().replace("routes:", "  spare: {url: http://spare}\nroutes:"))
    result = run("check", "--offline", path)
    assert result.exit_code == 0
    assert result.stderr == f"warning: {path}:5:3: servers.spare: no route uses this server\n"


def test_schema(run) -> None:
    result = run("schema")
    assert result.exit_code == 0
    assert json.loads(result.stdout) == topology_schema(config_plugins.load_registry())


def test_plugins_for_programs_and_pipes(run) -> None:
    found = json.loads(run("plugins", "--json").stdout)
    assert found["problems"] == []
    names = [(plugin["kind"], plugin["name"]) for plugin in found["plugins"]]
    assert {("draft", "adrift"), ("draft", "loose"), ("draft", "none")} <= set(names)
    assert set(found["plugins"][0]) == {
        "kind", "name", "summary", "distribution", "version", "lossless", "options_schema",
    }  # fmt: skip
    lines = {tuple(line.split("\t")[:2]): line for line in run("plugins").stdout.splitlines()}
    assert lines["draft", "none"].split("\t")[2:] == ["Drafts nothing.", "config_plugins.py file", "yes", "-"]
    assert "server (required), depth=8, pause" in lines["draft", "remote"]


def test_plugins_of_a_topology_with_problems_below(run, tmp_path: Path) -> None:
    path = tmp_path / "topology.yaml"
    path.write_text((CONFIG / "minimal.yaml").read_text() + "plugins: [faulty.py]\n")
    (tmp_path / "faulty.py").write_text("raise RuntimeError('no luck')\n")
    result = run("plugins", path)
    assert result.exit_code == 0
    assert "no luck" not in result.stdout
    assert result.stderr.startswith(f"warning: plugin file {tmp_path / 'faulty.py'}: cannot be imported: RuntimeError")
    assert json.loads(run("plugins", path, "--json").stdout)["problems"]


def test_plugins_on_a_terminal() -> None:
    output = io.StringIO()
    console = Console(file=output, force_terminal=True, width=200, _environ={"NO_COLOR": "1", "TERM": "xterm"})
    terminal.print_plugins(config_plugins.load_registry(), console)
    header, first, *_ = output.getvalue().splitlines()
    assert "what it does" in header
    assert first.split() == [
        *["draft", "adrift", "Has", "a", "reference", "to", "nowhere", "in", "its", "schema."],
        *["config_plugins.py", "file", "yes", "depth"],
    ]


def test_installed_command() -> None:
    command = [str(Path(sys.executable).with_name("specrouter"))]
    version = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True)
    assert version.stdout == f"specrouter, version {__version__}\n"
    missing = subprocess.run([*command, "check", "no-such.yaml"], capture_output=True, text=True, env=os.environ)
    assert missing.returncode == 1
    assert missing.stderr == "no-such.yaml:1:1: there is no such file\n"
