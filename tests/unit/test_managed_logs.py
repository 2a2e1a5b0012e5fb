"""Logs of servers: bounded, private, and what they tell of a failure."""

from __future__ import annotations

import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from specrouter.errors import SetupError
from specrouter.managed import logs
from specrouter.managed.failures import require_program, why_it_ended, without_secrets
from specrouter.managed.folders import log_file
from specrouter.managed.logs import ServerLog, find_log, follow, last_lines, previous_of


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ServerLog:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return ServerLog(log_file(tmp_path / "topology.yaml", "big/one"))


def test_lines_are_those_since_the_start(log: ServerLog) -> None:
    assert log.lines() == []
    for number in range(2):
        with log.open("starts") as stream:
            stream.write(f"line {number}\n".encode())
    assert log.lines() == ["line 1"]
    found, position = last_lines(log.file, 10)
    assert [line.split()[-1] for line in found] == ["starts", "0", "starts", "1"]
    assert position == log.file.stat().st_size
    assert last_lines(log.file, 1)[0] == ["line 1"]
    assert last_lines(log.file, 0)[0] == []


def test_only_its_user_can_read_it(log: ServerLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "MOST_BYTES", 10)
    with log.open("starts") as stream:
        stream.write(b"more than ten bytes")
    log.keep_small()
    for file in (log.file, previous_of(log.file)):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(log.file.parent.stat().st_mode) == 0o700


def test_is_kept_small_while_a_process_writes(log: ServerLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "MOST_BYTES", 100)
    with log.open("starts") as stream:
        for number in range(50):
            stream.write(f"line {number}\n".encode())
            stream.flush()
            log.keep_small()
            assert log.file.stat().st_size <= 100
    assert last_lines(log.file, 6)[0] == [f"line {number}" for number in range(44, 50)]
    assert log.lines()[-1] == "line 49"
    assert {file.name for file in log.file.parent.iterdir()} == {log.file.name, previous_of(log.file).name}


def test_follow(log: ServerLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "MOST_BYTES", 60)
    with log.open("starts") as stream:
        said: list[str] = []
        written = threading.Event()

        def read(lines: Iterator[str]) -> None:
            while not "".join(said).endswith("last\n"):
                said.append(next(lines))
                written.set()

        lines = follow(log.file, last_lines(log.file, 0)[1])
        stream.write(b"one\n")
        stream.flush()
        reader = threading.Thread(target=read, args=(lines,))
        reader.start()
        stream.write(b"x" * 60 + b"\n")
        stream.flush()
        assert written.wait(30)
        log.keep_small()
        stream.write(b"last\n")
        stream.flush()
        reader.join(30)
    assert "".join(said).endswith("last\n")


def test_find_log(log: ServerLog, tmp_path: Path) -> None:
    topology = tmp_path / "topology.yaml"
    with pytest.raises(SetupError, match="no router of this user has run a server of"):
        find_log(topology, "big/one")
    log.open("starts").close()
    assert find_log(topology, "big/one") == log.file
    with pytest.raises(SetupError, match="did you mean `big/one`"):
        find_log(topology, "big/on")
    with pytest.raises(SetupError, match="no router"):
        find_log(tmp_path / "other" / "topology.yaml", "big/one")


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (["E srv start: couldn't bind HTTP server socket, port: 80", "E exiting"], "its port is in use"),
        (["Failed to connect to laptop:50052"], "no connection to the RPC worker laptop:50052"),
        (["ggml_cuda: out of memory"], "out of memory"),
        (["E load_model: failed to load model, '/gone.gguf'", "E exiting"], "there is no file /gone.gguf"),
        (["failed to open GGUF file 'gone.gguf' (No such file)"], "there is no file gone.gguf"),
        (["error: invalid argument: --bogus"], "error: invalid argument: --bogus"),
        (["an error: one", "fine", ""], "an error: one"),
        (["nothing", "special"], "special"),
        (["x" * 1000], "x" * 200),
    ],
)
def test_why_it_ended(tmp_path: Path, lines: list[str], reason: str) -> None:
    failure = why_it_ended(1, lines, tmp_path)
    assert str(failure).startswith(f"it ended with exit code 1: {reason}")
    assert len(str(failure)) < 300


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (["Failed to connect to laptop:50052"], ": an RPC worker is away"),
        (["E load_model: failed to load model, '/gone.gguf'"], ": its model file is missing"),
        (["E load_model: failed to load model, '/'"], ": it cannot load its model"),
        (["CUDA: out of memory at /src/x.cu"], ": out of memory"),
        (["error: invalid argument: --bogus"], ""),
    ],
)
def test_words_for_everybody(tmp_path: Path, lines: list[str], reason: str) -> None:
    assert why_it_ended(1, lines, tmp_path).reason == f"it ended with exit code 1{reason}"


def test_programs(tmp_path: Path) -> None:
    program = tmp_path / "bin" / "server"
    program.parent.mkdir()
    program.touch(0o700)
    require_program(["./bin/server"], tmp_path, {})
    require_program([str(program)], Path("/"), {})
    require_program(["server"], Path("/"), {"PATH": str(program.parent)})
    for command, directory, words in [
        ("server", tmp_path, "there is no program server on PATH"),
        ("./server", tmp_path, f"there is no program ./server in {tmp_path}"),
        ("/gone", tmp_path, "there is no program /gone$"),
        ("./bin", tmp_path, "./bin is not an executable file"),
    ]:
        with pytest.raises(SetupError, match=words):
            require_program([command], directory, {"PATH": "/nowhere"})


def test_without_secrets() -> None:
    assert without_secrets("key abcdef and abcdefgh", ["abcdef", "abcdefgh"]) == "key … and …"
