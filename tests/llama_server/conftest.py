"""Real servers for tests: the demo's own downloads, started and ended by the demo's own code."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from anyio.from_thread import start_blocking_portal
from llama_support import Reference, StartRouter, StartServer, drafting, until_decoding, write_topology

from specrouter.app import serve_in_background
from specrouter.demo.downloads import CPU_ONLY, LlamaServerCommand, fetch_model, find_llama_server
from specrouter.demo.processes import ManagedServer
from specrouter.demo.twin import make_twin
from specrouter.governor import Speed
from specrouter.ngram_pool import FLAGS
from specrouter.step_cost import StepCost

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.llama_server)


@pytest.fixture(scope="session")
def llama_command() -> LlamaServerCommand:
    """The llama-server that the tests run."""
    return find_llama_server()


@pytest.fixture(scope="session")
def model_file() -> Path:
    """The small model that the tests use as target and as draft."""
    return fetch_model()


@pytest.fixture(scope="session")
def start_server(llama_command: LlamaServerCommand, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartServer]:
    """See StartServer. Stop a server when its test or module is done: idle ones keep their memory."""
    logs = tmp_path_factory.mktemp("servers")
    with contextlib.ExitStack() as stack:

        def start(model: Path, *flags: str, cores: Sequence[int] | None = None) -> ManagedServer:
            number = len(list(logs.iterdir()))
            threads = () if {"-t", "--threads"} & set(flags) else ("-t", "1")
            server = ManagedServer(
                [*llama_command.prefix, "-m", str(model), *threads, *flags, *CPU_ONLY],
                name=f"test server {number}",
                log=logs / f"{number}.log",
                cores=cores,
            )
            stack.callback(server.stop)
            server.start()
            return server

        yield start


@pytest.fixture(scope="session")
def exact_model(model_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small model in F16. Quantised to 4 bits, it flips gaps of 0.2 nats as soon as a server has two requests."""
    file = tmp_path_factory.mktemp("models") / "exact.gguf"
    make_twin(model_file, file, factor=1, type="F16")
    return file


@pytest.fixture(scope="session")
def target(exact_model: Path, start_server: StartServer) -> ManagedServer:
    """A target that verifies drafts. No test stops it."""
    # Between two batches of a prompt, not within one, a server notices that its client has left.
    return start_server(exact_model, "-c", "8192", "-b", "256", *FLAGS.split())


@pytest.fixture(scope="session")
def drafter(exact_model: Path, start_server: StartServer) -> ManagedServer:
    """A server with the same model and without any flag for drafts. No test stops it."""
    return start_server(exact_model, "-c", "8192", "-b", "256")


@pytest.fixture(scope="session")
def reference(drafter: ManagedServer) -> Iterator[Reference]:
    """See Reference."""
    with contextlib.closing(Reference(drafter)) as reference:
        yield reference


@pytest.fixture
def drafts_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches seem to cost nothing. Whether drafts pay here, with a drafter as slow as the target, is not asked."""
    monkeypatch.setattr(StepCost, "of", lambda *_, **__: 0.0)
    monkeypatch.setattr(Speed, "is_loss", False)


@pytest.fixture(scope="module")
def start_router(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartRouter]:
    """See StartRouter."""
    with contextlib.ExitStack() as stack:

        def start(
            servers: Mapping[str, ManagedServer | Mapping[str, Any]], routes: Mapping[str, Any], **listen: Any
        ) -> httpx.Client:
            file = write_topology(tmp_path_factory.mktemp("router") / "topology.yaml", servers, routes, **listen)
            portal = stack.enter_context(start_blocking_portal())
            url = stack.enter_context(portal.wrap_async_context_manager(serve_in_background(file)))
            return stack.enter_context(httpx.Client(base_url=url, trust_env=False, timeout=120))

        yield start


@pytest.fixture(scope="module")
def router(start_router: StartRouter, target: ManagedServer, drafter: ManagedServer) -> httpx.Client:
    """A client of a router whose route `fast` drafts, and `plain` does not; both have the same target."""
    client = start_router({"big": target, "laptop": drafter}, {"fast": drafting(), "plain": {"target": "big"}})
    until_decoding(client, "inject")
    return client
