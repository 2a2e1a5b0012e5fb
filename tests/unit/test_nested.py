"""Draft strategies named within the options of a plugin: found, checked, made and put in their place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import config_plugins
import jsonschema
import pytest

from specrouter.binding import bind, plugin_uses
from specrouter.config import ServerConfig, topology_schema
from specrouter.config.nested import nested_uses, replaced, value_at
from specrouter.guarded import GuardedStrategy
from specrouter.upstream import LlamaServer

STRATEGY = {"format": "draft_strategy"}
LIST = {"type": "array", "items": STRATEGY}


@pytest.mark.parametrize(
    ("schema", "options", "paths"),
    [
        ({"properties": {"one": STRATEGY}}, {"one": "none"}, [("one",)]),
        ({"properties": {"one": STRATEGY}}, {"other": "none"}, []),
        ({"properties": {"all": LIST}}, {"all": ["none", {"use": "none"}]}, [("all", 0), ("all", 1)]),
        ({"properties": {"all": LIST}}, {"all": []}, []),
        ({"additionalProperties": STRATEGY}, {"a": "none", "b": "none"}, [("a",), ("b",)]),
        ({"properties": {"one": {"anyOf": [{"type": "null"}, STRATEGY]}}}, {"one": "none"}, [("one",)]),
        ({"properties": {"one": {"oneOf": [STRATEGY, {"type": "null"}]}}}, {"one": {"use": "none"}}, [("one",)]),
        ({"properties": {"one": {"allOf": [STRATEGY, STRATEGY]}}}, {"one": "none"}, [("one",)]),
        ({"$defs": {"s": STRATEGY}, "properties": {"one": {"$ref": "#/$defs/s"}}}, {"one": "none"}, [("one",)]),
        ({"properties": {"in": {"properties": {"one": STRATEGY}}}}, {"in": {"one": "none"}}, [("in", "one")]),
        # What stands in the options of a nested plugin is that plugin's business.
        ({"properties": {"one": STRATEGY}}, {"one": {"use": "x", "options": {"one": "none"}}}, [("one",)]),
        ({"properties": {"one": {"format": "server"}}}, {"one": "none"}, []),
    ],
)
def test_where_strategies_are_named(schema: dict[str, Any], options: dict[str, Any], paths: list[Any]) -> None:
    assert sorted(nested_uses(schema, options), key=str) == paths
    assert all(value_at(options, path) is not None for path in paths)


def test_values_are_replaced_in_a_copy() -> None:
    options = {"all": ["none", {"use": "none"}], "depth": 3}
    assert replaced(options, {("all", 1): 7}) == {"all": ["none", 7], "depth": 3}
    assert options["all"][1] == {"use": "none"}


def topology(tmp_path: Path, draft: Any) -> Path:
    file = tmp_path / "topology.yaml"
    servers = {"big": {"url": "http://127.0.0.1:1"}, "small": {"url": "http://127.0.0.1:2"}}
    routes = {"chat": {"target": "big", "draft": draft, "tokenizer_checks": []}}
    file.write_text(json.dumps({"version": 1, "servers": servers, "routes": routes}), encoding="utf-8")
    return file


def first_of(*strategies: Any) -> dict[str, Any]:
    return {"use": "first_of", "options": {"strategies": list(strategies)}}


REMOTE = {"use": "remote", "options": {"server": "small"}}


def test_a_plugin_is_given_the_strategies_themselves(tmp_path: Path) -> None:
    loaded = config_plugins.load(topology(tmp_path, first_of("none", first_of(REMOTE))), {})
    uses = plugin_uses(loaded.topology.routes["chat"], loaded.registry)
    servers = {name: LlamaServer(ServerConfig(name, "http://127.0.0.1:1")) for name in ("big", "small")}
    made = bind(uses["draft"][0], servers).plugin
    outer, inner = made.options["strategies"]
    assert isinstance(outer, GuardedStrategy)
    assert isinstance(inner, GuardedStrategy)
    # What is guarded is private on purpose, and looked at here only.
    composed = inner._bound.plugin
    (remote,) = composed.options["strategies"]
    assert (type(composed).name, remote._bound.plugin.options) == ("first_of", {"server": "small"})


def test_a_change_within_is_a_change(tmp_path: Path) -> None:
    """Or a reloaded topology would keep plugins that are made from others."""
    uses = []
    for draft in (first_of("none", REMOTE), first_of("none", REMOTE), first_of("none")):
        loaded = config_plugins.load(topology(tmp_path, draft), {})
        uses.append(plugin_uses(loaded.topology.routes["chat"], loaded.registry)["draft"])
    one, same, other = uses
    assert [use.strategies.keys() for use in one] == [{("strategies", 0), ("strategies", 1)}]
    assert other[0].strategies.keys() == {("strategies", 0)}
    assert [use.options for use in one] == [use.options for use in same] != [use.options for use in other]


def test_servers_within_are_used(tmp_path: Path) -> None:
    assert config_plugins.load(topology(tmp_path, first_of("none", REMOTE)), {}).warnings == ()


@pytest.mark.parametrize(
    ("draft", "is_fine"),
    [
        (first_of("none", REMOTE), True),
        (first_of(first_of(REMOTE)), True),
        (first_of("remote"), False),
        (first_of({"use": "remot"}), False),
        (first_of({"use": "remote", "options": {}}), False),
        (first_of(first_of({"use": "remote", "options": {"serve": "small"}})), False),
    ],
)
def test_editors_look_into_them(tmp_path: Path, draft: Any, is_fine: bool) -> None:
    schema = topology_schema(config_plugins.load_registry())
    data = json.loads(topology(tmp_path, draft).read_text(encoding="utf-8"))
    assert jsonschema.Draft202012Validator(schema).is_valid(data) is is_fine
