"""`specrouter reload` and SIGHUP, with routers in processes of their own."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest
from http_support import StartFake
from router_process import RouterProcess, served, specrouter, write_topology

from specrouter.running import find
from specrouter.testing import FakeServer

pytestmark = pytest.mark.anyio


@pytest.fixture
async def process(
    fake: StartFake, tmp_path: Path, runtime: Path
) -> AsyncIterator[tuple[RouterProcess, Path, FakeServer]]:
    target = await fake()
    file = write_topology(tmp_path / "served.yaml", {"big": target}, {"fast": {"target": "big"}})
    async with served(file) as running:
        yield running, file, target


Process = tuple[RouterProcess, Path, FakeServer]


async def models(router: RouterProcess) -> list[str]:
    return [model["id"] for model in (await router.client.get("/v1/models")).json()["data"]]


async def test_command(process: Process) -> None:
    router, file, target = process
    write_topology(file, {"big": target}, {"fast": {"target": "big"}, "more": {"target": "big"}})
    code, out, err = await specrouter("reload", str(file))
    assert (code, out, err) == (0, f"{str(router.client.base_url).rstrip('/')}: route more added\n", "")
    assert await models(router) == ["fast", "more"]
    assert "revision 2 of the topology: route more added" in router.log()


async def test_command_sends_nothing_for_a_wrong_file(process: Process) -> None:
    router, file, target = process
    write_topology(file, {"big": target}, {"fast": {"target": "bog"}, "slow": {}})
    code, out, err = await specrouter("reload", str(file))
    assert (code, out) == (1, "")
    assert (await specrouter("check", "--offline", str(file)))[2] == err
    assert find(file)[0].status.begun == 0
    assert await models(router) == ["fast"]


async def test_command_says_why_the_router_does_not_take_it(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    router, file, _ = process
    # Set for the command, and not for the router.
    monkeypatch.setenv("OUR_SERVER", "http://127.0.0.1:9")
    write_topology(file, {"big": {"url": "${OUR_SERVER}"}}, {"fast": {"target": "big"}})
    code, out, err = await specrouter("reload", str(file))
    assert (code, out) == (1, "")
    assert "keeps the topology it has" in err
    assert "OUR_SERVER" in err
    assert "OUR_SERVER" in router.log()
    assert await models(router) == ["fast"]


async def test_all_routers_of_a_file(process: Process) -> None:
    router, file, target = process
    async with served(file) as second:
        write_topology(file, {"big": target}, {"more": {"target": "big"}})
        code, out, _ = await specrouter("reload", str(file))
        assert code == 0
        assert len(out.splitlines()) == 2
        assert await models(router) == await models(second) == ["more"]


async def test_signals_close_together(process: Process) -> None:
    router, file, target = process
    for number in range(5):
        write_topology(file, {"big": target}, {f"fast-{number}": {"target": "big"}})
        router.send(signal.SIGHUP)
    with anyio.fail_after(60):
        while await models(router) != ["fast-4"]:
            await anyio.sleep(0.02)
    assert router.process.poll() is None


async def test_no_router_of_that_file(fake: StartFake, tmp_path: Path) -> None:
    target = await fake()
    file = write_topology(tmp_path / "served.yaml", {"big": target}, {"fast": {"target": "big"}})
    code, _, err = await specrouter("reload", str(file))
    assert (code, err) == (1, f"no router serves {file} here (start one with: specrouter serve {file})\n")


async def test_file_of_a_killed_router_is_no_target(process: Process) -> None:
    router, file, _ = process
    state = find(file)[0].file
    router.send(signal.SIGKILL)
    assert await router.ended() == -signal.SIGKILL
    # The worst case: its number is another process's by now, which dies of a SIGHUP.
    async with await anyio.open_process(["sleep", "600"]) as bystander:
        said = json.loads(state.read_text())
        state.write_text(json.dumps({**said, "pid": bystander.pid}))
        code, _, err = await specrouter("reload", str(file))
        assert code == 1
        assert "no router serves" in err
        assert not state.exists()
        assert bystander.returncode is None
        os.kill(bystander.pid, 0)
        bystander.kill()
