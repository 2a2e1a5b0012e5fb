"""The reference for authors of plugins is complete."""

from __future__ import annotations

import re
from types import ModuleType

import pages
import pytest

from specrouter import hookspecs, interfaces, testing, types, upstream

REFERENCE = pages.ROOT / "docs" / "reference"


def defined(module: ModuleType) -> set[str]:
    """The public classes and functions of a module."""
    named = {name for name, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__}
    return {name for name in named if not name.startswith("_")}


PLUGINS = defined(hookspecs) | defined(interfaces) | defined(types) | {upstream.LlamaServer.__name__}
TESTING = set(testing.__all__) - {testing.Rule.__name__}  # The rules are a table of their own.


@pytest.mark.parametrize(("page", "names"), [("plugins.md", PLUGINS), ("testing.md", TESTING)])
def test_everything_public_is_there(page: str, names: set[str]) -> None:
    text = (REFERENCE / page).read_text("utf-8")
    assert len(names) > 10
    assert set(re.findall(r"^### (\w+)$", text, re.MULTILINE)) == names


def test_all_rules_are_there() -> None:
    text = (REFERENCE / "plugins.md").read_text("utf-8")
    assert [rule.name for rule in testing.Rule if f"| `{rule.name}` | {rule.value} |" not in text] == []
