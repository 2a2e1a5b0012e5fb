"""What the conformance tests of all kinds of plugin share."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import anyio

from specrouter.errors import PluginError, TopologyError, UpstreamError
from specrouter.interfaces import Plugin
from specrouter.plugins import KINDS, PluginInfo, PluginRegistry, load_plugins
from specrouter.routing import Router
from specrouter.testing.fake_server import FakeServer
from specrouter.testing.toy_model import NgramPool, ToyModel

from .rules import Judge, Rule, RuleBroken
from .stage import Stage, load, open_stage, play

K = TypeVar("K", bound="PluginConformance")

_WORDS = [f" {first}{second}" for first in ("ba", "ko", "mi", "tu") for second in ("da", "fo", "li")]

ANSWER = "".join(_WORDS) * 3
"""36 words, each a token; from the 13th on, it says again what it has said."""

RAISED = object()
"""Not an answer."""

URLS = {"target": "http://127.0.0.1:1", "drafter": "http://127.0.0.1:2"}


def staged(check: Callable[[K, Stage], Awaitable[None]]) -> Callable[[K], None]:
    """Make a test of a check that needs a stage."""

    def test(self: K) -> None:
        self._play(lambda stage: check(self, stage))

    # Without `functools.wraps`: test runners would take the stage for one of their fixtures.
    test.__name__, test.__qualname__, test.__doc__ = check.__name__, check.__qualname__, check.__doc__
    return test


class PluginConformance:
    """Tests for plugins of any kind; subclass that of your kind.

    `options` are those of a route; the servers that they may name are `target` and `drafter`. Both are fake
    llama-servers with the same vocabulary, whose model says `answer` to everything. `patience`, in seconds, is how
    long something may take before it counts as never.

    The tests are plain functions: any test runner that calls methods named `test_…` will do.
    """

    kind: ClassVar[str]
    options: ClassVar[Mapping[str, Any]] = {}
    answer: ClassVar[str] = ANSWER
    patience: ClassVar[float] = 15.0

    @property
    def plugin(self) -> type[Plugin]:
        """The class to test."""
        raise NotImplementedError

    @cached_property
    def _judge(self) -> Judge:
        """Says which rule is broken."""
        return Judge(self.plugin.__name__)

    # -- what to override for a plugin that needs more than the fakes have ----------------------------------

    def make_target(self) -> FakeServer:
        """The fake that answers. Called in an event loop."""
        return FakeServer(ToyModel(self.answer), pool=NgramPool())

    def make_drafter(self) -> FakeServer:
        """The fake that may draft. Called in an event loop."""
        return FakeServer(ToyModel(self.answer))

    # -- the stage -----------------------------------------------------------------------------------------

    @contextmanager
    def _stage(self, **fakes: Callable[[], FakeServer]) -> Iterator[Stage]:
        """The plugin with its options on a route."""
        made = {"target": self.make_target, "drafter": self.make_drafter, **fakes}
        with open_stage(self._judge, self._registry, self._route(self.options), made, self.patience) as stage:
            yield stage

    def _play(self, check: Callable[[Stage], Awaitable[None]], **fakes: Callable[[], FakeServer]) -> None:
        """Run a check on a stage, with other fakes if you like."""
        try:
            with self._stage(**fakes) as stage:
                play(stage, self._judge, lambda: check(stage))
        except RuleBroken as error:
            # Where the kit noticed it is no news to the author of a plugin; what the plugin raised is.
            raise error.with_traceback(None)  # noqa: B904

    async def _despite(self, how: str, question: Callable[[], Awaitable[Any]]) -> Any:
        """What the plugin answers although a server fails, as `how` says: RAISED is an UpstreamError, in time."""
        try:
            with anyio.fail_after(self.patience):
                return await question()
        except UpstreamError:
            return RAISED
        except TimeoutError:
            self._judge.broken(Rule.COMES_BACK, f"{how} waits for ever")
        except Exception as error:
            self._judge.broken(Rule.UPSTREAM_ERRORS, f"{how} raised {error!r}")

    def _use(self, options: Mapping[str, Any]) -> dict[str, Any]:
        return {"use": self.plugin.name, "options": dict(options)}

    def _route(self, options: Mapping[str, Any]) -> dict[str, Any]:
        remote = {"use": "remote", "options": {"server": "drafter"}}
        given = [self._use(options)] if self.kind == "tokenizer_check" else self._use(options)
        return {"draft": remote, "tokenizer_checks" if self.kind == "tokenizer_check" else self.kind: given}

    @property
    def _registry(self) -> PluginRegistry:
        return _registry_with(self.kind, self.plugin)

    # -- tests ---------------------------------------------------------------------------------------------

    def test_it_is_registered(self) -> None:
        """By an installed distribution, or by the file that the class stands in."""
        assert self._registry.find(self.kind, self.plugin.name) is not None

    def test_it_has_a_summary(self) -> None:
        """The docstring's first line."""
        first = (vars(self.plugin).get("__doc__") or "").strip().partition("\n")[0]
        self._judge.expect(bool(first), Rule.SUMMARY, "the class has no docstring of its own")

    def test_it_takes_its_options(self) -> None:
        """The options of the test are good ones, and the plugin is made of them without I/O."""
        try:
            load(URLS, self._route(self.options), self._registry)
        except TopologyError as error:
            self._judge.broken(Rule.OPTIONS_TAKEN, f"its own schema refuses the `options` of this test: {error}")
        with self._stage():
            pass

    def test_it_refuses_wrong_options(self) -> None:
        """Unknown ones, missing ones, servers that are not there, and values of another type."""
        for wrong, why in self._wrong_options():
            try:
                Router(load(URLS, self._route(wrong), self._registry))
            except TopologyError:
                continue
            except PluginError as error:
                if isinstance(error.__cause__, ValueError):
                    continue
                self._judge.broken(Rule.OPTIONS_REFUSED, f"{why} makes `__init__` fail: {error}")
            self._judge.broken(Rule.OPTIONS_REFUSED, f"{why} is not refused")

    def _wrong_options(self) -> Iterator[tuple[dict[str, Any], str]]:
        given = dict(self.options)
        yield {**given, "no_such_option": 1}, "an option that the schema does not know"
        for name in self.plugin.options_schema.get("required", ()):
            yield {key: value for key, value in given.items() if key != name}, f"a missing option {name!r}"
        for name, schema in self.plugin.options_schema.get("properties", {}).items():
            value = "no" if schema.get("type") in ("object", "array") else {"no": "value"}
            yield {**given, name: value}, f"option {name!r} with a value of another type"
        for name, value in given.items():
            if isinstance(value, str) and value in URLS:
                yield {**given, name: "no-such-server"}, f"option {name!r} with a server that the topology lacks"


@functools.cache
def _registry_with(kind: str, plugin: type[Plugin]) -> PluginRegistry:
    """The installed plugins and this one. Raises RuleBroken where nobody could use it."""
    installed = load_plugins()
    if any(info.cls is plugin for info in installed):
        return installed
    # Else a topology has to name its file.
    file = Path(inspect.getfile(plugin))
    registry = load_plugins([file])
    name = getattr(plugin, "name", "")
    found = registry.find(kind, name)
    if found is None or found.cls.__qualname__ != plugin.__qualname__:
        problems = [problem for problem in registry.problems if problem not in installed.problems]
        said = "; ".join(problems) or f"{KINDS[kind][0]} in {file} does not return it"
        Judge(plugin.__name__).broken(Rule.REGISTERED, f"it is not installed, and as a plugin file: {said}")
    others = [info for info in installed if (info.kind, info.name) != (kind, name)]
    return PluginRegistry([*others, PluginInfo(kind, name, plugin, "under test", "0")], ())
