"""The demo's parts with a real server."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from specrouter.demo.downloads import CPU_ONLY, PORTABLE_WHEEL
from specrouter.demo.processes import ManagedServer
from specrouter.demo.twin import make_twin
from specrouter.demo.wheels import fetch_wheel
from specrouter.ngram_pool import FLAGS


def complete(server: ManagedServer, prompt: str | list[int], **fields: object) -> dict[str, object]:
    body = {"prompt": prompt, "n_predict": 16, "temperature": 0, "return_tokens": True, **fields}
    response = httpx.post(f"{server.url}/completion", json=body, trust_env=False, timeout=60)
    response.raise_for_status()
    return response.json()


@pytest.fixture(scope="module")
def source_tokens(model_file, start_server):
    server = start_server(model_file)
    tokens = complete(server, "The planets of the solar system are")["tokens"]
    server.stop()
    return tokens


def test_deep_twin_writes_what_its_source_writes(model_file, start_server, source_tokens, tmp_path):
    twin = tmp_path / "twin.gguf"
    make_twin(model_file, twin, factor=2, type="KEEP")
    server = start_server(twin)
    tokens = complete(server, "The planets of the solar system are")["tokens"]
    server.stop()
    assert len(source_tokens) == 16
    assert tokens == source_tokens


def test_requantised_model_has_the_vocabulary_of_its_source(model_file, start_server, tmp_path):
    rough = tmp_path / "rough.gguf"
    make_twin(model_file, rough, factor=1, type="Q4_0")
    assert rough.stat().st_size < model_file.stat().st_size
    server = start_server(rough)
    assert len(complete(server, "Paris is")["tokens"]) == 16
    server.stop()


def test_killed_server_comes_back_on_its_port(model_file, start_server):
    server = start_server(model_file)
    port, first = server.port, server.pid
    server.kill()
    with pytest.raises(httpx.TransportError):
        httpx.get(f"{server.url}/health", trust_env=False)
    server.restart()
    assert (server.port, server.pid != first) == (port, True)
    assert httpx.get(f"{server.url}/health", trust_env=False).status_code == 200
    server.stop()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a child with its parent")
def test_server_dies_with_a_killed_parent(model_file, llama_command, tmp_path):
    script = (
        "import sys, time; from pathlib import Path; from specrouter.demo.processes import ManagedServer\n"
        "with ManagedServer(sys.argv[2:], name='child', log=Path(sys.argv[1])) as server:\n"
        "    sys.stdout.write(f'{server.pid}\\n'); sys.stdout.flush(); time.sleep(60)\n"
    )
    command = [*llama_command.prefix, "-m", str(model_file), "-t", "1", *CPU_ONLY]
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "log"), *command], stdout=subprocess.PIPE, text=True
    ) as parent:
        pid = int(parent.stdout.readline())
        parent.send_signal(signal.SIGKILL)
    give_up = time.monotonic() + 10
    program = Path(f"/proc/{pid}/exe")  # a dead process has none, even while nobody has waited for it
    while program.exists() and time.monotonic() < give_up:
        time.sleep(0.05)
    assert not program.exists()


def test_portable_server_takes_drafts_from_its_pool(model_file, tmp_path):
    folder = fetch_wheel(PORTABLE_WHEEL, "a llama.cpp server")
    runner = [sys.executable, "-m", "specrouter.demo.xllamacpp_server", "--package-folder", str(folder)]
    command = [*runner, "-m", str(model_file), "-t", "1", "-c", "2048", *FLAGS.split(), *CPU_ONLY]
    with ManagedServer(command, name="portable server", log=tmp_path / "log") as server:
        ids = list(range(1000, 1040))
        complete(server, ids, n_predict=0)
        # Forced to go on as the prompt did, it meets its own n-gram, and drafts as much as the flags allow.
        answer = complete(server, ids[:12], n_predict=24, logit_bias=[[ids[12], 1000.0]], ignore_eos=True)
    assert answer["timings"]["draft_n"] == 16
