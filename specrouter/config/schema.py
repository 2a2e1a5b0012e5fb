"""The JSON schema of a topology: the one it is checked with, and the one editors are given.

Keywords beyond JSON schema: `format: server` names a server of the topology that is no target of the route, `format:
answering_server` any server, `format: draft_strategy` a draft strategy with its options, `writeOnly` marks a secret
that no message may show, `patternErrorMessage` says a pattern in words (editors show it, too).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from specrouter.plugins import PluginInfo

from .nested import DRAFT_STRATEGY
from .sections import END, Schema, listen_schema, mapping, named, route_schema, server_schema

PLUGIN_KEYS = {
    "draft": "draft",
    "verify": "verify",
    "accept": "accept",
    "tokenizer_checks": "tokenizer_check",
}
"""The keys of a route that name plugins → the kind of plugin."""

ANSWERING_SERVER = "answering_server"
"""The `format` of a value that names the server which answers and drafts by itself."""

AUTO_KINDS = ("verify", "accept")
"""The kinds for which `use: auto` leaves the choice to the router."""


def core_schema() -> Schema:
    """The schema of everything but the options of plugins."""
    uses: Schema = {key: use_schema() for key in PLUGIN_KEYS if key != "tokenizer_checks"}
    uses["tokenizer_checks"] = {"type": "array", "items": use_schema()}
    return _topology(uses)


def topology_schema(plugins: Iterable[PluginInfo]) -> Schema:
    """The whole schema, with the options of the given plugins, for editors and `specrouter schema`."""
    by_kind: dict[str, list[PluginInfo]] = {kind: [] for kind in PLUGIN_KEYS.values()}
    for info in plugins:
        by_kind[info.kind].append(info)
    uses: Schema = {key: {"$ref": f"#/$defs/{kind}"} for key, kind in PLUGIN_KEYS.items()}
    uses["tokenizer_checks"] = {"type": "array", "items": uses["tokenizer_checks"]}
    schema = _topology(uses)
    schema["$defs"] = {kind: _editor_use(kind, infos) for kind, infos in by_kind.items()}
    return schema


def _topology(uses: Schema) -> Schema:
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "specrouter topology",
        **mapping(
            {
                "version": {"type": "integer", "const": 1, "description": "The version of this format: 1."},
                "listen": listen_schema(),
                "servers": named(server_schema(), "The llama-servers, by names of your choice."),
                "routes": named(route_schema(uses), "What clients see as models, by the model's name."),
                "plugins": {
                    "type": "array",
                    "items": {
                        "type": "string",
                        "pattern": rf"\.py{END}",
                        "patternErrorMessage": "must be the path of a .py file",
                    },
                    "uniqueItems": True,
                    "default": [],
                    "description": "Plugin files (.py), relative to this file; installed ones need no entry.",
                },
            },
            required=["version", "servers", "routes"],
        ),
    }


def use_schema() -> Schema:
    """The shape in which a plugin is named."""
    properties: Schema = {
        "use": {"type": "string", "minLength": 1, "description": "The plugin's name."},
        "options": {"type": "object", "description": "What the plugin takes."},
    }
    return {**mapping(properties, required=["use"]), "type": ["object", "string"]}


def _editor_use(kind: str, infos: list[PluginInfo]) -> Schema:
    known = sorted(info.name for info in infos) + ["auto"] * (kind in AUTO_KINDS)
    schema = use_schema()
    bare = {info.name: info.summary for info in infos if not info.cls.options_schema.get("required")}
    schema["properties"]["use"]["enum"] = known
    schema["if"] = {"type": "string"}
    schema["then"] = {"enum": [name for name in known if name in bare or name == "auto"]}
    schema["allOf"] = [_options_of(info) for info in sorted(infos, key=lambda info: info.name)]
    return schema


def _options_of(info: PluginInfo) -> Schema:
    options: Schema = {"description": info.summary, **info.cls.options_schema}
    if "$ref" in json.dumps(options):
        # References within a plugin's schema are relative to that schema.
        options = {"$id": f"urn:specrouter:{info.kind}:{info.name}", **options}
    else:
        options = _with_nested_uses(options)
    then: Schema = {"properties": {"options": options}}
    if options.get("required"):
        then["required"] = ["options"]
    return {
        "if": {"type": "object", "properties": {"use": {"const": info.name}}, "required": ["use"]},
        "then": then,
    }


def _with_nested_uses(schema: Any) -> Any:
    """A plugin's schema in which values that name draft strategies are described as `draft` is."""
    if isinstance(schema, Mapping):
        known = {key: _with_nested_uses(value) for key, value in schema.items()}
        return {**known, "$ref": "#/$defs/draft"} if schema.get("format") == DRAFT_STRATEGY else known
    return [_with_nested_uses(item) for item in schema] if isinstance(schema, list) else schema


def server_options(schema: Mapping[str, Any], options: Mapping[str, Any]) -> list[str]:
    """The servers that a plugin's options name at the top level, for people."""
    keys = _keys_of(schema, "server", ANSWERING_SERVER)
    return [options[key] for key in keys if isinstance(options.get(key), str)]


def answers_itself(schema: Mapping[str, Any]) -> bool:
    """Whether a strategy with such options has a server that answers and drafts by itself."""
    return bool(_keys_of(schema, ANSWERING_SERVER))


def _keys_of(schema: Mapping[str, Any], *formats: str) -> list[str]:
    properties = schema.get("properties", {})
    return [key for key, about in properties.items() if isinstance(about, Mapping) and about.get("format") in formats]
