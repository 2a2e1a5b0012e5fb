"""What happens on real servers when an RPC worker, or a target, is killed within answers: no answer is lost."""

from __future__ import annotations

import contextlib
import json
import shlex
import socket
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import httpx
import pytest
from llama_support import (
    CHAT,
    COMPLETION,
    TEXT,
    Reference,
    StartRouter,
    StartServer,
    ask,
    request_for,
    streaming,
    text_of,
    until,
    write_topology,
)

from specrouter.commands import command_lines
from specrouter.config import load_topology
from specrouter.demo.downloads import LlamaServerCommand
from specrouter.demo.processes import ManagedServer
from specrouter.managed.processes import Process, free_port
from specrouter.types import ServerInfo

MAX_TOKENS = 20

pytestmark = pytest.mark.slow


class Worker:
    """A running `ggml-rpc-server`, always on the same port."""

    def __init__(self, command: list[str], port: int, log: Path) -> None:
        self._command = command
        self._port = port
        self._log = log
        self._process: Process | None = None

    def start(self) -> None:
        """Return when it takes connections."""
        with self._log.open("ab") as log:
            self._process = Process(self._command, name="the RPC worker of a test", output=log)
        until(self._is_there, seconds=30, why=lambda: self._log.read_text(encoding="utf-8", errors="replace"))

    def kill(self) -> None:
        """End it as a crash would."""
        if self._process is not None:
            self._process.kill()

    def _is_there(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._port), timeout=5):
            return True
        return False


@pytest.fixture(scope="module")
def commands(exact_model: Path, tmp_path_factory: pytest.TempPathFactory) -> list[list[str]]:
    """What `specrouter commands` prints for worker and server, as words, with free ports and the model's file."""
    worker, server = f"127.0.0.1:{free_port()}", f"http://127.0.0.1:{free_port()}"
    draft = {"use": "rpc", "options": {"server": "big-rpc", "workers": [worker]}}
    servers = {"big": {"url": "http://127.0.0.1:1"}, "big-rpc": {"url": server}}
    file = write_topology(
        tmp_path_factory.mktemp("commands") / "topology.yaml", servers, {"fast": {"target": "big", "draft": draft}}
    )
    known = {"big-rpc": ServerInfo(model_path=str(exact_model))}
    text = command_lines(load_topology(file), "fast", known).replace("DRAFT.gguf", str(exact_model))
    lines = text.replace("\\\n", " ").splitlines()
    return [shlex.split(line) for line in lines if line and not line.startswith("#")]


@pytest.fixture(scope="module")
def worker(
    commands: list[list[str]], llama_command: LlamaServerCommand, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Worker]:
    program = Path(llama_command.prefix[0]).with_name("ggml-rpc-server")
    if not program.exists():
        pytest.skip(f"no ggml-rpc-server beside {llama_command.origin}")
    # A machine with a GPU would take that.
    words = [str(program), *commands[0][1:], "--device", "CPU"]
    worker = Worker(words, int(words[words.index("--port") + 1]), tmp_path_factory.mktemp("worker") / "log")
    worker.start()
    yield worker
    worker.kill()


@pytest.fixture(scope="module")
def big_rpc(
    commands: list[list[str]],
    worker: Worker,
    llama_command: LlamaServerCommand,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[ManagedServer]:
    """A target that drafts on the worker, with the same model."""
    variable, _, *words = commands[1]
    flags = [word for word in words if word not in ("--host", "127.0.0.1")]
    port = flags.index("--port")
    command = [*llama_command.prefix, *flags[:port], *flags[port + 2 :], "-t", "1", "-c", "4096", "-np", "7"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(*variable.split("="))
        log = tmp_path_factory.mktemp("big-rpc") / "log"
        with ManagedServer(command, name="big-rpc", log=log, port=int(flags[port + 1])) as server:
            yield server


@pytest.fixture(scope="module")
def client(
    start_router: StartRouter, target: ManagedServer, big_rpc: ManagedServer, commands: list[list[str]]
) -> httpx.Client:
    address = commands[1][commands[1].index("--rpc") + 1]
    options = {"server": "big-rpc", "workers": [address], "settle": 0}
    servers = {"big": target, "big-rpc": big_rpc}
    return start_router(servers, {"fast": {"target": "big", "draft": {"use": "rpc", "options": options}}})


class Undisturbed:
    """Compares answers with what the model says alone; up to near ties."""

    def __init__(self, reference: Reference) -> None:
        self._reference = reference
        self._known: set[tuple[str, str]] = set()

    def check(self, body: Mapping[str, Any], said: str) -> None:
        if (str(body), said) not in self._known:
            self._reference.check(body, said, max_tokens=MAX_TOKENS)
            self._known.add((str(body), said))


@pytest.fixture(scope="module")
def undisturbed(reference: Reference) -> Undisturbed:
    return Undisturbed(reference)


class Streamed:
    """A streamed request in a thread: all events so far, and the whole answer when it is over."""

    def __init__(self, client: httpx.Client, path: str, body: Mapping[str, Any]) -> None:
        self.path = path
        self.body = body
        self.events: list[str] = []
        self._client = client

    def run(self, at: tuple[int, Callable[[], None]] = (0, lambda: None)) -> None:
        """Receive all events; after so many of them, call something."""
        with streaming(self._client, self.path, self.body) as (_, events):
            for event in events:
                self.events.append(event)
                if len(self.events) == at[0]:
                    at[1]()

    def has(self, count: int) -> bool:
        return len(self.events) >= count

    def text(self) -> str:
        """The text of an answer that has to be whole."""
        if self.path != COMPLETION:
            assert self.events[-1] == "[DONE]"
        parsed = [json.loads(event) for event in self.events if event != "[DONE]"]
        assert not any("error" in event for event in parsed), self.events[-1]
        return text_of(parsed)


def body_for(path: str, text: str) -> dict[str, Any]:
    return request_for(path, text, max_tokens=MAX_TOKENS, n_predict=MAX_TOKENS, ignore_eos=True)


def status(client: httpx.Client) -> dict[str, Any]:
    """How the router says that it is doing."""
    found: dict[str, Any] = client.get("/specrouter/status").json()
    return found


def until_served_by(client: httpx.Client, server: str) -> None:
    """Wait until the first route's requests go to a server."""
    until(lambda: status(client)["routes"][0]["served_by"] == server, seconds=60, why=lambda: status(client)["routes"])


def check_drafted(client: httpx.Client, undisturbed: Undisturbed) -> None:
    body = body_for(CHAT, "Describe the Moon.")
    response = client.post(CHAT, json=body)
    assert response.headers["x-specrouter-decoding"] == "rpc"
    assert response.json()["timings"]["draft_n_accepted"] > 0
    undisturbed.check(body, text_of(response.json()))


def test_drafts_are_made_on_the_worker(client: httpx.Client, undisturbed: Undisturbed) -> None:
    until_served_by(client, "big-rpc")
    check_drafted(client, undisturbed)


@pytest.mark.parametrize("attempt", range(3))
def test_worker_killed_within_answers(
    client: httpx.Client, worker: Worker, big_rpc: ManagedServer, undisturbed: Undisturbed, attempt: int
) -> None:
    """Seven at a time. That drafts are back each time is half of the test."""
    whole = [(path, body_for(path, "Describe the sea.")) for path in (CHAT, TEXT, COMPLETION)]
    with ThreadPoolExecutor(7) as pool:
        for _ in range(3):
            until_served_by(client, "big-rpc")
            streams = [
                Streamed(client, path, body_for(path, "Describe the Sun.")) for path in (CHAT, TEXT, COMPLETION, CHAT)
            ]
            answers = [pool.submit(ask, client, path, body) for path, body in whole]
            running = [pool.submit(stream.run) for stream in streams]
            until(lambda: all(stream.has(2 + 2 * attempt) for stream in streams), seconds=60)  # noqa: B023
            if [record["server"] for record in status(client)["current"]] == ["big-rpc"] * 7:
                break
            # It was restarted a moment ago: some went to the other one.
            wait([*answers, *running], timeout=60)
        else:
            pytest.fail("big-rpc never had all seven answers")
        worker.kill()
        for future in running:
            future.result(timeout=60)
        # The server has died with its worker: who asks now is answered at once, by the plain target.
        assert client.post(CHAT, json=streams[0].body).headers["x-specrouter-decoding"].startswith("plain; reason=")
        for (_, body), answer in zip(whole, answers, strict=True):
            undisturbed.check(body, text_of(answer.result(timeout=60)))
    for stream in streams:
        undisturbed.check(stream.body, stream.text())
    worker.start()
    big_rpc.restart()


def test_drafts_are_back(client: httpx.Client, undisturbed: Undisturbed) -> None:
    """Without a restart of the router."""
    until_served_by(client, "big-rpc")
    check_drafted(client, undisturbed)


# -- targets ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def mortal(exact_model: Path, start_server: StartServer) -> Iterator[ManagedServer]:
    """A plain target to be killed; every test leaves it running."""
    server = start_server(exact_model, "-c", "2048")
    yield server
    server.stop()


@pytest.fixture(scope="module")
def two_targets(start_router: StartRouter, target: ManagedServer, mortal: ManagedServer) -> httpx.Client:
    """A client of a router whose route `fast` has a second target, and `alone` has none."""
    routes = {"fast": {"target": ["mortal", "big"]}, "alone": {"target": "mortal"}}
    return start_router({"mortal": mortal, "big": target}, routes)


@pytest.mark.parametrize("path", [CHAT, COMPLETION])
def test_target_killed_within_an_answer(
    two_targets: httpx.Client, mortal: ManagedServer, undisturbed: Undisturbed, path: str
) -> None:
    until_served_by(two_targets, "mortal")
    stream = Streamed(two_targets, path, body_for(path, "Describe the Sun."))
    stream.run(at=(5, mortal.kill))
    undisturbed.check(stream.body, stream.text())
    until(lambda: bool(status(two_targets)["recent"]), seconds=10)
    assert status(two_targets)["recent"][0]["takeovers"] == 1
    mortal.restart()


@pytest.mark.parametrize("path", [CHAT, COMPLETION])
def test_the_only_target_killed_within_an_answer(two_targets: httpx.Client, mortal: ManagedServer, path: str) -> None:
    until_served_by(two_targets, "mortal")
    stream = Streamed(two_targets, path, {**body_for(path, "Describe the Sun."), "model": "alone"})
    stream.run(at=(5, mortal.kill))
    assert json.loads(stream.events[-1])["error"]["code"] == "upstream_unavailable"
    mortal.restart()
