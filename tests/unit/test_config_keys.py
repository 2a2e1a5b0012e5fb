"""Keys of clients and servers: their forms, the files they are read from, the routes they open."""

from __future__ import annotations

from pathlib import Path

import pytest
from config_plugins import load

from specrouter.config import ApiKey, LoadedTopology

TEXT = """version: 1
listen:
  host: 0.0.0.0
  api_keys:
    - KEYS
servers:
  big: {url: http://big}
routes:
  chat: {target: big, aliases: [default]}
  code: {target: big}
"""


@pytest.fixture
def with_keys(tmp_path: Path):
    """Load a topology that others can reach, with these entries of `api_keys`."""

    def load_keys(*keys: str) -> LoadedTopology:
        path = tmp_path / "topology.yaml"
        path.write_text(TEXT.replace("KEYS", "\n    - ".join(keys)), encoding="utf-8")
        return load(path, {"SECRETS": str(tmp_path)})

    return load_keys


@pytest.mark.parametrize(
    "content", [b"hush", b"hush\n", b"hush\r\n", b"\n \thush \n\n", b"\xef\xbb\xbfhush\n", b"hush" + b" " * 4092]
)
def test_key_file(with_keys, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys" / "alice.key").write_bytes(content)
    loaded = with_keys("{name: alice, key_file: keys/alice.key}")
    assert loaded.topology.listen.api_keys == (ApiKey("alice", "hush"),)
    assert "hush" not in repr(loaded.topology.listen)


def test_paths_of_key_files(with_keys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are relative to the topology, not to where the router is started, or absolute."""
    (tmp_path / "a.key").write_text("first")
    (tmp_path / "b.key").write_text("second")
    monkeypatch.chdir("/")
    loaded = with_keys("{name: a, key_file: ./a.key}", '{name: b, key_file: "${SECRETS}/b.key"}')
    assert [key.secret for key in loaded.topology.listen.api_keys] == ["first", "second"]


def test_key_file_of_a_server(tmp_path: Path) -> None:
    (tmp_path / "big.key").write_text("hush\n")
    path = tmp_path / "topology.yaml"
    path.write_text(
        "version: 1\nservers: {big: {url: http://big, api_key_file: big.key}}\nroutes: {chat: {target: big}}\n"
    )
    loaded = load(path, {})
    assert loaded.topology.servers["big"].api_key == "hush"
    assert "hush" not in repr(loaded.topology.servers)


def test_a_key_without_a_name_is_called_by_its_place(with_keys) -> None:
    keys = with_keys("one", "{name: team, key: two}", "three").topology.listen.api_keys
    assert [key.name for key in keys] == ["key 1", "team", "key 3"]


def test_a_route_that_no_key_opens_is_a_warning(with_keys) -> None:
    chat, code = ("{name: a, key: one, routes: [chat]}", "{name: b, key: two, routes: [code, chat]}")
    loaded = with_keys(chat)
    assert loaded.warnings == (f"{loaded.topology.path}:10:3: routes.code: no key opens this route",)
    for keys in [(chat, code), (chat, "plain"), (chat, "{name: c, key: three}")]:
        assert with_keys(*keys).warnings == ()
