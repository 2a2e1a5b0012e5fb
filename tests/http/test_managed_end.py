"""Servers that the router runs itself: none is ever left, and what a reload and commands make of them."""

from __future__ import annotations

import json
import signal
import socket
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import anyio
import pytest
from http_support import StartFake, until
from managed_support import LONG, PROGRAM, WriteTopology, ask, fixed_port, lives, running, told
from router_process import served, specrouter, write_topology

from specrouter.managed import supervisor
from specrouter.managed.folders import records_folder
from specrouter.types import ServerState

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.usefixtures("state_folder"),
    pytest.mark.skipif(sys.platform == "win32", reason="the router runs no servers on Windows"),
]


# -- the end of the router ---------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_nothing_is_left_when_the_router_is_stopped(
    topology: WriteTopology, tmp_path: Path, number: signal.Signals
) -> None:
    child = tmp_path / "child"
    async with served(topology("--child", str(child))) as router:
        pid = await ask(router.client)
        assert lives(child.read_text())
        router.send(number)
        assert await router.ended() == 0
        assert not lives(pid)
        assert not lives(child.read_text())
        assert [file.name for file in records_folder().iterdir()] == ["looking.lock"]


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere only what was started directly can be found")
@pytest.mark.parametrize("flags", [[], ["--stay"]])
async def test_nothing_is_left_when_the_router_was_killed(
    topology: WriteTopology, tmp_path: Path, flags: list[str]
) -> None:
    """The next one ends it, even what survived its own end, and gets the port."""
    child = tmp_path / "child"
    file = topology("--child", str(child), *flags, server={"url": f"http://127.0.0.1:{fixed_port()}"})
    async with served(file) as router:
        pid = await ask(router.client)
        left = child.read_text()
        router.send(signal.SIGKILL)
        await router.ended()
        await until(lambda: lives(pid) == bool(flags), seconds=LONG)
        assert lives(left)
    async with served(file) as router:
        assert await ask(router.client) not in ("", pid)
        assert not lives(pid)
        assert not lives(left)
        assert "which a killed router had left running" in router.log()
        router.send(signal.SIGTERM)
        assert await router.ended() == 0


async def test_another_router_leaves_it_alone(topology: WriteTopology, tmp_path: Path) -> None:
    async with running(topology()) as router:
        pid = await ask(router.client)
        other = write_topology(
            tmp_path / "other.yaml", {"big": {"run": {"command": PROGRAM}}}, {"fast": {"target": "big"}}
        )
        async with running(other) as second:
            assert await ask(second.client) != pid
        assert await ask(router.client) == pid


# -- reload ------------------------------------------------------------------------------------------------


async def test_reload_keeps_the_process_of_an_unchanged_run(topology: WriteTopology) -> None:
    async with running(topology(idle_stop=1)) as router:
        pid = await ask(router.client)
        before = router.server
        topology(server={"connect_timeout": 9}, idle_stop=1)
        assert (await router.service.reload()).problems == ()
        assert router.server is not before
        assert await ask(router.client) == pid
        await router.until(ServerState.STOPPED)
        await until(lambda: not lives(pid), seconds=LONG)
        assert await ask(router.client) != pid


@pytest.mark.parametrize("reloads", [1, 2])
async def test_reload_lets_requests_end_before_a_changed_one_starts(
    topology: WriteTopology, caplog: pytest.LogCaptureFixture, reloads: int
) -> None:
    url = {"url": f"http://127.0.0.1:{fixed_port()}"}
    async with running(topology("--slow", "1", server=url)) as router:
        first = await ask(router.client)
        answers = []
        async with anyio.create_task_group() as tasks:

            async def one() -> None:
                answers.append(await ask(router.client))

            tasks.start_soon(one)
            await until(lambda: router.server.in_flight == 1, seconds=LONG)
            for number in range(reloads):
                topology("--slow", f"0.{number}", server=url)
                assert (await router.service.reload()).problems == ()
            assert lives(first)
            second = await ask(router.client)
        assert answers == [first]
        assert second != first
        assert not lives(first)
        assert "is in use" not in caplog.text


async def test_reload_stops_what_is_gone(topology: WriteTopology, tmp_path: Path, fake: StartFake) -> None:
    other = await fake()
    async with running(topology("--slow", "1")) as router:
        answers = []
        async with anyio.create_task_group() as tasks:

            async def one() -> None:
                answers.append(await ask(router.client))

            tasks.start_soon(one)
            await until(lambda: router.server.in_flight == 1 and router.server.state is ServerState.UP, seconds=LONG)
            write_topology(tmp_path / "run.yaml", {"other": other}, {"fast": {"target": "other"}})
            assert (await router.service.reload()).problems == ()
        await until(lambda: not lives(answers[0]), seconds=LONG)


# -- workers -----------------------------------------------------------------------------------------------


async def test_runs_without_its_workers_while_they_are_away(
    topology: WriteTopology, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "SETTLE_SECONDS", 0.1)
    monkeypatch.setattr(supervisor, "SWITCH_SECONDS", 0.1)
    argv, port = tmp_path / "argv", fixed_port()
    flags = ["--argv", str(argv)]
    file = topology(
        *flags, "--slow", "0.1", workers=[f"127.0.0.1:{port}"], without_workers={"command": [*PROGRAM, *flags]}
    )
    async with running(file) as router, AsyncExitStack() as stack:
        without = await ask(router.client)
        await router.until(ServerState.UP, "up without its RPC workers (no connection to 1 of 1)")
        told = router.service.router.supervisors["big"].state_reason
        assert told == f"up without its RPC workers (worker 127.0.0.1:{port}: no connection)"
        worker = stack.enter_context(socket.create_server(("127.0.0.1", port)))
        await until(lambda: not lives(without), seconds=LONG)
        with_workers = await ask(router.client)
        assert [("--slow" in json.loads(line)[0]) for line in argv.read_text().splitlines()] == [False, True]
        worker.close()
        await ask(router.client, "die", status=502)
        await until(lambda: not lives(with_workers), seconds=LONG)
        assert await ask(router.client) not in (without, with_workers)
        assert "--slow" not in argv.read_text().splitlines()[-1]


# -- commands ----------------------------------------------------------------------------------------------


async def test_check(topology: WriteTopology) -> None:
    file = topology()
    code, out, _ = await specrouter("check", str(file))
    assert code == 0
    assert "big: stopped, no router runs it now; it is started when it is needed" in out
    assert "fast: answered by big" in out
    async with served(file) as router:
        await ask(router.client)
        await until(lambda: told(file).state == "up", seconds=LONG)
        code, out, _ = await specrouter("check", str(file))
        assert code == 0
        assert f"big: up, fake, slots 2, vocabulary 100 ({told(file).url})" in out
    code, out, _ = await specrouter("check", str(topology(command=["no-such-program", "${port}"])))
    assert code == 1
    assert "big: DOWN, there is no program no-such-program on PATH" in out


async def test_logs(topology: WriteTopology) -> None:
    file = topology("--exit", "1", "the last words")
    code, _, error = await specrouter("logs", str(file), "big")
    assert (code, error) == (1, f"no router of this user has run a server of {file} here (see `run` in the topology)\n")
    async with running(file) as router:
        await ask(router.client, status=502)
    code, out, _ = await specrouter("logs", str(file), "big")
    assert code == 0
    first, last = out.splitlines()
    assert first.startswith("--- ")
    assert last == "the last words"
    assert (await specrouter("logs", str(file), "big", "-n", "1"))[1] == "the last words\n"
    code, _, error = await specrouter("logs", str(file), "bog")
    hint = "(did you mean `big`? there are logs of: big)"
    assert (code, error) == (1, f"there is no log of a server 'bog' of {file} {hint}\n")


async def test_logs_can_be_followed(topology: WriteTopology, tmp_path: Path) -> None:
    async with running(topology(idle_stop=0.2)) as router:
        await ask(router.client)
        await router.until(ServerState.STOPPED)
        output = tmp_path / "output"
        command = [sys.executable, "-c", "from specrouter.cli import main; main()", "logs", "-f", "-n", "1"]
        with output.open("wb") as stream:
            process = await anyio.open_process([*command, str(tmp_path / "run.yaml"), "big"], stdout=stream)
        try:
            await until(lambda: output.read_text().count("listening") == 1, seconds=LONG)
            await ask(router.client)
            await until(lambda: output.read_text().count("listening") == 2, seconds=LONG)
            process.send_signal(signal.SIGINT)
            with anyio.fail_after(LONG):
                assert await process.wait() == 130
        finally:
            process.kill() if process.returncode is None else None
            await process.aclose()
