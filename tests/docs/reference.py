"""Writes the generated parts of pages: `python tests/docs/reference.py`. A test fails when they are old."""

from __future__ import annotations

import ast
import inspect
import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, TypeGuard

import click
import predictions

from specrouter import hookspecs, interfaces, testing, types, upstream
from specrouter.cli import main
from specrouter.metrics import FAMILIES
from specrouter.plugins import KINDS, PluginInfo, load_plugins

DOCS = Path(__file__).resolve().parent.parent.parent / "docs"

_PART = re.compile(r"(<!-- generated: (\w+) -->\n).*?(?=<!-- end -->)", re.DOTALL)


def generated(page: Path) -> str:
    """The text of a page with its generated parts as they should be."""
    return _PART.sub(lambda found: f"{found[1]}\n{_PARTS[found[2]]()}", page.read_text(encoding="utf-8"))


def pages() -> list[Path]:
    """The pages that have generated parts."""
    return [page for page in sorted(DOCS.rglob("*.md")) if _PART.search(page.read_text(encoding="utf-8"))]


# -- the command line --------------------------------------------------------------------------------------


_SETTINGS: dict[str, Any] = {"terminal_width": 100, "max_content_width": 100, **main.context_settings}


def _commands() -> str:
    context = click.Context(main, info_name="specrouter", **_SETTINGS)
    parts = [_help(main, context)]
    for name in main.list_commands(context):
        command = main.get_command(context, name)
        assert command is not None
        below = click.Context(command, info_name=name, parent=context, **_SETTINGS)
        parts.append(_help(command, below))
    return "".join(parts)


def _help(command: click.Command, context: click.Context) -> str:
    return f"## {context.command_path}\n\n```text\n{command.get_help(context)}\n```\n\n"


# -- the code ----------------------------------------------------------------------------------------------


def _hooks() -> str:
    return "".join(_block(node) for node in _nodes(hookspecs) if isinstance(node, ast.FunctionDef))


def _interfaces() -> str:
    return "".join(_block(node) for node in _nodes(interfaces) if isinstance(node, ast.ClassDef))


def _types() -> str:
    return "".join(_block(node) for node in _nodes(types) if isinstance(node, ast.ClassDef))


def _server() -> str:
    return "".join(_block(node) for node in _nodes(upstream) if _is_named(node, "LlamaServer"))


def _bundled() -> str:
    ours = [info for info in load_plugins() if info.distribution == "specrouter"]
    rows = (row for kind in KINDS for info in ours if info.kind == kind for row in _plugin_rows(info))
    return "\n".join(["| plugin | option | default | what |", "| --- | --- | --- | --- |", *rows, "", ""])


def _plugin_rows(info: PluginInfo) -> Iterator[str]:
    schema = info.cls.options_schema
    yield f"| **`{info.name}`** | | | {info.summary} |"
    for name, option in schema.get("properties", {}).items():
        default = "required" if name in schema.get("required", ()) else _default(option)
        yield f"| | `{name}` | {default} | {option['description']} |"


def _default(option: Mapping[str, Any]) -> str:
    return f"`{json.dumps(option['default'])}`" if "default" in option else ""


# -- for tests -----------------------------------------------------------------------------------------


def _rules() -> str:
    rows = (f"| `{rule.name}` | {rule.value} |" for rule in testing.Rule)
    return "\n".join(["| rule | |", "| --- | --- |", *rows, "", ""])


def _conformance() -> str:
    kits = [name for name in testing.__all__ if name.endswith("Conformance")]
    # What all have comes first.
    return "".join(_kit(name) for name in sorted(kits, key=lambda name: len(getattr(testing, name).mro())))


def _kit(name: str) -> str:
    node = _defined(name)
    assert isinstance(node, ast.ClassDef)
    tests = [f"- `{test.name}`: {ast.get_docstring(test)}\n" for test in node.body if _is_test(test)]
    node.body = [member for member in node.body if not _is_test(member)]
    return _block(node) + "".join([*tests, "\n"])


def _is_test(node: ast.stmt) -> TypeGuard[ast.FunctionDef | ast.AsyncFunctionDef]:
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")


def _testing() -> str:
    names = [name for name in testing.__all__ if not name.endswith("Conformance") and name != "Rule"]
    return "".join(_block(_defined(name)) for name in sorted(names, key=str.lower))


def _defined(name: str) -> ast.stmt:
    """Where a name of `specrouter.testing` is defined."""
    files = sorted(Path(testing.__file__).parent.rglob("*.py"))
    nodes = [node for file in files for node in ast.parse(file.read_text("utf-8")).body]
    (found,) = [node for node in nodes if _is_named(node, name)]
    return found


def _is_named(node: ast.stmt, name: str) -> bool:
    if isinstance(node, ast.Assign):
        return ast.unparse(node.targets[0]) == name
    return isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name


# -- metrics -----------------------------------------------------------------------------------------------


def _metrics() -> str:
    rows = []
    for family in FAMILIES:
        labels = ", ".join(f"`{label}`" for label in family.labels)
        rows.append(f"| `{family.exported}` | {family.kind} | {labels} | {family.help} |")
    return "\n".join(["| name | kind | labels | what |", "| --- | --- | --- | --- |", *rows, "", ""])


_PARTS: dict[str, Callable[[], str]] = {
    "metrics": _metrics,
    "commands": _commands,
    "bundled": _bundled,
    "hooks": _hooks,
    "interfaces": _interfaces,
    "types": _types,
    "server": _server,
    "rules": _rules,
    "conformance": _conformance,
    "testing": _testing,
    "least": predictions.least,
    "machines": predictions.machines,
    "clients": predictions.clients,
    "distance": predictions.distance,
}


def _nodes(module: ModuleType) -> list[ast.stmt]:
    return ast.parse(inspect.getsource(module)).body


def _block(node: ast.stmt) -> str:
    if isinstance(node, ast.Assign):
        return f"### {ast.unparse(node.targets[0])}\n\n```python\n{ast.unparse(node)}\n```\n\n"
    assert isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    code = "\n".join(_stub(node))
    return f"### {node.name}\n\n```python\n{code}\n```\n\n"


def _stub(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    """The source without function bodies and private members."""
    for decorator in node.decorator_list:
        yield f"@{ast.unparse(decorator)}"
    yield from _head(node)
    documentation = ast.get_docstring(node)
    body = [line for member in node.body for line in _member(member)] if isinstance(node, ast.ClassDef) else ["..."]
    if documentation is not None:
        quoted = f'"""{documentation}"""' if "\n" not in documentation else f'"""{documentation}\n"""'
        yield from _indented(quoted.split("\n"))
        body = body if body != ["..."] else []
        if body and body[0]:
            yield ""
    yield from _indented(body)


def _head(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    if isinstance(node, ast.ClassDef):
        bases = ", ".join(ast.unparse(base) for base in node.bases)
        yield f"class {node.name}({bases}):" if bases else f"class {node.name}:"
        return
    word = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
    result = f" -> {ast.unparse(node.returns)}" if node.returns is not None else ""
    yield f"{word} {node.name}({ast.unparse(node.args)}){result}:"


def _member(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not _is_private(node.name):
        yield ""
        yield from _stub(node)
    elif isinstance(node, ast.AnnAssign | ast.Assign):
        yield ast.unparse(node)


def _is_private(name: str) -> bool:
    return name.startswith("_") and name != "__init__"


def _indented(lines: list[str]) -> Iterator[str]:
    yield from (f"    {line}" if line else "" for line in lines)


if __name__ == "__main__":
    for page in pages():
        page.write_text(generated(page), encoding="utf-8")
