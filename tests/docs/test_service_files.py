"""The units, the image and the compose file agree with the program, the topologies and each other."""

from __future__ import annotations

import configparser
import json
import re
import shlex
from typing import Any
from urllib.parse import urlsplit

import pages
import pytest
import yaml

from specrouter.cli import main

PAGE = pages.ROOT / "docs" / "how-to" / "run-as-a-service.md"
UNITS = list(pages.blocks(PAGE, "ini"))
CONTAINER = yaml.safe_load((pages.ROOT / "config" / "container.yaml").read_text(encoding="utf-8"))
DOCKERFILE = (pages.ROOT / "Dockerfile").read_text(encoding="utf-8")


def test_there_are_units() -> None:
    assert len(UNITS) == 2


@pytest.mark.parametrize("unit", UNITS, ids=str)
def test_units_run_commands_that_exist(unit: pages.Block) -> None:
    service = parsed(unit)["Service"]
    for key, name in (("ExecStart", "serve"), ("ExecReload", "reload")):
        program, command, topology = shlex.split(service[key])
        assert program.endswith("/specrouter")
        assert command == name
        assert command in main.commands
        assert topology.endswith("/topology.yaml")


@pytest.mark.parametrize("unit", UNITS, ids=str)
def test_units_wait_for_router_and_servers(unit: pages.Block) -> None:
    service = parsed(unit)["Service"]
    topology = yaml.safe_load((pages.ROOT / "config" / "service.yaml").read_text(encoding="utf-8"))
    assert service["KillMode"] == "mixed"
    assert int(service["TimeoutStopSec"]) > topology["listen"]["shutdown_wait"] + 10


def test_compose_has_the_servers_of_the_topology() -> None:
    services = compose()
    hosts = {urlsplit(server["url"]).hostname for server in CONTAINER["servers"].values()}
    assert hosts == services.keys() - {"router"}
    for server in CONTAINER["servers"].values():
        url = urlsplit(server["url"])
        assert f"--host 0.0.0.0 --port {url.port}" in services[str(url.hostname)]["command"]
    assert "${SPECROUTER_API_KEY}" in CONTAINER["listen"]["api_keys"]
    assert services["router"]["ports"] == [f"{CONTAINER['listen']['port']}:{CONTAINER['listen']['port']}"]


def test_the_image_has_all_that_is_copied() -> None:
    ignored = (pages.ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    copied = [name for line in re.findall(r"^COPY (.+) \S+$", DOCKERFILE, re.MULTILINE) for name in line.split()]
    assert copied
    for name in copied:
        assert (pages.ROOT / name).exists()
        assert f"!{name}" in ignored


def test_the_image_asks_the_port_that_it_serves() -> None:
    command = json.loads(re.findall(r"^CMD (\[.+\])$", DOCKERFILE, re.MULTILINE)[0])
    assert command[:1] == ["serve"]
    port = command[command.index("--port") + 1]
    assert port == str(CONTAINER["listen"]["port"])
    check = json.loads(DOCKERFILE.partition("HEALTHCHECK")[2].partition("CMD ")[2].replace("\\\n", ""))
    compile(check[-1], "HEALTHCHECK", "exec")
    assert f"'127.0.0.1', {port}" in check[-1]


def parsed(unit: pages.Block) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    parser.optionxform = str
    parser.read_string(unit.text)
    return parser


def compose() -> dict[str, Any]:
    (block,) = [block for block in pages.blocks(PAGE, "yaml") if block.text.startswith("services:")]
    services: dict[str, Any] = yaml.safe_load(block.text)["services"]
    return services
