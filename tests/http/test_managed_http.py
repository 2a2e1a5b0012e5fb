"""Servers that the router runs itself: when they are started, stopped and started again, and why not."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path

import anyio
import pytest
from http_support import StartFake, until
from managed_support import LONG, PROGRAM, WriteTopology, ask, fixed_port, lives, running, told
from router_process import served, specrouter, write_topology

from specrouter.config import load_topology
from specrouter.managed import supervisor
from specrouter.managed.processes import port_is_free
from specrouter.routing import Router
from specrouter.types import ServerState

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.usefixtures("state_folder"),
    pytest.mark.skipif(sys.platform == "win32", reason="the router runs no servers on Windows"),
]


# -- start and stop ----------------------------------------------------------------------------------------


async def test_started_when_it_is_needed(topology: WriteTopology, tmp_path: Path) -> None:
    argv = tmp_path / "argv"
    file = topology("--argv", str(argv), "--slow", 0.0, env={"FAKE": "on ${port}"})
    async with running(file) as router:
        assert router.server.state is ServerState.STOPPED
        assert [model["id"] for model in (await router.client.get("/v1/models")).json()["data"]] == ["fast"]
        async with anyio.create_task_group() as tasks:
            for _ in range(4):
                tasks.start_soon(ask, router.client)
        pid = await ask(router.client)
        assert lives(pid)
        ((flags, variable, directory),) = [json.loads(line) for line in argv.read_text().splitlines()]
        port = router.server.url.rpartition(":")[2]
        assert flags == ["--port", port, "--argv", str(argv), "--slow", "0.0"]
        assert variable == f"on {port}"
        assert directory == str(tmp_path)
    assert not lives(pid)


async def test_started_with_the_router(topology: WriteTopology) -> None:
    port = fixed_port()
    async with running(topology(start="at_once", server={"url": f"http://127.0.0.1:{port}"})) as router:
        await router.until(ServerState.UP)
        assert not port_is_free(port)
    assert port_is_free(port)


async def test_stopped_when_nobody_uses_it(topology: WriteTopology) -> None:
    async with running(topology(idle_stop=0.3)) as router:
        first = await ask(router.client)
        await router.until(ServerState.STOPPED, "nobody has used it for 0.3 s")
        await until(lambda: not lives(first), seconds=LONG)
        assert (await router.client.get("/v1/models")).json()["data"][0]["meta"]["n_vocab"] == 100
        assert await ask(router.client) != first


async def test_not_stopped_while_it_answers(topology: WriteTopology) -> None:
    async with running(topology("--slow", "1.5", idle_stop=0.2)) as router:
        pid = await ask(router.client)
        assert pid.isdecimal()
        await router.until(ServerState.STOPPED)


async def test_a_target_that_is_up_answers_while_the_first_one_starts(topology: WriteTopology, tmp_path: Path) -> None:
    """In order: the one above it is started for the requests that follow."""
    file = tmp_path / "two.yaml"
    servers = {name: {"run": {"command": PROGRAM}} for name in ("big", "small")}
    write_topology(file, servers, {"fast": {"target": ["big", "small"]}, "other": {"target": "small"}})
    async with running(file) as router:
        small = (await router.client.post("/v1/completions", json={"model": "other", "prompt": "hi"})).json()
        assert await ask(router.client) == small["choices"][0]["text"]
        await router.until(ServerState.UP)
        assert await ask(router.client) != small["choices"][0]["text"]


async def test_replicas_are_started_when_there_is_too_much_for_the_others(tmp_path: Path) -> None:
    file = tmp_path / "replicas.yaml"
    servers = {name: {"run": {"command": [*PROGRAM, "--slow", "1"]}} for name in ("big", "other")}
    write_topology(file, servers, {"fast": {"target": ["big", "other"], "balance": "least_busy"}})
    async with running(file) as router:
        other = router.service.router.servers["other"]
        await ask(router.client)
        await ask(router.client)
        assert other.state is ServerState.STOPPED
        async with anyio.create_task_group() as tasks:
            # It has two slots.
            for _ in range(3):
                tasks.start_soon(ask, router.client)
        await until(lambda: other.state is ServerState.UP, seconds=LONG)


async def test_a_draft_server_is_started_by_a_request_that_it_could_draft_for(fake: StartFake, tmp_path: Path) -> None:
    target = await fake()
    file = tmp_path / "draft.yaml"
    draft = {"use": "remote", "options": {"server": "big"}}
    servers = {"target": target, "big": {"run": {"command": PROGRAM}}}
    write_topology(file, servers, {"fast": {"target": "target", "draft": draft}})
    async with running(file) as router:
        body = {"model": "fast", "messages": [{"role": "user", "content": "hi"}], "stream": True}
        response = await router.client.post("/v1/chat/completions", json=body)
        assert "draft server big is stopped" in response.headers["x-specrouter-decoding"]
        await router.until(ServerState.UP)


async def test_a_server_that_drafts_by_itself_is_started_by_requests_that_want_drafts(
    fake: StartFake, tmp_path: Path
) -> None:
    target = await fake()
    file = tmp_path / "rpc.yaml"
    draft = {"use": "rpc", "options": {"server": "big"}}
    servers = {"target": target, "big": {"run": {"command": PROGRAM}}}
    write_topology(file, servers, {"fast": {"target": "target", "draft": draft}})
    async with running(file) as router:
        body = {"model": "fast", "messages": [{"role": "user", "content": "hi"}]}
        for _ in range(2):
            response = await router.client.post(
                "/v1/chat/completions", json=body, headers={"x-specrouter-draft": "none"}
            )
            assert response.status_code == 200
            assert router.server.state is ServerState.STOPPED
        assert (await router.client.post("/v1/chat/completions", json=body)).status_code == 200
        await router.until(ServerState.UP)


# -- failures ----------------------------------------------------------------------------------------------


async def test_started_again_after_a_crash(topology: WriteTopology, caplog: pytest.LogCaptureFixture) -> None:
    async with running(topology(restart={"pause": 0.2})) as router:
        first = await ask(router.client)
        assert "broke" in await ask(router.client, "die", status=502)
        # A request at that very moment may be one that it has died of.
        await until(lambda: not lives(first), seconds=LONG)
        # It waits for the server as for one that is loading.
        assert await ask(router.client) != first
    # Which did not get the request that it had died of once more.
    assert caplog.text.count("it ended with exit code 3: fatal error: told to die") == 1


async def test_longer_pauses_when_it_fails_again_and_again(topology: WriteTopology) -> None:
    file = topology(
        "--exit", "1", "error: no such device", start="at_once", restart={"pause": 0.2, "longest_pause": 0.5}
    )
    async with served(file) as router:
        await until(lambda: "failed 4 times in a row, next try in 0.5 s" in told(file).reason, seconds=LONG)
        code, out, _ = await specrouter("check", str(file))
        assert code == 1
        # It may be starting at this moment.
        assert "it ended with exit code 1: error: no such device; failed" in out
        log = router.log()
        assert "error: server big: it ended with exit code 1: error: no such device" in log
        assert "server big said: error: no such device" in log
        assert "does not run: it ended with exit code 1; failed" in await ask(router.client, status=502)


@pytest.mark.parametrize(
    ("command", "message", "logged"),
    [
        (["no-such-program"], "its program is missing", "there is no program no-such-program on PATH"),
        (["./no-such-program"], "its program is missing", "there is no program ./no-such-program in {directory}"),
        (["./run.yaml"], "its program is not an executable file", "./run.yaml is not an executable file"),
        (
            [*PROGRAM, "--exit", "1", "srv  load_model: failed to load model, 'gone.gguf'"],
            "its model file is missing",
            "there is no file gone.gguf",
        ),
        (
            [*PROGRAM, "--exit", "1", "failed to load model 'run.yaml'"],
            "it cannot load its model",
            "it cannot load the model run.yaml",
        ),
        ([*PROGRAM, "--exit", "1", "E srv start: couldn't bind HTTP server socket"], "its port is in use", ""),
        ([*PROGRAM, "--exit", "0", ""], "it ended with exit code 0 and printed nothing", ""),
        ([sys.executable, "-c", "import os; os.kill(os.getpid(), 11)"], "it ended by SIGSEGV and printed nothing", ""),
    ],
)
async def test_why_it_does_not_start(
    topology: WriteTopology,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    command: list[str],
    message: str,
    logged: str,
) -> None:
    async with running(topology(command=[*command, "${port}"] if "${port}" not in command else command)) as router:
        said = await ask(router.client, status=502)
        assert message in said
        assert (logged or message).format(directory=tmp_path) in caplog.text
        assert "Traceback" not in said
        await router.until(ServerState.STOPPED, "tried again when it is needed")


async def test_port_that_is_taken(topology: WriteTopology) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        async with running(topology(server={"url": f"http://127.0.0.1:{port}"}, restart={"pause": 0.1})) as router:
            assert "its port is in use by another process" in await ask(router.client, status=502)
            await router.until(ServerState.STOPPED)
            other.close()
            assert await ask(router.client)


async def test_a_server_that_is_not_ready_in_time(topology: WriteTopology) -> None:
    command = [sys.executable, "-c", "import time; time.sleep(600)", "${port}"]
    async with running(topology(command=command, ready_timeout=0.5)) as router:
        assert "it is not ready after 0.5 s" in await ask(router.client, status=502)


async def test_a_request_waits_no_longer_than_for_a_loading_server(topology: WriteTopology) -> None:
    command = [sys.executable, "-c", "import time; time.sleep(600)", "${port}"]
    async with running(topology(command=command, server={"load_wait": 0.2})) as router:
        response = await router.client.post("/v1/completions", json={"model": "fast", "prompt": "hi"})
        assert (response.status_code, response.json()["error"]["code"]) == (503, "upstream_loading")
        assert "server 'big' is being started" in response.text


async def test_a_fault_of_ours_does_not_end_the_router(
    topology: WriteTopology, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(topology(restart={"pause": 0.1})) as router:
        with monkeypatch.context() as patched:
            patched.setattr(supervisor, "require_program", lambda *_: 1 / 0)
            assert "an error in specrouter, see its log" in await ask(router.client, status=502)
        await router.until(ServerState.STOPPED)
        assert (await ask(router.client)).isdecimal()


async def test_no_secret_is_shown(topology: WriteTopology, caplog: pytest.LogCaptureFixture) -> None:
    flags = ["--api-key", "kept-secret-1", "--exit", "1", "error: kept-secret-1 and kept-secret-2"]
    async with running(topology(*flags, env={"TOKEN": "kept-secret-2"})) as router:
        assert "it ended with exit code 1" in await ask(router.client, status=502)
    assert "error: … and …" in caplog.text
    assert "kept-secret" not in caplog.text
    assert "kept-secret" not in repr(router.server.config)


@pytest.mark.parametrize(
    "flags",
    [
        ["--hf-token", "kept-secret-1"],
        ["-hft", "kept-secret-1"],
        ["--hf-token=kept-secret-1"],
        ["--api-key", "kept-secret-1, kept-secret-2"],
        ["--api-key=kept-secret-2,kept-secret-1"],
    ],
)
async def test_flags_with_secrets(topology: WriteTopology, flags: list[str]) -> None:
    router = Router(load_topology(topology(*flags)))
    assert "kept-secret-1" in router.supervisors["big"]._secrets()
    await router.aclose()


async def test_clients_see_nothing_that_a_server_printed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Not as the error, not as the reason why nothing is drafted, not in the status."""
    printed = "error: cannot open /srv/private/model.gguf for tenant-4711 from 192.0.2.7:50052"
    file = tmp_path / "printed.yaml"
    pauses = {"pause": 0.1, "longest_pause": 0.1}
    big = {"command": [*PROGRAM, "--exit", "1", printed], "start": "at_once", "restart": pauses}
    draft = {"use": "remote", "options": {"server": "big"}}
    servers = {"big": {"run": big}, "target": {"run": {"command": PROGRAM}}}
    write_topology(file, servers, {"fast": {"target": "target", "draft": draft}, "own": {"target": "big"}})
    async with running(file) as router:
        await router.until(ServerState.DOWN, "it ended with exit code 1; failed")
        seen = [
            await router.client.post("/v1/completions", json={"model": "own", "prompt": "hi"}),
            await router.client.post("/v1/completions", json={"model": "fast", "prompt": "hi"}),
            await router.client.get("/specrouter/status"),
        ]
        told = "".join([answer.text + str(answer.headers) for answer in seen])
        assert "it ended with exit code 1; failed" in seen[1].headers["x-specrouter-decoding"]
        for part in ("/srv", "tenant-4711", "192.0.2.7"):
            assert part not in told
        assert printed in router.service.router.supervisors["big"].state_reason
    assert printed in caplog.text
