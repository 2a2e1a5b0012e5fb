"""The pages that people read, and the code blocks in them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
CONFIGS = sorted((ROOT / "config").glob("*.yaml"))

# What the examples take from the environment.
ENVIRONMENT = {
    "SPECROUTER_API_KEY": "test-router-key",
    "BIG_KEY": "test-big-key",
    "LAPTOP_KEY": "test-laptop-key",
    "TEAM_KEY": "test-team-key",
}

_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced code block; `line` is that of its first line of code."""

    page: Path
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{name(self.page)}:{self.line}"

    @property
    def file_name(self) -> str | None:
        """The name that a first line `# name.py` gives the file."""
        found = re.match(r"# (\w+\.py)\n", self.text)
        return found[1] if found is not None else None


def name(page: Path) -> str:
    """A page as people call it."""
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path, language: str) -> Iterator[Block]:
    """The code blocks of a page in a language."""
    text = page.read_text(encoding="utf-8")
    for found in _BLOCK.finditer(text):
        if found[1] == language:
            yield Block(page, text.count("\n", 0, found.start(2)) + 1, language, found[2])


def topologies(page: Path) -> list[Block]:
    """The whole topologies among the YAML blocks."""
    return [block for block in blocks(page, "yaml") if re.search(r"^version:", block.text, re.MULTILINE)]


def write_python_files(page: Path, folder: Path) -> None:
    """The page's plugin files, where a topology of the page looks for them."""
    for block in blocks(page, "python"):
        if block.file_name is not None:
            (folder / block.file_name).write_text(block.text, encoding="utf-8")
