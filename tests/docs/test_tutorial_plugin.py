"""The tutorial's plugin: a package that is built, installed, tested with its own test, and drafts on a route."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import anyio
import anyio.to_thread
import httpx
import pages
import pytest

from specrouter.app import serve_in_background

PAGE = pages.ROOT / "docs" / "tutorial" / "your-own-draft-plugin.md"
PACKAGE = PAGE.with_name("specrouter-snippets")
FILES = ["snippets.txt", "specrouter_snippets.py", "pyproject.toml", "test_specrouter_snippets.py", "fake_target.py"]
MODULE = "specrouter_snippets"
QUESTION = {"messages": [{"role": "user", "content": "Write to a user."}], "temperature": 0}
CHAT = "/v1/chat/completions"
HEADER = "x-specrouter-decoding"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package's files and, in `site`, the package installed."""
    folder = tmp_path_factory.mktemp("tutorial")
    for name in FILES:
        shutil.copy(PACKAGE / name, folder)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    # What it depends on is here already, and so is what builds it: nothing is fetched.
    run([*pip, "--no-deps", "--no-index", "--no-build-isolation", "--target", "site", "."], folder)
    return folder


@pytest.fixture
def in_this_process(installed: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The package is installed for this process as well."""
    monkeypatch.syspath_prepend(str(installed / "site"))
    yield installed
    sys.modules.pop(MODULE, None)


def run(command: list[str], folder: Path, *, succeeds: bool = True) -> str:
    """Run a command where the package is installed; what it prints."""
    environment = {**os.environ, "PYTHONPATH": str(folder / "site"), "COLUMNS": "120", "PY_COLORS": "0"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=240)
    assert (done.returncode == 0) is succeeds, done.stdout + done.stderr
    return done.stdout if succeeds else done.stdout + done.stderr


def own_tests(folder: Path, *, succeeds: bool) -> str:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb", "short"]
    return run(command, folder, succeeds=succeeds)


def specrouter(folder: Path, *arguments: str, succeeds: bool = True) -> str:
    program = "import sys; from specrouter.cli import main; main(sys.argv[1:], prog_name='specrouter')"
    return run([sys.executable, "-c", program, *arguments], folder, succeeds=succeeds)


def block(page: Path, language: str, containing: str) -> str:
    found = [block.text for block in pages.blocks(page, language) if containing in block.text]
    assert len(found) == 1, (containing, found)
    return found[0]


def test_the_page_shows_the_files() -> None:
    """Whole, in this order."""
    text = PAGE.read_text("utf-8")
    places = [text.find(f"\n{(PACKAGE / name).read_text('utf-8')}```\n") for name in FILES]
    assert -1 not in places
    assert places == sorted(places)
    assert sorted(file.name for file in PACKAGE.iterdir() if file.is_file()) == sorted(FILES)


def test_it_is_listed(installed: Path) -> None:
    row = next(line for line in specrouter(installed, "plugins").splitlines() if "snippets" in line)
    assert row.split() == block(PAGE, "text", "draft  snippets").split()


def test_its_own_test_passes(installed: Path) -> None:
    found = re.search(r"(\d+) passed in", own_tests(installed, succeeds=True))
    assert found is not None
    assert f"{found[1]} passed" in PAGE.read_text("utf-8")


def test_its_own_test_can_fail(installed: Path, tmp_path: Path) -> None:
    """The tutorial takes the limit away and shows what the test says."""
    shutil.copytree(installed, tmp_path, dirs_exist_ok=True)
    # As with an editable install, the module beside the test is the one that is loaded.
    module = tmp_path / f"{MODULE}.py"
    text = module.read_text("utf-8")
    assert "[:max_tokens]" in text
    module.write_text(text.replace("[:max_tokens]", ""), "utf-8")
    said = own_tests(tmp_path, succeeds=False)
    expected = block(PAGE, "text", "The rule MAX_TOKENS").splitlines()
    assert all(line in said for line in expected), said


def test_a_mistake_in_the_topology_is_explained(installed: Path) -> None:
    topology = installed / "topology.yaml"
    topology.write_text(block(PAGE, "yaml", "use: snippets").replace("{file:", "{fiel:"), "utf-8")
    said = specrouter(installed, "check", "--offline", "topology.yaml", succeeds=False)
    assert said == block(PAGE, "text", "fiel")


@contextlib.contextmanager
def the_target(folder: Path) -> Iterator[str]:
    """The tutorial's target, while the context lasts; its address."""
    process = subprocess.Popen([sys.executable, "fake_target.py"], cwd=folder, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        said = process.stdout.readline()
        assert said.split()[:2] == block(PAGE, "text", "listening on").split()[:2]
        yield said.split()[2]
    finally:
        process.kill()
        process.communicate()


@pytest.mark.anyio
async def test_it_drafts_on_a_route(in_this_process: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`check` says what the page says, and the answer is drafted."""
    folder = in_this_process
    monkeypatch.chdir(folder)
    with the_target(folder) as target:
        text = block(PAGE, "yaml", "use: snippets")
        (address,) = re.findall(r"http://[\d.:]+", text)
        topology = folder / "topology.yaml"
        topology.write_text(text.replace(address, target), "utf-8")
        said = await anyio.to_thread.run_sync(specrouter, folder, "check", "topology.yaml")
        assert said.replace(target, address).split() == block(PAGE, "text", "topology.yaml: ok").split()
        async with serve_in_background(topology) as url, httpx.AsyncClient(base_url=url, timeout=60) as client:
            with anyio.fail_after(60):
                while (await client.post(CHAT, json={**QUESTION, "max_tokens": 8})).headers[HEADER] != "inject":
                    await anyio.sleep(0.02)
            answer = (await client.post(CHAT, json=QUESTION)).json()
    assert answer["choices"][0]["message"]["content"].endswith((folder / "snippets.txt").read_text("utf-8"))
    assert answer["timings"]["draft_n_accepted"] > 0
