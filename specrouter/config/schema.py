"""The JSON schema of a topology: the one it is checked with, and the one editors are given.

Keywords beyond JSON schema: `format: server` names a server of the topology, `writeOnly` marks a secret that
no message may show, `patternErrorMessage` says a pattern in words (editors show it, too).
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from typing import Any

from specrouter.plugins import PluginInfo

from .model import SIZE_PATTERN, Listen, PluginUse, RouteConfig, ServerConfig

Schema = dict[str, Any]

# Python lets `$` match before a final newline, JSON schema does not: the look-ahead makes them agree.
_END = r"$(?!\n)"
NAME_PATTERN = rf"^[A-Za-z0-9._/:-]+{_END}"
NAME_WORDS = "must have only letters, digits and . _ / : -"

PLUGIN_KEYS = {
    "draft": "draft",
    "verify": "verify",
    "accept": "accept",
    "tokenizer_checks": "tokenizer_check",
}
"""The keys of a route that name plugins → the kind of plugin."""

AUTO_KINDS = ("verify", "accept")
"""The kinds for which `use: auto` leaves the choice to the router."""


def core_schema() -> Schema:
    """The schema of everything but the options of plugins."""
    uses: Schema = {key: _plugin_use() for key in PLUGIN_KEYS if key != "tokenizer_checks"}
    uses["tokenizer_checks"] = {"type": "array", "items": _plugin_use()}
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
        **_mapping(
            {
                "version": {"type": "integer", "const": 1, "description": "The version of this format: 1."},
                "listen": _with_defaults(_listen(), Listen),
                "servers": _named(
                    _with_defaults(_server(), ServerConfig), "The llama-servers, by names of your choice."
                ),
                "routes": _named(
                    _with_defaults(_route(uses), RouteConfig),
                    "What clients see as models, by the model's name.",
                ),
                "plugins": {
                    "type": "array",
                    "items": {
                        "type": "string",
                        "pattern": rf"\.py{_END}",
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


def _listen() -> Schema:
    return _mapping(
        {
            "host": {"type": "string", "minLength": 1, "description": "The address to listen on."},
            "port": {
                "type": "integer",
                "minimum": 0,
                "maximum": 65535,
                "description": "The port to listen on; 0 takes a free one.",
            },
            "api_keys": {
                "type": "array",
                "writeOnly": True,
                "items": _secret("A key that clients may use."),
                "description": "The keys that clients may use, as texts.",
            },
            "cors_origins": {
                "type": "array",
                "items": {
                    "type": "string",
                    "pattern": rf"^(\*|https?://[^/\s?#]+){_END}",
                    "patternErrorMessage": "must be an origin like https://chat.example.org (no path), or *",
                },
                "description": "The origins of web pages whose scripts may call the router.",
            },
            "max_body": {
                "type": ["integer", "string"],
                "minimum": 1024,
                "pattern": SIZE_PATTERN,
                "patternErrorMessage": "must be a number of bytes, or a size like 64MiB (KiB, MiB, GiB)",
                "description": "The largest request body, in bytes or like 64MiB.",
            },
            "allow_anonymous": {
                "type": "boolean",
                "description": "Listen beyond this machine although there are no api_keys.",
            },
        },
        description="Where the router listens and whom it answers.",
    )


def _server() -> Schema:
    return _mapping(
        {
            "url": {
                "type": "string",
                "minLength": 1,
                "description": "The server's root, like http://laptop:8080.",
            },
            "api_key": _secret("The key that this server asks for."),
            "model": {
                "type": "string",
                "minLength": 1,
                "description": "The model's name sent to this server; without it, what it calls itself.",
            },
            "connect_timeout": {
                "type": "number",
                "exclusiveMinimum": 0,
                "maximum": 600,
                "description": "Seconds to wait for a connection.",
            },
            "load_wait": {
                "type": "number",
                "minimum": 0,
                "maximum": 3600,
                "description": "Seconds that a request waits while the server loads its model.",
            },
        },
        required=["url"],
    )


def _route(uses: Schema) -> Schema:
    name = {"type": "string", "pattern": NAME_PATTERN, "patternErrorMessage": NAME_WORDS}
    words = {
        "draft": "Where draft tokens come from.",
        "verify": "How draft tokens are shown to the target.",
        "accept": "Which draft tokens are accepted, where the target does not decide that by itself.",
        "tokenizer_checks": "How to find out whether drafter and target share a tokenizer.",
    }
    return _mapping(
        {
            "aliases": {"type": "array", "items": name, "description": "Other names of this route."},
            "target": {
                "type": ["string", "array"],
                "items": {"type": "string"},
                "minItems": 1,
                "uniqueItems": True,
                "description": "The server that answers, or a list: the first healthy one, then the next.",
            },
            **{key: {**use, "description": words[key]} for key, use in uses.items()},
            "on_tokenizer_mismatch": {
                "type": "string",
                "enum": ["plain", "refuse"],
                "description": "When tokenizers differ: answer without drafting, or refuse requests.",
            },
        },
        required=["target"],
    )


def _mapping(properties: Schema, *, required: Iterable[str] = (), description: str | None = None) -> Schema:
    schema: Schema = {"type": "object"}
    if description is not None:
        schema["description"] = description
    return {**schema, "properties": properties, "required": list(required), "additionalProperties": False}


def _named(items: Schema, description: str) -> Schema:
    return {
        "type": "object",
        "description": description,
        "minProperties": 1,
        "patternProperties": {NAME_PATTERN: items},
        "additionalProperties": False,
        "patternErrorMessage": NAME_WORDS,
    }


def _secret(description: str) -> Schema:
    return {
        "type": "string",
        "writeOnly": True,
        "minLength": 1,
        "pattern": rf"^[!-~]+{_END}",
        "patternErrorMessage": "must be printable ASCII without spaces, as it is sent in a header",
        "description": description,
    }


def _plugin_use() -> Schema:
    properties: Schema = {
        "use": {"type": "string", "minLength": 1, "description": "The plugin's name."},
        "options": {"type": "object", "description": "What the plugin takes."},
    }
    return {**_mapping(properties, required=["use"]), "type": ["object", "string"]}


def _editor_use(kind: str, infos: list[PluginInfo]) -> Schema:
    known = sorted(info.name for info in infos) + ["auto"] * (kind in AUTO_KINDS)
    schema = _plugin_use()
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
    then: Schema = {"properties": {"options": options}}
    if options.get("required"):
        then["required"] = ["options"]
    return {
        "if": {"type": "object", "properties": {"use": {"const": info.name}}, "required": ["use"]},
        "then": then,
    }


def _with_defaults(schema: Schema, cls: type[Any]) -> Schema:
    """Add the defaults of `cls` (a dataclass of the model) to the properties of the same name."""
    for field in dataclasses.fields(cls):
        if field.name in schema["properties"] and field.default is not dataclasses.MISSING:
            default = _as_yaml(field.default)
            if default is not None:
                schema["properties"][field.name]["default"] = default
    return schema


def _as_yaml(value: object) -> Any:
    if isinstance(value, PluginUse):
        return {"use": value.name}
    if isinstance(value, tuple):
        return [_as_yaml(item) for item in value]
    return value


def server_options(schema: Mapping[str, Any], options: Mapping[str, Any]) -> list[str]:
    """The servers that a plugin's options name at the top level, for people."""
    properties = schema.get("properties", {})
    keys = [key for key, about in properties.items() if isinstance(about, Mapping) and about.get("format") == "server"]
    return [options[key] for key in keys if isinstance(options.get(key), str)]
