"""Real servers for tests: the demo's own downloads, started and ended by the demo's own code."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

import pytest

from specrouter.demo.downloads import CPU_ONLY, LlamaServerCommand, fetch_model, find_llama_server
from specrouter.demo.processes import ManagedServer

HERE = Path(__file__).parent


class StartServer(Protocol):
    """Starts a llama-server with a model and flags, on the CPU, with one thread unless `-t` says otherwise.

    It runs until the session ends or `stop()` is called. `kill()` ends it as a crash would, `restart()`
    brings it back on the same port. `cores` pins it where the platform can.
    """

    def __call__(self, model: Path, *flags: str, cores: Sequence[int] | None = None) -> ManagedServer: ...


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
