"""Topologies that load: what they become, where values come from, what is only a warning."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import config_plugins
import jsonschema
import pytest
import yaml
from config_plugins import load
from hypothesis import given, settings
from hypothesis import strategies as st

from specrouter.config import PluginUse, topology_schema
from specrouter.config.model import ApiKey, Limits, Listen, RouteConfig, ServerConfig, size_in_bytes
from specrouter.config.source import read_document
from specrouter.errors import TopologyError
from specrouter.plugins import load_plugins

CONFIG = Path(__file__).resolve().parent.parent.parent / "config"
EXAMPLE = (CONFIG / "example.yaml").read_text(encoding="utf-8")
MINIMAL = (CONFIG / "minimal.yaml").read_text(encoding="utf-8")


@pytest.fixture
def topology(tmp_path: Path):
    """Load the minimal topology with more text after it."""

    def load_text(more: str = "", environ: dict[str, str] | None = None, text: str = MINIMAL):
        path = tmp_path / "topology.yaml"
        path.write_text(text + more, encoding="utf-8")
        return load(path, environ or {})

    return load_text


def problems(path: Path) -> tuple[str, ...]:
    """The problems of a topology, none where it loads."""
    try:
        load(path, {"A": "1"})
    except TopologyError as error:
        return error.problems
    return ()


def test_minimal_has_all_defaults(topology) -> None:
    loaded = topology()
    assert loaded.warnings == ()
    assert loaded.topology.listen == Listen()
    assert dict(loaded.topology.servers) == {"big": ServerConfig("big", "http://127.0.0.1:8081")}
    assert dict(loaded.topology.routes) == {"chat": RouteConfig("chat", ("big",))}
    assert loaded.topology.plugins == ()


def test_example_is_the_reference() -> None:
    loaded = load(CONFIG / "example.yaml", {})
    assert loaded.warnings == ()
    assert loaded.topology.listen == Listen()
    route = loaded.topology.routes["qwen-122b"]
    assert route == RouteConfig(
        "qwen-122b", ("big",), aliases=("default",), draft=PluginUse("remote", {"server": "laptop"})
    )
    assert loaded.topology.servers["big"] == ServerConfig("big", "http://127.0.0.1:8081")


def documented() -> dict[str, list[str]]:
    """Each key of the reference → the comments above it, in their order, where it has a place of its own."""
    found: dict[str, list[str]] = {}
    comment: list[str] = []
    for line in EXAMPLE.splitlines():
        text = line.strip().lstrip("# ")
        key = re.match(r"(?:- )?([a-z_0-9]+):( |$)", text)
        is_comment = line.strip().startswith("#") and text
        if is_comment and not (key and comment and re.match("Default|Required", comment[-1])):
            comment.append(text)
        elif key and comment:
            found.setdefault(key[1], []).append(" ".join(comment))
            comment = []
        else:
            comment = []
    return found


def test_example_documents_every_key_with_its_default() -> None:
    comments = documented()
    schema = topology_schema([])
    listen = schema["properties"]["listen"]
    server, route = (
        next(iter(schema["properties"][key]["patternProperties"].values())) for key in ("servers", "routes")
    )
    api_key, limits = listen["properties"]["api_keys"]["items"], route["properties"]["limits"]
    assert api_key["properties"]["limits"]["properties"] == limits["properties"]
    # Where a name has two places, in the order of the file.
    run = server["properties"]["run"]
    runs = (run, run["properties"]["restart"], run["properties"]["without_workers"])
    for part in (listen, api_key, server, *runs, route, limits, schema):
        for key, about in part["properties"].items():
            text = comments[key].pop(0)
            if key in part["required"]:
                assert "Required." in text, key
            elif "default" in about:
                said = re.search(r"Default: (.+?)(?:\. |\.?$)", text)
                assert said is not None, key
                value = yaml.safe_load(said[1])
                if key in ("max_body", "max_headers"):
                    value = size_in_bytes(value)
                assert value == about["default"], key
            else:
                assert "Default: " in text, key
    assert [key for key, left in comments.items() if left] == []


def test_schema_in_the_repository_is_fresh() -> None:
    bundled = [info for info in load_plugins() if info.distribution == "specrouter"]
    stored = json.loads((CONFIG / "specrouter.schema.json").read_text(encoding="utf-8"))
    assert stored == topology_schema(bundled), "write it anew: specrouter schema > config/specrouter.schema.json"


def test_editor_schema_accepts_and_refuses_what_the_check_does() -> None:
    schema = topology_schema(config_plugins.load_registry())
    validator = jsonschema.Draft202012Validator(schema)
    validator.check_schema(schema)
    assert validator.is_valid(yaml.safe_load(EXAMPLE))
    data = yaml.safe_load(MINIMAL)
    for draft, is_right in (
        ("none", True),
        ({"use": "none"}, True),
        ("remote", False),
        ({"use": "remote"}, False),
        ({"use": "remote", "options": {"server": "big"}}, True),
        ({"use": "remote", "options": {"server": "big", "depth": 0}}, False),
        ("auto", False),
        ({"use": "stranger"}, False),
    ):
        data["routes"]["chat"]["draft"] = draft
        assert validator.is_valid(data) == is_right, draft
    data = yaml.safe_load(MINIMAL)
    for key, is_right in (
        ("plain", True),
        ({"name": "team", "key": "plain"}, True),
        ({"name": "team", "key_file": "team.key", "limits": {"concurrent": 1}}, True),
        ({"name": "team"}, False),
        ({"key": "plain"}, False),
        ({"name": "team", "key": "plain", "key_file": "team.key"}, False),
    ):
        data["listen"] = {"api_keys": [key]}
        assert validator.is_valid(data) == is_right, key


def test_references_within_a_plugin_schema_stay_within_it() -> None:
    registry = config_plugins.load_registry()
    info = registry.find("draft", "none")
    assert info is not None
    options = {
        "type": "object",
        "properties": {"size": {"$ref": "#/$defs/size"}},
        "$defs": {"size": {"type": "integer"}},
    }
    cls = type("Sized", (info.cls,), {"name": "sized", "options_schema": options})
    schema = topology_schema([dataclasses.replace(info, name="sized", cls=cls)])
    data = yaml.safe_load(MINIMAL)
    data["routes"]["chat"]["draft"] = {"use": "sized", "options": {"size": 1}}
    validator = jsonschema.Draft202012Validator(schema)
    assert validator.is_valid(data)
    data["routes"]["chat"]["draft"]["options"]["size"] = "x"
    assert not validator.is_valid(data)


def test_resolve_prefers_names(topology) -> None:
    loaded = topology("  code: {target: big, aliases: [default, 'qwen/coder']}\n")
    assert loaded.topology.resolve("code") is loaded.topology.routes["code"]
    assert loaded.topology.resolve("qwen/coder") is loaded.topology.routes["code"]
    assert loaded.topology.resolve("gpt") is None


def test_all_forms(topology) -> None:
    loaded = topology(
        text="""version: 1
listen:
  max_body: 2KiB
  max_headers: 4KiB
  client_timeout: 0.5
  shutdown_wait: 0
  host: "::1"
  allowed_hosts: [router.example.org]
  api_keys:
    - plain
    - {name: team, key: hush, routes: [code, "70"], limits: {concurrent: 4, queued: 0, wait: 0.5}}
servers:
  big: {url: https://big/base/, connect_timeout: 0.5, model: "70", first_byte_timeout: 300, idle_timeout: 0.5}
  small: {url: http://small}
routes:
  70: &chat
    target: [big, small]
    balance: least_busy
    limits: {concurrent: 8}
    verify: inject
    tokenizer_checks: [vocabulary, {use: vocabulary, options: {}}]
  code:
    <<: *chat
    target: small
    draft: {use: remote, options: {server: big}}
""",
    ).topology
    assert loaded.listen == Listen(
        host="::1",
        api_keys=(ApiKey("key 1", "plain"), ApiKey("team", "hush", ("code", "70"), Limits(4, 0, 0.5))),
        allowed_hosts=("router.example.org",),
        max_body=2048,
        max_headers=4096,
        client_timeout=0.5,
        shutdown_wait=0,
    )
    assert loaded.servers["big"] == ServerConfig(
        "big", "https://big/base", None, "70", connect_timeout=0.5, first_byte_timeout=300, idle_timeout=0.5
    )
    assert loaded.routes["70"] == RouteConfig(
        "70",
        ("big", "small"),
        balance="least_busy",
        limits=Limits(8),
        verify=PluginUse("inject"),
        tokenizer_checks=(PluginUse("vocabulary"), PluginUse("vocabulary", {})),
    )
    assert loaded.routes["code"].targets == ("small",)
    assert loaded.routes["code"].verify == PluginUse("inject")


def test_variables(topology) -> None:
    text = """version: 1
listen:
  host: ${HOST:-0.0.0.0}
  port: ${PORT}
  allow_anonymous: ${OPEN:-true}
  api_keys: ["a$$b${KEY}c$5", '${KEY}']
servers:
  big: {url: "http://${NAME:-}big:${PORT}"}
routes:
  chat: {target: "${EMPTY:-big}"}
"""
    loaded = topology(text=text, environ={"PORT": "9000", "KEY": "k:[#'\"", "EMPTY": ""}).topology
    assert loaded.listen.host == "0.0.0.0"
    assert loaded.listen.port == 9000
    assert loaded.listen.allow_anonymous is True
    assert [key.secret for key in loaded.listen.api_keys] == ["a$bk:[#'\"c$5", "k:[#'\""]
    assert loaded.servers["big"].url == "http://big:9000"
    assert loaded.routes["chat"].targets == ("big",)


def test_secrets_are_not_in_a_repr(topology) -> None:
    loaded = topology(
        text="""version: 1
listen: {api_keys: [hush, {name: team, key: hush-hush}]}
servers: {big: {url: http://big, api_key: hush}, small: {url: http://small}}
routes: {chat: {target: big, draft: {use: remote, options: {server: small, token: hush}}}}
"""
    )
    assert loaded.topology.routes["chat"].draft.options["token"] == "hush"
    assert "hush" not in repr(loaded)


def test_unused_server_is_a_warning(topology) -> None:
    loaded = topology(text=MINIMAL.replace("routes:", "  spare: {url: http://spare}\nroutes:"))
    path = loaded.topology.path
    assert loaded.warnings == (f"{path}:5:3: servers.spare: no route uses this server",)


def test_limits_without_concurrent_are_a_warning(topology) -> None:
    text = MINIMAL.replace("big}", "big, limits: {wait: 1}}")
    loaded = topology("listen:\n  api_keys:\n    - {name: team, key: hush, limits: {}}\n", text=text)
    path = loaded.topology.path
    assert loaded.warnings == (
        f"{path}:6:23: routes.chat.limits: has no effect without `concurrent`",
        f"{path}:9:31: listen.api_keys[0].limits: has no effect without `concurrent`",
    )


def test_faulty_plugin_that_no_route_needs_is_a_warning(topology, tmp_path: Path) -> None:
    (tmp_path / "faulty.py").write_text("raise RuntimeError('no luck')\n")
    (warning,) = topology("plugins: [faulty.py]\n").warnings
    assert warning.startswith(f"plugin file {tmp_path / 'faulty.py'}: cannot be imported: RuntimeError: no luck")


def test_plugin_files_are_relative_to_the_topology(topology, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from specrouter.hookspecs import hookimpl\n"
        "from specrouter.interfaces import TokenizerCheck\n"
        "class Mine(TokenizerCheck):\n"
        "    name = 'mine'\n"
        "    async def check(self, draft, target): return []\n"
        "@hookimpl\n"
        "def specrouter_tokenizer_checks(): return [Mine]\n"
    )
    loaded = topology("plugins: [./mine.py]\n", text=MINIMAL.replace("big}", "big, tokenizer_checks: [mine]}"))
    assert loaded.warnings == ()
    assert loaded.topology.plugins == (tmp_path / "mine.py",)
    assert loaded.registry.find("tokenizer_check", "mine") is not None


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "1:1: the file is empty (a topology begins with `version: 1`)"),
        ("version: 1\n".encode("utf-16"), "1:1: is encoded as UTF-16 (save it as UTF-8)"),
        (b"version: 1\nlisten: {host: \xff}\n", "2:16: byte 0xff is not UTF-8"),
        (b"\xef\xbb\xbfversion: 1\r\nservers: \xe4\r\n", "2:10: byte 0xe4 is not UTF-8"),
        (b"version: 1\x00\n", "1:11: the character U+0000 is not allowed (remove it)"),
        (b"x" * 2**20 + b"\n", "1:1: is larger than 1024 KiB, which no topology needs"),
    ],
)
def test_files_that_are_no_yaml(tmp_path: Path, raw: bytes, message: str) -> None:
    path = tmp_path / "topology.yaml"
    path.write_bytes(raw)
    assert problems(path) == (f"{path}:{message}",)


def test_no_file_and_a_directory(tmp_path: Path) -> None:
    assert problems(tmp_path / "none.yaml") == (f"{tmp_path / 'none.yaml'}:1:1: there is no such file",)
    assert problems(tmp_path) == (f"{tmp_path}:1:1: is a directory (name the YAML file in it)",)


@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_line_ends_and_byte_order_marks(tmp_path: Path, newline: str, mark: str) -> None:
    path = tmp_path / "topology.yaml"
    path.write_bytes((mark + EXAMPLE.replace("\n", newline)).encode())
    assert load(path, {}).topology.routes == load(CONFIG / "example.yaml", {}).topology.routes
    path.write_bytes((mark + MINIMAL + "listen:\n  port: ${NO}\n").replace("\n", newline).encode())
    assert problems(path) == (f"{path}:8:9: listen.port: the environment has no variable NO",)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("yes", "yes"),
        ("8080:80", "8080:80"),
        ("010", "010"),
        ("1_000", "1_000"),
        ("0x10", "0x10"),
        ("-12", -12),
        ("1.5e3", 1500.0),
        ("1e999", "1e999"),
        (".5", 0.5),
        (".", "."),
        (".nan", ".nan"),
        ("9" * 5000, "9" * 5000),
        ("2026-01-01", "2026-01-01"),
        ("~", None),
        ("", None),
        ("True", True),
        ("'true'", "true"),
        ("!!str 12", "12"),
    ],
)
def test_scalars(tmp_path: Path, text: str, value: object) -> None:
    path = tmp_path / "value.yaml"
    path.write_text(f"value: {text}\n")
    document = read_document(path, {})
    assert document.problems == []
    assert document.data == {"value": value}


PIECES = st.one_of(
    st.text(max_size=6),
    st.sampled_from(
        ["\t", "\n", "  ", ": ", "- ", "{", "}", "[", "]", "&a ", "*a", "!!x ", "<<: ", "'", '"', "|", "#"]
    ),
    st.sampled_from(["${", "${A}", "$$", "%", "---\n", "null", "1e9", "-1", "\\", '"\\UFFFFFFFF"', "? ", "@", "\x00"]),
    st.sampled_from([line + "\n" for line in EXAMPLE.splitlines()]),
)
CHANGES = st.lists(st.tuples(st.floats(0, 1), st.integers(0, 12), PIECES), min_size=1, max_size=4)


FAULTY = sorted((CONFIG.parent / "tests" / "config_errors").glob("*.yaml"))
TEXTS = st.sampled_from([EXAMPLE, *(path.read_text(encoding="utf-8") for path in FAULTY)])


@given(text=st.sampled_from([EXAMPLE, *(path.read_text(encoding="utf-8") for path in FAULTY)]), changes=CHANGES)
@settings(max_examples=500, deadline=None)
def test_no_text_gives_anything_but_a_topology_or_its_problems(tmp_path_factory, text, changes) -> None:
    for place, removed, inserted in changes:
        start = int(place * len(text))
        text = text[:start] + inserted + text[start + removed :]
    path = tmp_path_factory.getbasetemp() / "mutated.yaml"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    for problem in problems(path):
        assert re.match(rf"{re.escape(str(path))}:[0-9]+:[0-9]+: ", problem)
        assert problem.isprintable()
