"""The documentation as a site: what `make docs` makes of the pages. That it builds without warnings, .ci/run tries."""

from __future__ import annotations

import importlib.util
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree as ET

import pages
import pytest

IMAGES = sorted((pages.ROOT / "docs" / "images").glob("*.svg"))


@pytest.fixture(scope="module")
def build() -> ModuleType:
    """docs/site/build.py."""
    spec = importlib.util.spec_from_file_location("build", pages.ROOT / "docs" / "site" / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def staged(build: ModuleType) -> dict[str, str]:
    """The pages of the site, by their paths."""
    return {
        path.removeprefix("pages/"): text.decode()
        for path, text in build.staged().items()
        if path.startswith("pages/") and path.endswith(".md")
    }


def leads_to(navigation: Any) -> Iterator[str]:
    """The pages of a navigation."""
    if isinstance(navigation, str):
        yield navigation
    else:
        yield from (page for entry in navigation for below in entry.values() for page in leads_to(below))


def test_the_navigation_leads_to_every_page_once(build: ModuleType, staged: dict[str, str]) -> None:
    sources = build.pages_and_what_they_link_to([build.INDEX, *pages.PAGES[1:]])
    navigation = build.navigation({file: build.page_of(file) for file in sources})
    assert sorted(leads_to(navigation)) == sorted(staged)
    sections = [title for section in navigation for title in section]
    assert sections == ["Home", "Tutorials", "How to", "Reference", "Explanation", "Files"]


def test_a_page_that_the_index_does_not_list_is_named(build: ModuleType) -> None:
    new = build.DOCS / "how-to" / "new.md"
    with pytest.raises(SystemExit, match=r"does not list new\.md"):
        build.navigation({**{file: build.page_of(file) for file in pages.PAGES[1:]}, new: "how-to/new.md"})


def test_links_lead_to_pages_of_the_site(staged: dict[str, str]) -> None:
    """Topologies are pages too: the link that works in the repository works here."""
    files = {file.relative_to(pages.ROOT / "docs").as_posix() for file in (pages.ROOT / "docs").rglob("*.*")}
    to_topologies = 0
    for page, text in staged.items():
        for link in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)):
            if re.match(r"[a-z]+:|#", link):
                continue
            path = posixpath.normpath(posixpath.join(posixpath.dirname(page), link.partition("#")[0]))
            assert path in staged or path in files, (page, link)
            to_topologies += path.startswith("config/")
    assert to_topologies > 20


@pytest.mark.parametrize("file", pages.CONFIGS, ids=pages.name)
def test_topologies_are_shown(file: Path, staged: dict[str, str]) -> None:
    assert f"```yaml\n{file.read_text(encoding='utf-8')}```\n" in staged[f"config/{file.stem}.md"]


def test_code_keeps_its_links(build: ModuleType, staged: dict[str, str]) -> None:
    """What looks like a link in a block of code is code."""
    for page in pages.PAGES[1:]:
        for language in ("python", "yaml", "sh", "text"):
            for block in pages.blocks(page, language):
                assert block.text in staged[build.page_of(page)]


@pytest.mark.parametrize("file", IMAGES, ids=pages.name)
def test_pictures_say_what_they_show(file: Path) -> None:
    """Each is well-formed, has a title and a description, and looks right in light and dark."""
    picture = ET.parse(file).getroot()
    for tag in ("title", "desc"):
        element = picture.find(f"{{http://www.w3.org/2000/svg}}{tag}")
        assert element is not None
        assert element.text
    assert "prefers-color-scheme: dark" in file.read_text(encoding="utf-8")
