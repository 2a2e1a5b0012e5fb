"""What pages and example files say is true of the program."""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path

import pages
import pytest
import reference
import yaml

from specrouter import errors, ngram_pool
from specrouter.config import load_topology
from specrouter.plugins import load_plugins
from specrouter.reasons import OTHER, reason_class
from specrouter.request_log import RequestRecord

SOURCES = [*(pages.ROOT / "specrouter").rglob("*.py"), *(pages.ROOT / "plugins").rglob("*.py")]
TROUBLESHOOTING = pages.ROOT / "docs" / "how-to" / "troubleshooting.md"
HTTP = pages.ROOT / "docs" / "reference" / "http.md"

# -- code --------------------------------------------------------------------------------------------------


def test_all_files_of_the_code_are_listed() -> None:
    page = (pages.ROOT / "docs" / "explanation" / "the-code.md").read_text(encoding="utf-8")
    table = page.partition("## Files")[2].partition("\n## ")[0]
    listed = set(re.findall(r"`([a-z_]+)/?`", table))
    folders = (pages.ROOT / "specrouter", pages.ROOT / "plugins" / "specrouter_plugins")
    files = [file for folder in folders for file in (*folder.glob("*.py"), *folder.glob("*/__init__.py"))]
    names = {file.parent.name if file.parent not in folders else file.stem for file in files}
    assert names ^ listed == {"__init__"}


# -- topologies --------------------------------------------------------------------------------------------

# Those of the tutorial need its package: test_tutorial_plugin.py has them.
TOPOLOGIES = [
    block for page in pages.PAGES if page.name != "your-own-draft-plugin.md" for block in pages.topologies(page)
]


@pytest.mark.parametrize("block", TOPOLOGIES, ids=str)
def test_topologies_on_pages(block: pages.Block, tmp_path: Path) -> None:
    pages.write_python_files(block.page, tmp_path)
    file = tmp_path / "topology.yaml"
    file.write_text(block.text, encoding="utf-8")
    assert load_topology(file, pages.ENVIRONMENT).warnings == ()


@pytest.mark.parametrize("file", pages.CONFIGS, ids=pages.name)
def test_example_files(file: Path) -> None:
    assert load_topology(file, pages.ENVIRONMENT).warnings == ()


def test_examples_name_variables_that_are_known() -> None:
    """Nothing is left over in the environment that the tests give."""
    text = "".join(file.read_text(encoding="utf-8") for file in (*pages.PAGES, *pages.CONFIGS))
    assert [name for name in pages.ENVIRONMENT if f"${{{name}}}" not in text] == []


def test_all_example_files_are_listed() -> None:
    text = (pages.ROOT / "docs" / "reference" / "topology.md").read_text(encoding="utf-8")
    assert [file.name for file in pages.CONFIGS if f"(../../config/{file.name})" not in text] == []


@pytest.mark.parametrize("block", [block for page in pages.PAGES for block in pages.blocks(page, "yaml")], ids=str)
def test_yaml_blocks_parse(block: pages.Block) -> None:
    yaml.safe_load(block.text)


FLAGS = re.compile(r"--spec-type ngram-mod(?: --spec-ngram-mod-n-\w+ \d+)+")
FOUND = re.compile(r"n_match=(\d+), n_min=(\d+), n_max=(\d+)")


def test_flags_of_targets() -> None:
    """Command lines and the output of `check` have the flags that the program advises."""
    texts = [file.read_text(encoding="utf-8") for file in (*pages.PAGES, *pages.CONFIGS)]
    flags = [found for text in texts for found in FLAGS.findall(re.sub(r"[\\#\s]+", " ", text))]
    assert len(flags) > 4
    assert set(flags) == {ngram_pool.FLAGS}
    assert {found for text in texts for found in FOUND.findall(text)} == {tuple(re.findall(r"\d+", ngram_pool.FLAGS))}


# -- code and links ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", pages.PAGES, ids=pages.name)
def test_python_blocks_compile(page: Path) -> None:
    for block in pages.blocks(page, "python"):
        compile(block.text, str(block), "exec")


@pytest.mark.parametrize("page", pages.PAGES, ids=pages.name)
def test_relative_links(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        path, _, anchor = link.partition("#")
        if re.match(r"[a-z]+:", link):
            continue
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_every_page_is_linked() -> None:
    """From the index, and the index from the front page."""
    text = (pages.ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    documents = [page for page in pages.PAGES if page.parent.parent.name == "docs"]
    assert [page.name for page in documents if f"/{page.name})" not in text] == []
    assert "(docs/README.md)" in (pages.ROOT / "README.md").read_text(encoding="utf-8")


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


# -- reference ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", reference.pages(), ids=pages.name)
def test_generated_parts_are_current(page: Path) -> None:
    # Versions of click break lines differently.
    as_it_is, as_it_should_be = (text.split() for text in (page.read_text("utf-8"), reference.generated(page)))
    assert as_it_is == as_it_should_be, "write it anew: python tests/docs/reference.py"


def test_pages_have_generated_parts() -> None:
    found = ["when-it-pays.md", "cli.md", "metrics.md", "plugins.md", "testing.md"]
    assert [page.name for page in reference.pages()] == found


def test_bundled_plugins_are_listed() -> None:
    text = (pages.ROOT / "docs" / "reference" / "plugins.md").read_text(encoding="utf-8")
    for info in load_plugins():
        if info.distribution == "specrouter":
            (row,) = re.findall(rf"^\| `{info.kind}s?` .*$", text, re.MULTILINE)
            assert f"`{info.name}`" in row


def test_error_codes() -> None:
    """The table of errors has a row for each status, type and code that a class has."""
    row = r"^\| (\d+|the server's) \| `(\w+)` \| `(\w+)` \|"
    documented = re.findall(row, HTTP.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(set(documented)) == len(documented)
    assert set(documented) == set(error_rows(errors.RequestError))
    assert f"`{errors.UpstreamError.code}`" in HTTP.read_text(encoding="utf-8")


def test_every_error_code_has_a_remedy() -> None:
    part = TROUBLESHOOTING.read_text(encoding="utf-8").partition("## An error instead")[2].partition("\n## ")[0]
    codes = {code for _, _, code in error_rows(errors.RequestError)}
    assert set(re.findall(r"^\| `(\w+)` \|", part, re.MULTILINE)) == codes


def error_rows(base: type[errors.RequestError]) -> Iterator[tuple[str, str, str]]:
    for cls in base.__subclasses__():
        yield from error_rows(cls)
        if cls is errors.UpstreamRejected:
            yield "the server's", cls.type, str(cls.code)
        elif cls is not errors.UpstreamError:
            yield str(cls.status), cls.type, cls.code or str(cls.status)


# -- reasons -----------------------------------------------------------------------------------------------


def test_every_reason_is_explained() -> None:
    """A `…` in the page stands for a value, as `{…}` does in the code."""
    reasons = set(reasons_in_code())
    assert len(reasons) > 10
    text = TROUBLESHOOTING.read_text(encoding="utf-8")
    assert sorted(reason for reason in reasons if f"`{reason}`" not in text) == []


def test_explained_reasons_exist() -> None:
    texts = {text for file in SOURCES for node in ast.walk(parsed(file)) if (text := template(node)) is not None}
    assert sorted(documented_reasons() - texts) == []


def test_every_reason_has_a_class() -> None:
    """A metric counts reasons by class, see `reasons.reason_class`."""
    reasons = {reason.replace("…", "name") for reason in {*reasons_in_code(), *documented_reasons()}}
    assert sorted(reason for reason in reasons if reason_class(reason) == OTHER) == []


def documented_reasons() -> set[str]:
    part = TROUBLESHOOTING.read_text(encoding="utf-8").partition("### Reasons in the request")[2].partition("\n## ")[0]
    return set(re.findall(r"^\| `(.+?)` \|", part, re.MULTILINE))


def reasons_in_code() -> Iterator[str]:
    """What is returned, assigned or passed on as a reason, where reasons are made."""
    for file in SOURCES:
        for node in ast.walk(parsed(file)):
            found: list[ast.expr | None] = []
            if isinstance(node, ast.FunctionDef) and node.name in ("obstacle", "available", "_policy_obstacle"):
                found += [inner.value for inner in ast.walk(node) if isinstance(inner, ast.Return)]
            elif isinstance(node, ast.Assign | ast.AnnAssign) and assigned(node) in ("obstacle", "reason"):
                found.append(node.value)
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Support":
                found += [keyword.value for keyword in node.keywords if keyword.arg == "reason"]
            yield from (text for value in found if (text := template(value)) is not None)


def assigned(node: ast.Assign | ast.AnnAssign) -> str | None:
    target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
    return target.attr if isinstance(target, ast.Attribute) else target.id if isinstance(target, ast.Name) else None


def template(node: ast.AST | None) -> str | None:
    """The text of a string or f-string, with `…` for every value in it."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        return "".join(template(part) or "…" for part in node.values)
    return None


def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


# -- the log -----------------------------------------------------------------------------------------------


def test_every_key_of_the_log_is_explained() -> None:
    table = re.findall(r"^\| (`.+?) \|", (pages.ROOT / "docs" / "how-to" / "logs.md").read_text("utf-8"), re.MULTILINE)
    explained = {key for cell in table for key in re.findall(r"`(\w+)`", cell)}
    keys = {field.name for field in dataclasses.fields(RequestRecord)} - {"prompt"}
    assert keys - explained == set()
