"""How a topology says which servers the router runs itself."""

from __future__ import annotations

from pathlib import Path

import pytest
from config_plugins import load

from specrouter.config import RunConfig, ServerConfig
from specrouter.config.model import Restart, seconds_of
from specrouter.errors import TopologyError


@pytest.fixture
def server(tmp_path: Path):
    """Load a server from its YAML."""

    def read(text: str, **environment: str) -> ServerConfig:
        file = tmp_path / "topology.yaml"
        lines = "\n".join(f"    {line}" for line in text.strip().splitlines())
        file.write_text(f"version: 1\nservers:\n  big:\n{lines}\nroutes: {{chat: {{target: big}}}}\n", encoding="utf-8")
        return load(file, environment).topology.servers["big"]

    return read


def test_defaults(server, tmp_path: Path) -> None:
    config = server('run: {command: [llama-server, --port, "${port}"]}')
    assert config.url == ""
    assert config.run == RunConfig(tmp_path / "topology.yaml", ("llama-server", "--port", "${port}"))


def test_every_key(server, tmp_path: Path) -> None:
    config = server(
        """
url: http://localhost:8081/
run:
  command: [llama-server]
  env: {A: b}
  start: at_once
  ready_timeout: 10m
  idle_stop: 1.5
  restart: {pause: 2s, longest_pause: 1h}
  workers: [laptop:50052, "[::1]:50053"]
  without_workers: {command: [other]}
"""
    )
    assert config.url == "http://localhost:8081"
    assert config.run == RunConfig(
        topology=tmp_path / "topology.yaml",
        command=("llama-server",),
        env={"A": "b"},
        start="at_once",
        ready_timeout=600,
        idle_stop=1.5,
        restart=Restart(2, 3600),
        workers=("laptop:50052", "[::1]:50053"),
        without_workers=("other",),
    )


def test_arguments_are_as_they_are_written(server) -> None:
    config = server(
        """
url: http://127.0.0.1:8081
run:
  command:
    - a
    - 0.10
    - 1e3
    - true
    - ~
    - ${NAME}
    - "${port}/${NAME:-x}"
    - $$HOME
    - &port ${port}
  env: {A: 1, B: no, C: *port}
""",
        NAME="8",
        port="not this one",
    )
    assert config.run is not None
    assert config.run.command == ("a", "0.10", "1e3", "true", "~", "8", "${port}/8", "$HOME", "${port}")
    assert config.run.env == {"A": "1", "B": "no", "C": "${port}"}


def test_port_is_an_ordinary_variable_elsewhere(server) -> None:
    assert server("url: http://127.0.0.1:${port}", port="81").url == "http://127.0.0.1:81"


@pytest.mark.parametrize("env", ["", "  env: {PORT: '${port}'}"])
def test_both_commands_need_a_port(server, env: str) -> None:
    text = f"run:\n  command: [a, '${{port}}']\n  workers: [w:1]\n  without_workers: {{command: [b]}}\n{env}"
    if env:
        assert server(text).run
    else:
        with pytest.raises(TopologyError, match="url: is missing"):
            server(text)


def test_nothing_is_shown_that_may_be_secret(server) -> None:
    config = server('run: {command: [a, hush, "${port}"], env: {KEY: hush}}')
    assert "hush" not in repr(config)


def test_not_on_windows(server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specrouter.config.check_run.sys.platform", "win32")
    with pytest.raises(TopologyError, match=r"servers\.big\.run: the router runs servers on Linux and macOS only"):
        server("url: http://127.0.0.1:1\nrun: {command: [a]}")


@pytest.mark.parametrize(
    ("given", "seconds"), [(5, 5), (0.5, 0.5), ("5s", 5), ("2m", 120), ("2h", 7200), ("1d", 86400)]
)
def test_times(given: float | str, seconds: float) -> None:
    assert seconds_of(given) == seconds
