"""How the demo divides the machine, and the topology it writes."""

from __future__ import annotations

import os
import socket
import sys

import pytest
import yaml
from click.testing import CliRunner

from specrouter.cli import main
from specrouter.config import load_topology
from specrouter.demo import run
from specrouter.demo.run import Cores, share_cores, write_topology
from specrouter.errors import SetupError

SERVERS = {"plain": "http://127.0.0.1:1", "big": "http://127.0.0.1:2", "laptop": "http://127.0.0.1:3"}


@pytest.mark.skipif(sys.platform != "linux", reason="cores are pinned on Linux")
@pytest.mark.parametrize(
    ("usable", "expected"),
    [
        ({3}, Cores(None, None, 1)),
        ({0, 1}, Cores((0,), (1,), 1)),
        ({1, 3, 5, 7}, Cores((1, 3), (5, 7), 2)),
        (set(range(64)), Cores(tuple(range(32)), tuple(range(32, 64)), 8)),
    ],
)
def test_cores_are_shared_in_halves(monkeypatch, usable, expected):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: usable)
    assert share_cores() == expected


def test_cores_are_not_pinned_elsewhere(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    assert share_cores() == Cores(None, None, 4)


def test_topology_is_one_that_the_router_loads(tmp_path):
    path = write_topology(tmp_path / "demo.yaml", SERVERS, 8080)
    load_topology(path)
    topology = yaml.safe_load(path.read_text())
    assert topology["servers"]["big"] == {"url": "http://127.0.0.1:2"}
    assert topology["routes"]["demo"]["target"] == "big"
    assert topology["routes"]["demo-plain"]["target"] == "plain"


def test_topology_of_a_demo_is_written_afresh(tmp_path):
    path = write_topology(tmp_path / "demo.yaml", SERVERS, 8080)
    write_topology(path, SERVERS, 9090)
    assert yaml.safe_load(path.read_text())["listen"]["port"] == 9090


def test_topology_of_somebody_is_left_alone(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("version: 1\n")
    with pytest.raises(SetupError, match="the file exists and no demo wrote it"):
        write_topology(path, SERVERS, 8080)
    assert path.read_text() == "version: 1\n"


def test_topology_that_cannot_be_written(tmp_path):
    with pytest.raises(SetupError, match="No such file or directory"):
        write_topology(tmp_path / "nowhere" / "demo.yaml", SERVERS, 8080)


def test_port_asked_for_is_in_use():
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(SetupError, match=f"^--port {port}: it is in use"):
            run._router_port(port)


def test_usual_port_in_use_gives_way_to_a_free_one(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as other:
        monkeypatch.setattr(run, "_USUAL_PORT", other.getsockname()[1])
        assert run._router_port(None) != other.getsockname()[1]


@pytest.mark.parametrize("arguments", [["--factor", "0"], ["--port", "70000"], ["--nonsense"]])
def test_command_line_that_is_wrong(arguments):
    result = CliRunner().invoke(main, ["demo", *arguments])
    assert result.exit_code == 2
    assert arguments[0] in result.output
