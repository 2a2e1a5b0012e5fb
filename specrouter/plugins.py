"""Loading plugins (the only file that talks to pluggy) and calling them safely."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.machinery
import importlib.metadata
import importlib.util
import inspect
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, Generic, TypeVar

import jsonschema
import pluggy

from . import hookspecs
from .errors import PluginError, SpecrouterError
from .interfaces import AcceptancePolicy, DraftStrategy, NativeVerifier, Plugin, StepVerifier, TokenizerCheck

ENTRY_POINT_GROUP = "specrouter"

KINDS: Mapping[str, tuple[str, tuple[type[Plugin], ...]]] = {
    "draft": ("specrouter_draft_strategies", (DraftStrategy,)),
    "verify": ("specrouter_verifiers", (NativeVerifier, StepVerifier)),
    "accept": ("specrouter_acceptance_policies", (AcceptancePolicy,)),
    "tokenizer_check": ("specrouter_tokenizer_checks", (TokenizerCheck,)),
}
"""The key in the YAML → (hook that brings such classes, the base classes they may have)."""

RESERVED_NAMES = {"auto"}

P = TypeVar("P", bound=Plugin)


@dataclass(frozen=True, slots=True)
class PluginInfo:
    """A plugin that is installed and usable: its class and where it comes from."""

    kind: str
    name: str
    cls: type[Plugin]
    distribution: str
    version: str

    @property
    def summary(self) -> str:
        """The first line of the class's docstring."""
        return (inspect.getdoc(self.cls) or "").partition("\n")[0]

    @property
    def is_lossless(self) -> bool:
        """False only for an acceptance policy that may change the target's answer."""
        return getattr(self.cls, "is_lossless", True)

    def __str__(self) -> str:
        return f"{self.kind} plugin {self.name!r} ({self.distribution} {self.version})"


@dataclass(frozen=True, slots=True)
class Bound(Generic[P]):
    """A plugin made for one route, what it is called when it raises, and the `parts` that its options name."""

    info: PluginInfo
    plugin: P
    parts: Sequence[Bound[Any]] = ()

    def all(self) -> Iterator[Bound[Any]]:
        """This one, its parts, and theirs."""
        yield self
        for part in self.parts:
            yield from part.all()


class PluginRegistry:
    """The plugins that could be loaded, by kind and name, and what was wrong with the others."""

    def __init__(self, infos: Sequence[PluginInfo], problems: Sequence[str]) -> None:
        self._by_name = {(info.kind, info.name): info for info in infos}
        self.problems = tuple(problems)

    def __iter__(self) -> Iterator[PluginInfo]:
        return iter(self._by_name.values())

    def names(self, kind: str) -> list[str]:
        """The names that `use:` may have for a kind ("draft", "verify", "accept", "tokenizer_check")."""
        return sorted(name for found, name in self._by_name if found == kind)

    def find(self, kind: str, name: str) -> PluginInfo | None:
        """The plugin of that kind and name, or None."""
        return self._by_name.get((kind, name))


@contextlib.contextmanager
def guard(info: PluginInfo) -> Iterator[None]:
    """Turn whatever a plugin raises into a PluginError that names plugin and distribution.

    What explains itself (an upstream server that went away) passes as it is.
    """
    try:
        yield
    except SpecrouterError:
        raise
    except Exception as error:
        raise PluginError(f"{info} raised {type(error).__name__}: {error}") from error


def load_plugins(files: Sequence[Path] = ()) -> PluginRegistry:
    """Load all installed plugins (entry points of group `specrouter`) and the given Python files.

    Nothing is raised for a faulty plugin: it is left out and named in `registry.problems`, the others load.
    """
    collector = _Collector()
    entry_points = importlib.metadata.entry_points(group=ENTRY_POINT_GROUP)
    # Ours first, so that it is the stranger's name that is reported as taken.
    for entry_point in sorted(entry_points, key=lambda entry: (_distribution(entry)[0] != "specrouter", entry.name)):
        distribution, version = _distribution(entry_point)
        source = f"plugin {entry_point.name!r} of {distribution} {version}"
        with collector.reporting(source):
            collector.add(entry_point.load(), source, distribution, version)
    for index, file in enumerate(files):
        source = f"plugin file {file}"
        if file.resolve() in [earlier.resolve() for earlier in files[:index]]:
            collector.problems.append(f"{source}: is listed twice")
            continue
        with collector.reporting(source):
            collector.add(_import_file(file), source, file.name, "file")
    return PluginRegistry(collector.infos, collector.problems)


class _Collector:
    def __init__(self) -> None:
        self.infos: list[PluginInfo] = []
        self.problems: list[str] = []
        self._manager = pluggy.PluginManager("specrouter")
        self._manager.add_hookspecs(hookspecs)

    @contextlib.contextmanager
    def reporting(self, source: str) -> Iterator[None]:
        """Whatever goes wrong while a plugin loads is written down under its name."""
        try:
            yield
        except PluginError as error:
            self._problem(source, str(error))
        except SyntaxError as error:
            self._problem(source, f"{error.filename}:{error.lineno}: {error.msg}")
        except (Exception, SystemExit) as error:
            self._problem(source, f"cannot be imported: {type(error).__name__}: {error}{_where(error)}")

    def _problem(self, source: str, message: str) -> None:
        # Strangers' exceptions have any number of lines, a problem has one.
        self.problems.append(" ".join(f"{source}: {message}".split()))

    def add(self, module: ModuleType, source: str, distribution: str, version: str) -> None:
        if not isinstance(module, ModuleType):
            raise PluginError(f"the entry point must name a module, not {module!r}")
        self._check_hooks(module)
        if self._manager.is_registered(module):
            raise PluginError(f"module {module.__name__} is already loaded, by another entry point")
        try:
            self._manager.register(module)
        except pluggy.PluginValidationError as error:
            if self._manager.is_registered(module):  # Older versions of pluggy leave it half registered.
                self._manager.unregister(module)
            raise PluginError(f"{str(error).partition(chr(10))[0]}: a hook takes no arguments") from error
        others = [other for other in self._manager.get_plugins() if other is not module]
        for kind, (hook, bases) in KINDS.items():
            # Called one by one and not through pluggy, which would drop None, a forgotten `return`.
            for implementation in self._manager.subset_hook_caller(hook, others).get_hookimpls():
                with self.reporting(source):
                    classes = _call_hook(hook, implementation.function)
                    self._add_classes(kind, bases, classes, source, distribution, version)

    def _check_hooks(self, module: ModuleType) -> None:
        known = [hook for hook, _ in KINDS.values()]
        marked = [name for name in dir(module) if hasattr(getattr(module, name), "specrouter_impl")]
        unmarked = [name for name in known if callable(getattr(module, name, None)) and name not in marked]
        unknown = [name for name in marked if name not in known]
        unknown += [name for name in dir(module) if name.startswith("specrouter_") and name not in known]
        if unknown:
            raise PluginError(f"{unknown[0]} is not a hook; the hooks are {', '.join(known)}")
        if unmarked:
            raise PluginError(f"{unmarked[0]} is not marked with @hookimpl")
        if not marked:
            raise PluginError(f"has no hook, a function marked with @hookimpl ({', '.join(known)})")

    def _add_classes(
        self, kind: str, bases: tuple[type[Plugin], ...], classes: object, source: str, distribution: str, version: str
    ) -> None:
        if not isinstance(classes, Sequence):
            raise PluginError(f"{KINDS[kind][0]} must return a list of classes, not {classes!r}")
        for cls in classes:
            with self.reporting(source):
                _check_class(kind, bases, cls)
                taken = next((info for info in self.infos if (info.kind, info.name) == (kind, cls.name)), None)
                if taken is not None:
                    raise PluginError(f"the {kind} name {cls.name!r} is already taken by {taken}")
                self.infos.append(PluginInfo(kind, cls.name, cls, distribution, version))


def _call_hook(hook: str, function: Callable[[], object]) -> object:
    try:
        return function()
    except (Exception, SystemExit) as error:
        raise PluginError(f"{hook} raised {type(error).__name__}: {error}{_where(error)}") from error


def _check_class(kind: str, bases: tuple[type[Plugin], ...], cls: Any) -> None:
    if not (isinstance(cls, type) and issubclass(cls, bases)):
        wanted = " or ".join(f"specrouter.interfaces.{base.__name__}" for base in bases)
        raise PluginError(f"{cls!r} is not a subclass of {wanted}")
    name = getattr(cls, "name", None)
    if not isinstance(name, str) or not name:
        raise PluginError(f"class {cls.__name__} has no `name`, the word the YAML uses for it")
    if not re.fullmatch(r"[A-Za-z0-9._-]+", name):
        raise PluginError(f"class {cls.__name__} is named {name!r}; letters, digits, `.`, `_` and `-` are allowed")
    if name in RESERVED_NAMES:
        raise PluginError(f"class {cls.__name__} is named {name!r}, which specrouter keeps for itself")
    missing = sorted(getattr(cls, "__abstractmethods__", ()))
    if missing:
        raise PluginError(f"class {cls.__name__} ({kind} {name!r}) lacks the method {', '.join(missing)}")
    try:
        jsonschema.Draft202012Validator.check_schema(dict(cls.options_schema))
    except (jsonschema.SchemaError, TypeError, ValueError) as error:
        text = getattr(error, "message", str(error))
        raise PluginError(f"class {cls.__name__}: options_schema is not a JSON schema: {text}") from error
    if cls.options_schema.get("type") != "object":
        raise PluginError(f"class {cls.__name__}: options_schema must have `type: object`, options are a mapping")


def _distribution(entry_point: importlib.metadata.EntryPoint) -> tuple[str, str]:
    found = entry_point.dist
    return (found.name, found.version) if found is not None else ("unknown distribution", "?")


class _FileLoader(importlib.machinery.SourceFileLoader):
    """Runs this source. A cache of byte code would take a file that is changed twice within a second for the same."""

    def __init__(self, name: str, file: Path, source: bytes) -> None:
        super().__init__(name, str(file))
        self._source = source

    def get_code(self, _: str) -> CodeType:
        return self.source_to_code(self._source, self.path)


def _import_file(file: Path) -> ModuleType:
    if not file.is_file():
        raise PluginError("there is no such file")
    if file.suffix != ".py":
        raise PluginError("is not a Python file (its name should end in .py)")
    source = file.read_bytes()
    # Named after path and content: two topologies may each bring a `my_drafts.py`, and a reload of an unchanged file
    # finds the module there is, so that whatever was made from its classes can be kept.
    digest = hashlib.sha256(bytes(file.resolve()) + b"\0" + source).hexdigest()
    name = f"specrouter_plugin_file_{file.stem}_{digest[:16]}"
    if name in sys.modules:
        return sys.modules[name]
    loader = _FileLoader(name, file, source)
    spec = importlib.util.spec_from_file_location(name, file, loader=loader)
    assert spec is not None, "there is a loader"
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        loader.exec_module(module)
    except BaseException:
        sys.modules.pop(name, None)
        raise
    return module


_MACHINERY = ("<frozen importlib._bootstrap>", __file__, importlib.__file__, importlib.metadata.__file__)


def _where(error: BaseException) -> str:
    # The machinery is where an import fails, but it says nothing about the reason.
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename not in _MACHINERY]
    return f" (at {frames[-1].filename}:{frames[-1].lineno})" if frames else ""
