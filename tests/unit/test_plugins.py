"""Loading plugins: what is found, and what is said of plugins that cannot be used."""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path

import pytest

from specrouter import plugins
from specrouter.errors import PluginError

GOOD = """
from specrouter.hookspecs import hookimpl
from specrouter.interfaces import TokenizerCheck

class Check(TokenizerCheck):
    '''Looks.

    At length.
    '''

    name = "NAME"

    async def check(self, draft, target):
        return []

@hookimpl
def specrouter_tokenizer_checks():
    return [Check]
"""


@pytest.fixture
def entry_points(monkeypatch: pytest.MonkeyPatch):
    """Replace the installed plugins: none, or those that the test names."""

    def install(*named: tuple[str, str]) -> None:
        found = [importlib.metadata.EntryPoint(name, value, "specrouter") for name, value in named]
        monkeypatch.setattr("importlib.metadata.entry_points", lambda group: found)

    install()
    return install


def write(path: Path, text: str, name: str = "looks") -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text.replace("NAME", name), encoding="utf-8")
    return path


def only_problem(path: Path) -> str:
    """What is said of a plugin file, without where it is."""
    registry = plugins.load_plugins([path])
    assert list(registry) == []
    (problem,) = registry.problems
    assert problem.isprintable()
    assert problem.startswith(f"plugin file {path}: ")
    return problem.removeprefix(f"plugin file {path}: ").replace(f"{path}", "FILE")


def test_a_file(tmp_path: Path, entry_points) -> None:
    registry = plugins.load_plugins([write(tmp_path / "mine.py", GOOD)])
    assert registry.problems == ()
    (info,) = registry
    assert (info.kind, info.name, info.distribution, info.version) == (
        "tokenizer_check",
        "looks",
        "mine.py",
        "file",
    )
    assert info.summary == "Looks."
    assert info.is_lossless
    assert registry.names("tokenizer_check") == ["looks"]
    assert registry.find("tokenizer_check", "looks") is info
    assert registry.find("draft", "looks") is None


def test_files_of_one_name(tmp_path: Path, entry_points) -> None:
    one = write(tmp_path / "a" / "mine.py", GOOD, "one")
    two = write(tmp_path / "b" / "mine.py", GOOD, "two")
    registry = plugins.load_plugins([one, two])
    assert registry.problems == ()
    assert registry.names("tokenizer_check") == ["one", "two"]
    first, second = registry
    assert first.cls.__module__ != second.cls.__module__


def test_loading_again_takes_the_new_text(tmp_path: Path, entry_points) -> None:
    path = write(tmp_path / "mine.py", GOOD, "before")
    assert plugins.load_plugins([path]).names("tokenizer_check") == ["before"]
    write(path, GOOD, "afterwards")
    assert plugins.load_plugins([path]).names("tokenizer_check") == ["afterwards"]


def test_a_faulty_plugin_leaves_the_others_alone(tmp_path: Path, entry_points) -> None:
    bad = write(tmp_path / "bad.py", "1 / 0")
    good = write(tmp_path / "good.py", GOOD)
    registry = plugins.load_plugins([bad, good])
    assert registry.names("tokenizer_check") == ["looks"]
    assert len(registry.problems) == 1


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (("", ""), None),
        (
            ("'''Looks.", "1 / 0\n    '''Looks."),
            "cannot be imported: ZeroDivisionError: division by zero (at FILE:6)",
        ),
        (("class", "raise SystemExit(3)\nclass"), "cannot be imported: SystemExit: 3 (at FILE:5)"),
        (
            ("class", "import no_such\nclass"),
            "cannot be imported: ModuleNotFoundError: No module named 'no_such' (at FILE:5)",
        ),
        (("class", "raise OSError('one\\ntwo')\nclass"), "cannot be imported: OSError: one two (at FILE:5)"),
        (("class Check", "class class"), "FILE:5: invalid syntax"),
        (
            ("specrouter_tokenizer_checks", "specrouter_tokeniser_checks"),
            "specrouter_tokeniser_checks is not a hook; the hooks are specrouter_draft_strategies, "
            "specrouter_verifiers, specrouter_acceptance_policies, specrouter_tokenizer_checks",
        ),
        (("def specrouter_tokenizer_checks", "def checks"), "checks is not a hook; the hooks are"),
        (("@hookimpl\n", ""), "specrouter_tokenizer_checks is not marked with @hookimpl"),
        (
            ("@hookimpl\ndef specrouter_tokenizer_checks", "def checks"),
            "has no hook, a function marked with @hookimpl (specrouter_draft_strategies,",
        ),
        (("checks():", "checks(config):"), "a hook takes no arguments"),
        (
            ("return [Check]", "return Check"),
            "specrouter_tokenizer_checks must return a list of classes, not <class",
        ),
        (
            ("return [Check]", "[Check]"),
            "specrouter_tokenizer_checks must return a list of classes, not None",
        ),
        (
            ("return [Check]", "raise KeyError('x')"),
            "specrouter_tokenizer_checks raised KeyError: 'x' (at FILE:18)",
        ),
        (("return [Check]", "return [3]"), "3 is not a subclass of specrouter.interfaces.TokenizerCheck"),
        (("Check(TokenizerCheck)", "Check"), "is not a subclass of specrouter.interfaces.TokenizerCheck"),
        (("name = ", "nome = "), "class Check has no `name`, the word the YAML uses for it"),
        (('"NAME"', '""'), "class Check has no `name`, the word the YAML uses for it"),
        (
            ("NAME", "my check"),
            "class Check is named 'my check'; letters, digits, `.`, `_` and `-` are allowed",
        ),
        (("NAME", "auto"), "class Check is named 'auto', which specrouter keeps for itself"),
        (("def check", "def cheque"), "class Check (tokenizer_check 'looks') lacks the method check"),
        (("return [Check]", "return [Check, Check]"), None),
        (
            ('"NAME"', '"NAME"\n    options_schema = {"type": "objekt"}'),
            "class Check: options_schema is not a JSON schema: 'objekt' is not valid under any of",
        ),
        (
            ('"NAME"', '"NAME"\n    options_schema = 3'),
            "class Check: options_schema is not a JSON schema: 'int'",
        ),
        (
            ('"NAME"', '"NAME"\n    options_schema = {"type": "array"}'),
            "class Check: options_schema must have `type: object`, options are a mapping",
        ),
    ],
)
def test_problems(tmp_path: Path, entry_points, change: tuple[str, str], problem: str | None) -> None:
    path = write(tmp_path / "mine.py", GOOD.replace(*change, 1))
    if problem is None:
        registry = plugins.load_plugins([path])
        assert registry.names("tokenizer_check") == ["looks"]
        return
    assert problem in only_problem(path)


def test_a_name_that_is_taken(tmp_path: Path, entry_points) -> None:
    registry = plugins.load_plugins([write(tmp_path / "one.py", GOOD), write(tmp_path / "two.py", GOOD)])
    assert [info.distribution for info in registry] == ["one.py"]
    assert registry.problems == (
        f"plugin file {tmp_path / 'two.py'}: the tokenizer_check name 'looks' is already taken by "
        "tokenizer_check plugin 'looks' (one.py file)",
    )


def test_no_file_and_no_python_file(tmp_path: Path, entry_points) -> None:
    assert only_problem(tmp_path / "none.py") == "there is no such file"
    assert only_problem(write(tmp_path / "mine.txt", GOOD)) == "is not a Python file (its name should end in .py)"


def test_entry_points(tmp_path: Path, entry_points, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "a_stranger_module.py", GOOD)
    monkeypatch.syspath_prepend(tmp_path)
    entry_points(
        ("again", "a_stranger_module"),
        ("class", "a_stranger_module:Check"),
        ("gone", "no_such_module"),
        ("named", "a_stranger_module"),
    )
    registry = plugins.load_plugins()
    monkeypatch.delitem(sys.modules, "a_stranger_module")
    assert registry.names("tokenizer_check") == ["looks"]
    assert registry.problems == (
        "plugin 'class' of unknown distribution ?: the entry point must name a module, "
        "not <class 'a_stranger_module.Check'>",
        "plugin 'gone' of unknown distribution ?: cannot be imported: ModuleNotFoundError: "
        "No module named 'no_such_module'",
        "plugin 'named' of unknown distribution ?: module a_stranger_module is already loaded, by another entry point",
    )


def test_guard_names_the_plugin(tmp_path: Path, entry_points) -> None:
    (info,) = plugins.load_plugins([write(tmp_path / "mine.py", GOOD)])
    with (
        pytest.raises(PluginError, match=r"tokenizer_check plugin 'looks' \(mine.py file\) raised KeyError: 1"),
        plugins.guard(info),
    ):
        raise KeyError(1)
    with pytest.raises(PluginError, match=r"^as it is$"), plugins.guard(info):
        raise PluginError("as it is")
