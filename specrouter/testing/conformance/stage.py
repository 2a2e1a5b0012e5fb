"""A plugin on a route of a router, made as `specrouter serve` makes it, with fake llama-servers in another thread."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.from_thread
import httpx

from specrouter.app import make_app, serve_in_background
from specrouter.config import LoadedTopology
from specrouter.config.check import Checker
from specrouter.config.model import build_topology
from specrouter.config.source import read_document
from specrouter.errors import PluginError, TopologyError
from specrouter.interfaces import Generation
from specrouter.plugins import PluginRegistry
from specrouter.routing import Router
from specrouter.service import Service
from specrouter.testing.fake_http import Reply
from specrouter.testing.fake_server import FakeServer
from specrouter.types import Sampling
from specrouter.upstream import LlamaServer

from .io_watch import io_of_this_thread
from .rules import Judge, Rule

QUESTION = "Say it."

ROUTE = "under-test"

_CALLS = 10
"""A whole check may take the time of so many calls that are given up."""


class Stage:
    """What one conformance test plays on: the fakes by name, and a router that has the plugin on a route.

    Fakes run in a thread of their own: what runs in this one's event loop is the plugin's. Change their `replies` and
    attributes at will, but call them with `in_fakes`.
    """

    def __init__(
        self,
        judge: Judge,
        portal: anyio.from_thread.BlockingPortal,
        fakes: Mapping[str, FakeServer],
        router: Router,
        patience: float,
    ) -> None:
        self.fakes = fakes
        self.router = router
        self.route = router.routes[ROUTE]
        self.patience = patience
        self._judge = judge
        self._portal = portal

    @property
    def servers(self) -> Mapping[str, LlamaServer]:
        """The fakes as the plugin sees them."""
        return self.router.servers

    @property
    def requests(self) -> int:
        """How many requests all fakes have received."""
        return sum(len(fake.requests) for fake in self.fakes.values())

    def in_fakes(self, call: Callable[[], object]) -> None:
        """Call something in the fakes' thread; if it is a coroutine function, wait for it."""
        self._portal.call(call)

    def reply(self, reply: Reply | None) -> None:
        """Make all fakes answer everything like this; None: as they do."""
        for fake in self.fakes.values():
            fake.replies.clear()
            if reply is not None:
                fake.replies["*"] = reply

    async def ask(self) -> None:
        """Ask the servers about themselves, as the health monitor does."""
        for server in self.servers.values():
            await server.probe()

    async def generation(self, question: str = QUESTION, **changed: Any) -> Generation:
        """A request to the target."""
        target = self.servers["target"]
        prompt = [token.id for token in await target.tokenize(question, add_special=True)]
        sizes = [server.info.n_vocab for server in self.servers.values() if server.info.n_vocab is not None]
        sampling = Sampling(temperature=0)
        given = {"prompt": prompt, "sampling": sampling, "vocabulary_limit": min(sizes), **changed}
        return Generation(route=ROUTE, target=target, **given)

    @contextmanager
    def quiet(self, rule: Rule, call: str) -> Iterator[None]:
        """Whatever the calls within do outside the program breaks a rule; so do tasks that they start."""
        requests, tasks = self.requests, len(asyncio.all_tasks())
        with io_of_this_thread(files=True) as done:
            yield
        self._judge.expect(not done, rule, f"{call} {' and '.join(dict.fromkeys(done))}")
        self._judge.expect(self.requests == requests, rule, f"{call} asks a server")
        self._judge.expect(len(asyncio.all_tasks()) == tasks, rule, f"{call} starts a task")

    async def let_go(self, after: str) -> None:
        """Wait until nothing is left of what a plugin has begun."""
        left = "nothing"
        with anyio.move_on_after(self.patience):
            while True:
                tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
                running = [name for name, fake in self.fakes.items() if fake.running]
                if tasks:
                    left = f"the task {tasks[0].get_coro()!r} still runs"
                elif running:
                    left = f"the server {running[0]!r} is still generating for it"
                else:
                    return
                await anyio.sleep(0.005)
        self._judge.broken(Rule.LETS_GO, f"{after}, {left}")

    @asynccontextmanager
    async def client(self) -> AsyncIterator[httpx.AsyncClient]:
        """A client of the router, which serves as long as the context lasts."""
        service = Service(self.router, make_app)
        async with serve_in_background(service) as url, httpx.AsyncClient(base_url=url, timeout=self.patience) as made:
            yield made


@contextmanager
def open_stage(
    judge: Judge,
    registry: PluginRegistry,
    route: Mapping[str, Any],
    fakes: Mapping[str, Callable[[], FakeServer]],
    patience: float,
) -> Iterator[Stage]:
    """Start the fakes and make the router, in a thread without an event loop."""
    failure: Exception | None = None
    with ExitStack() as stack:
        portal = stack.enter_context(anyio.from_thread.start_blocking_portal())
        started = {
            name: stack.enter_context(portal.wrap_async_context_manager(portal.call(make)))
            for name, make in fakes.items()
        }
        try:
            router = _router(judge, load({name: fake.url for name, fake in started.items()}, route, registry))
            stage = Stage(judge, portal, started, router, patience)
            judge.expect(not stage.requests, Rule.INIT_IS_QUIET, "__init__ asks a server")
            yield stage
        except Exception as error:
            # The fakes would wrap it in a group: they are to end as if nothing was.
            failure = error
    if failure is not None:
        raise failure


def _router(judge: Judge, loaded: LoadedTopology) -> Router:
    with io_of_this_thread(files=False) as done:
        try:
            router = Router(loaded)
        except PluginError as error:
            judge.broken(Rule.OPTIONS_TAKEN, f"it cannot be made with its `options`: {error}")
    judge.expect(not done, Rule.INIT_IS_QUIET, f"__init__ {' and '.join(dict.fromkeys(done))}")
    return router


def play(stage: Stage, judge: Judge, check: Callable[[], Awaitable[None]]) -> None:
    """Run a check in an event loop of its own."""

    async def limited() -> None:
        with anyio.move_on_after(stage.patience * _CALLS) as limit:
            try:
                await check()
            finally:
                await stage.router.aclose()
        if limit.cancelled_caught:
            judge.broken(Rule.COMES_BACK, f"a call has not come back in {stage.patience * _CALLS:g} s")

    anyio.run(limited)


def load(urls: Mapping[str, str], route: Mapping[str, Any], registry: PluginRegistry) -> LoadedTopology:
    """A topology with a route for the plugin and one, `plain`, without. Raises TopologyError."""
    topology = {
        "version": 1,
        "servers": {name: {"url": url} for name, url in urls.items()},
        "routes": {ROUTE: {"target": "target", **route}, "plain": {"target": "target"}},
    }
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "topology.yaml")
        file.write_text(json.dumps(topology), encoding="utf-8")
        document = read_document(file, {})
    # As `load_topology` does, but with plugins that need not be installed.
    checker = Checker(document)
    checker.check_core()
    checker.check_plugins(registry)
    problems = checker.problems()
    if problems:
        raise TopologyError(problems)
    return LoadedTopology(build_topology(file, document.data, {}), registry, ())
