"""Writes the generated parts of docs/reference: `python tests/docs/reference.py`. A test fails when they are old."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import click

from specrouter import hookspecs, interfaces, types
from specrouter.cli import main

REFERENCE = Path(__file__).resolve().parent.parent.parent / "docs" / "reference"

_PART = re.compile(r"(<!-- generated: (\w+) -->\n).*?(?=<!-- end -->)", re.DOTALL)


def generated(page: Path) -> str:
    """The text of a page with its generated parts as they should be."""
    return _PART.sub(lambda found: f"{found[1]}\n{_PARTS[found[2]]()}", page.read_text(encoding="utf-8"))


def pages() -> list[Path]:
    """The pages that have generated parts."""
    return [page for page in sorted(REFERENCE.glob("*.md")) if _PART.search(page.read_text(encoding="utf-8"))]


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


_PARTS: dict[str, Callable[[], str]] = {
    "commands": _commands,
    "hooks": _hooks,
    "interfaces": _interfaces,
    "types": _types,
}


def _nodes(module: ModuleType) -> list[ast.stmt]:
    return ast.parse(inspect.getsource(module)).body


def _block(node: ast.stmt) -> str:
    assert isinstance(node, ast.ClassDef | ast.FunctionDef)
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
