"""The JSON schemas of the sections of a topology: `listen`, a server, a route."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from .model import (
    DURATION_PATTERN,
    SIZE_PATTERN,
    Limits,
    Listen,
    PluginUse,
    Restart,
    RouteConfig,
    RunConfig,
    ServerConfig,
)

Schema = dict[str, Any]

# Python lets `$` match before a final newline, JSON schema does not: the look-ahead makes them agree.
END = r"$(?!\n)"
NAME_PATTERN = rf"^[A-Za-z0-9._/:-]+{END}"
NAME_WORDS = "must have only letters, digits and . _ / : -"
KEY_PATTERN = rf"^[!-~]+{END}"
_URL = "The server's root, like http://laptop:8080."
KEY_WORDS = "must be printable ASCII without spaces, as it is sent in a header"


def listen_schema() -> Schema:
    """Where the router listens and whom it answers."""
    schema = mapping(
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
                "items": _api_key(),
                "description": "The keys that clients may use: texts, or mappings with a name.",
            },
            "allowed_hosts": {
                "type": "array",
                "items": {
                    "type": "string",
                    "pattern": rf"^[A-Za-z0-9._-]+{END}",
                    "patternErrorMessage": "must be a host name like router.example.org (no port, no path)",
                },
                "description": "Public names by which clients may call a router that has no api_keys.",
            },
            "cors_origins": {
                "type": "array",
                "items": {
                    "type": "string",
                    "pattern": rf"^(\*|https?://[^/\s?#]+){END}",
                    "patternErrorMessage": "must be an origin like https://chat.example.org (no path), or *",
                },
                "description": "The origins of web pages whose scripts may call the router.",
            },
            "max_body": {
                **_size(),
                "minimum": 1024,
                "description": "The largest request body, in bytes or like 64MiB.",
            },
            "max_headers": {
                **_size(),
                "minimum": 4096,
                "maximum": 1024**2,
                "description": "The largest head of a request (address and headers), in bytes or like 64KiB.",
            },
            "client_timeout": {
                "type": "number",
                "exclusiveMinimum": 0,
                "maximum": 3600,
                "description": "Seconds that a client may take to send more of a request or take more of an answer.",
            },
            "shutdown_wait": {
                "type": "number",
                "minimum": 0,
                "maximum": 3600,
                "description": "Seconds that running answers may take when the router is stopped.",
            },
            "allow_anonymous": {
                "type": "boolean",
                "description": "Listen beyond this machine although there are no api_keys.",
            },
        },
        description="Where the router listens and whom it answers.",
    )
    return _with_defaults(schema, Listen)


def _api_key() -> Schema:
    properties: Schema = {
        "name": {
            "type": "string",
            "pattern": NAME_PATTERN,
            "patternErrorMessage": NAME_WORDS,
            "description": "What the key is called in logs.",
        },
        "key": _secret("The key."),
        "key_file": _key_file("A file that holds the key."),
        "routes": {
            "type": "array",
            "items": {"type": "string"},
            "minItems": 1,
            "uniqueItems": True,
            "description": "The routes that the key opens; without it, all.",
        },
        "limits": _limits("How many requests with this key are answered at once."),
    }
    return {
        **_secret("A key that clients may use: a text, or a mapping that gives it a name."),
        **mapping(properties, required=["name"]),
        "type": ["string", "object"],
        "if": {"type": "object"},
        "then": {"oneOf": [{"required": ["key"]}, {"required": ["key_file"]}]},
    }


def _limits(description: str) -> Schema:
    properties: Schema = {
        "concurrent": {
            "type": "integer",
            "minimum": 1,
            "description": "How many requests are answered at once; without it, any number.",
        },
        "queued": {
            "type": "integer",
            "minimum": 0,
            "description": "How many more may wait for that; any further one is refused at once.",
        },
        "wait": {
            "type": "number",
            "minimum": 0,
            "maximum": 3600,
            "description": "Seconds that a request waits before it is refused.",
        },
    }
    return _with_defaults(mapping(properties, description=description), Limits)


def server_schema() -> Schema:
    """A llama-server."""
    schema = mapping(
        {
            "url": {
                "type": "string",
                "minLength": 1,
                "description": _URL,
            },
            "api_key": _secret("The key that this server asks for."),
            "api_key_file": _key_file("A file that holds the key that this server asks for."),
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
            "first_byte_timeout": {
                "type": "number",
                "exclusiveMinimum": 0,
                "maximum": 86400,
                "description": "Seconds until an answer must have begun; without it, any time.",
            },
            "idle_timeout": {
                "type": "number",
                "exclusiveMinimum": 0,
                "maximum": 86400,
                "description": "Seconds that an answer may pause once it has begun; without it, any time.",
            },
            "run": run_schema(),
        },
    )
    return {
        **_with_defaults(schema, ServerConfig),
        "not": {"required": ["api_key", "api_key_file"]},
        "if": {"not": {"required": ["run"]}},
        "then": {"properties": {"url": {"description": _URL}}, "required": ["url"]},
    }


def run_schema() -> Schema:
    """How the router runs a server itself."""
    restart = mapping(
        {
            "pause": _duration("How long to wait before it is started again, the first time.", maximum=3600),
            "longest_pause": _duration("How long to wait at most, when it fails again and again.", maximum=86400),
        },
        description="When to start the server again after it has failed.",
    )
    schema = mapping(
        {
            "command": _command("The program and its arguments, as a list; ${port} is the port of the server's url."),
            "env": {
                "type": "object",
                "patternProperties": {rf"^[A-Za-z_][A-Za-z0-9_]*{END}": {**_argument(), "writeOnly": True}},
                "additionalProperties": False,
                "patternErrorMessage": "must be the name of a variable",
                "description": "Variables for the server's environment, besides the router's own.",
            },
            "start": {
                "type": "string",
                "enum": ["on_demand", "at_once"],
                "description": "Start the server when a request needs it, or with the router.",
            },
            "ready_timeout": _duration("How long the server may take to load its model.", maximum=86400),
            "idle_stop": _duration("Stop the server when nobody has used it for so long.", maximum=30 * 86400),
            "restart": _with_defaults(restart, Restart),
            "workers": {
                "type": "array",
                "items": {"type": "string", "minLength": 1},
                "minItems": 1,
                "uniqueItems": True,
                "description": "The RPC workers that the command uses (host:port).",
            },
            "without_workers": mapping(
                {"command": _command("The program and its arguments, as a list.")},
                required=["command"],
                description="What to run instead while any of the workers is away.",
            ),
        },
        required=["command"],
        description="Lets the router run this server itself, on its own machine.",
    )
    return _with_defaults(schema, RunConfig)


def _command(description: str) -> Schema:
    return {"type": "array", "items": _argument(), "minItems": 1, "description": description}


def _argument() -> Schema:
    # A checked topology has texts here, whatever they look like.
    return {
        "type": ["string", "number", "boolean"],
        "pattern": rf"^[^\x00]*{END}",
        "patternErrorMessage": "must not have the character U+0000",
    }


def _duration(description: str, *, maximum: int) -> Schema:
    return {
        "type": ["number", "string"],
        "exclusiveMinimum": 0,
        "maximum": maximum,
        "pattern": DURATION_PATTERN,
        "patternErrorMessage": "must be a number of seconds, or a time like 30m (s, m, h, d)",
        "description": description,
    }


def route_schema(uses: Schema) -> Schema:
    """A route; `uses` are the schemas of the keys that name plugins."""
    name = {"type": "string", "pattern": NAME_PATTERN, "patternErrorMessage": NAME_WORDS}
    words = {
        "draft": "Where draft tokens come from.",
        "verify": "How draft tokens are shown to the target.",
        "accept": "Which draft tokens are accepted, where the target does not decide that by itself.",
        "tokenizer_checks": "How to find out whether drafter and target share a tokenizer.",
    }
    schema = mapping(
        {
            "aliases": {"type": "array", "items": name, "description": "Other names of this route."},
            "target": {
                "type": ["string", "array"],
                "items": {"type": "string"},
                "minItems": 1,
                "uniqueItems": True,
                "description": "The server that answers, or a list of them: `balance` says which one.",
            },
            "balance": {
                "type": "string",
                "enum": ["in_order", "least_busy"],
                "description": "Which target answers: the first healthy one, or the least busy one.",
            },
            "limits": _limits("How many requests of this route are answered at once."),
            **{key: {**use, "description": words[key]} for key, use in uses.items()},
            "on_tokenizer_mismatch": {
                "type": "string",
                "enum": ["plain", "text", "refuse"],
                "description": "When tokenizers differ: answer without drafts, let drafts cross as text, or refuse.",
            },
        },
        required=["target"],
    )
    return _with_defaults(schema, RouteConfig)


def mapping(properties: Schema, *, required: Iterable[str] = (), description: str | None = None) -> Schema:
    """A mapping with these keys and no others."""
    schema: Schema = {"type": "object"}
    if description is not None:
        schema["description"] = description
    return {**schema, "properties": properties, "required": list(required), "additionalProperties": False}


def named(items: Schema, description: str) -> Schema:
    """A mapping from names to things of one kind."""
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
        "pattern": KEY_PATTERN,
        "patternErrorMessage": KEY_WORDS,
        "description": description,
    }


def _key_file(description: str) -> Schema:
    return {"type": "string", "minLength": 1, "description": description}


def _size() -> Schema:
    return {
        "type": ["integer", "string"],
        "pattern": SIZE_PATTERN,
        "patternErrorMessage": "must be a number of bytes, or a size like 64MiB (KiB, MiB, GiB)",
    }


def _with_defaults(schema: Schema, cls: type[Any]) -> Schema:
    """Add the defaults of `cls` (a dataclass of the model) to the properties of the same name."""
    for field in dataclasses.fields(cls):
        # A mapping of its own has its defaults with its own keys.
        has_keys = dataclasses.is_dataclass(field.default) and not isinstance(field.default, PluginUse)
        if field.name in schema["properties"] and field.default is not dataclasses.MISSING and not has_keys:
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
