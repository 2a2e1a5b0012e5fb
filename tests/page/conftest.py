"""A router before fake servers, in a thread of its own, and a browser that looks at its page."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from browser import MISSING, Browser, browser
from page_support import ANSWER, Site

from specrouter.app import serve_in_background
from specrouter.testing import FakeServer, NgramPool, ToyModel

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if MISSING is not None:
        for item in items:
            if item.path.is_relative_to(HERE):
                item.add_marker(pytest.mark.skip(reason=MISSING))


@pytest.fixture(scope="session")
def shared_browser() -> Iterator[Browser]:
    """Starting one takes seconds."""
    with browser() as started:
        yield started


@pytest.fixture
def page(shared_browser: Browser) -> Iterator[Browser]:
    """A browser that remembers nothing of earlier tests, and in the end has nothing to complain about."""
    shared_browser.look()
    yield shared_browser
    complaints = shared_browser.errors()
    # Of the tab; where no page was opened, there is none.
    shared_browser.run("if (location.protocol === 'http:') sessionStorage.clear()")
    shared_browser.open("about:blank")
    assert complaints == []


@pytest.fixture
def portal() -> Iterator[BlockingPortal]:
    """Where fakes and router run."""
    with start_blocking_portal() as started:
        yield started


@pytest.fixture
def site(portal: BlockingPortal, tmp_path: Path) -> Iterator[Site]:
    """See Site."""
    with ExitStack() as stack:

        def fake(says: str = ANSWER, **options: Any) -> FakeServer:
            made = portal.call(partial(FakeServer, ToyModel(says), **options))
            return stack.enter_context(portal.wrap_async_context_manager(made))

        def serve(servers: Mapping[str, FakeServer], routes: Mapping[str, Any], **listen: Any) -> str:
            topology = {
                "version": 1,
                "listen": listen,
                "servers": {name: {"url": server.url} for name, server in servers.items()},
                "routes": dict(routes),
            }
            file = tmp_path / "topology.yaml"
            file.write_text(json.dumps(topology), encoding="utf-8")
            serving = portal.wrap_async_context_manager(serve_in_background(file))
            url = router_stack.enter_context(serving)
            return f"{url}/specrouter/"

        target = fake(pool=NgramPool())
        target.step_seconds = 0.02
        router_stack = stack.enter_context(ExitStack())
        yield Site(portal, target, fake(), fake, serve, router_stack.close)
