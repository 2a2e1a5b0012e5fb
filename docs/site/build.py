"""Builds the documentation as a site, in build/docs/html: `make docs`; with `ARGS=serve`, shown while it is written.

The pages are those of docs/ as they are. What they link to beyond docs/ (topologies, the Dockerfile) becomes a page
of its own, so that a link works in the repository and on the site. The navigation is the list in docs/README.md.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
DOCS = ROOT / "docs"
SITE = DOCS / "site"
INDEX = DOCS / "README.md"
OUTPUT = ROOT / "build" / "docs"
HTML = OUTPUT / "html"

_LANGUAGES = {".yaml": "yaml", ".json": "json", ".py": "python", ".toml": "toml"}
_HEADING = re.compile(r"(#{2,3}) (.+)")
_ENTRY = re.compile(r"- \[(.+?)\]\((.+?)\)")
_LINK = re.compile(r"(?<=\]\()([^)\s]+)(?=\))")
_FETCHED = re.compile(r"<(?:script|link|img|iframe)\b[^>]*?(?:src|href)=[\"']?((?:https?:)?//[^\"'\s>]+)")
_FENCE = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)

Navigation = list[dict[str, "str | Navigation"]]


def main(arguments: list[str]) -> int | str:
    zensical = Path(sys.executable).with_name("zensical")
    config = ["--config-file", str(OUTPUT / "zensical.toml")]
    if arguments == ["serve"]:
        stage()
        with subprocess.Popen([zensical, "serve", *config]) as server:  # noqa: S603
            try:
                while server.poll() is None:
                    time.sleep(1)
                    stage()
            except KeyboardInterrupt:
                return 0
            finally:
                server.terminate()
        return server.returncode
    if arguments:
        return f"docs/site/build.py takes no argument, or `serve`, and not `{' '.join(arguments)}`"
    shutil.rmtree(OUTPUT, ignore_errors=True)
    stage()
    if subprocess.run([zensical, "build", "--strict", *config], check=False).returncode != 0:  # noqa: S603
        return 1
    fetched = sorted({found for page in HTML.rglob("*.html") for found in _FETCHED.findall(page.read_text("utf-8"))})
    return f"A reader's browser would fetch {', '.join(fetched)}" if fetched else 0


def stage() -> None:
    """Write what the site is made of; files that are as they should be are left alone."""
    for file, content in staged().items():
        place = OUTPUT / file
        if not place.is_file() or place.read_bytes() != content:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content)


def staged() -> dict[str, bytes]:
    """All files of the site's source, by their paths below OUTPUT."""
    sources = [file for file in sorted(DOCS.rglob("*")) if file.is_file() and SITE not in file.parents]
    pages = {file: page_of(file) for file in sources if file.suffix == ".md"}
    for source in pages_and_what_they_link_to(list(pages)):
        pages[source] = page_of(source)
    files = {f"pages/{page}": content(source, pages).encode() for source, page in pages.items()}
    files |= {f"pages/{page_of(file)}": file.read_bytes() for file in sources if file not in pages}
    files["pages/site.css"] = (SITE / "site.css").read_bytes()
    config = (SITE / "zensical.toml").read_text(encoding="utf-8")
    files["zensical.toml"] = config.replace("[project]\n", f"[project]\nnav = {toml(navigation(pages))}\n", 1).encode()
    return files


def page_of(file: Path) -> str:
    """Where the site has a file of the repository, below pages/."""
    if DOCS in file.parents:
        return file.relative_to(DOCS).as_posix()
    return file.relative_to(ROOT).with_suffix(".md").as_posix()


def pages_and_what_they_link_to(files: list[Path]) -> Iterator[Path]:
    """The pages, and the files beyond docs/ that they link to."""
    found = set(files)
    while files:
        source = files.pop()
        yield source
        for link in links(source):
            target = target_of(link, source)
            if target is not None and target.is_file() and target not in found and DOCS not in target.parents:
                found.add(target)
                files.append(target)


def links(source: Path) -> list[str]:
    """The links of a page; other files have none."""
    return _LINK.findall(_FENCE.sub("", source.read_text(encoding="utf-8"))) if source.suffix == ".md" else []


def target_of(link: str, source: Path) -> Path | None:
    """The file of the repository that a link of `source` leads to."""
    path = link.partition("#")[0]
    return (source.parent / path).resolve() if path and ":" not in link else None


def content(source: Path, pages: Mapping[Path, str]) -> str:
    """The Markdown of a page: the source with the site's links, or what shows the source."""
    text = source.read_text(encoding="utf-8")
    if source.suffix != ".md":
        name = source.relative_to(ROOT).as_posix()
        return f"# {name}\n\n```{_LANGUAGES.get(source.suffix, 'text')}\n{text}```\n"

    def on_the_site(found: re.Match[str]) -> str:
        target = target_of(found[0], source)
        if target is None or target not in pages:
            return found[0]
        _, mark, anchor = found[0].partition("#")
        return os.path.relpath(pages[target], Path(pages[source]).parent) + mark + anchor

    outside = _FENCE.split(text)
    return "".join(part if part.startswith("```") else _LINK.sub(on_the_site, part) for part in outside)


def navigation(pages: Mapping[Path, str]) -> Navigation:
    """The list in docs/README.md, and behind it the files that are shown as pages."""
    sections: Navigation = [{"Home": pages[INDEX]}]
    groups: Navigation = sections
    listed = {INDEX}
    for line in INDEX.read_text(encoding="utf-8").splitlines():
        if heading := _HEADING.fullmatch(line):
            above = sections if heading[1] == "##" else within(sections)
            groups = []
            above.append({heading[2]: groups})
        elif entry := _ENTRY.match(line):
            target = target_of(entry[2], INDEX)
            assert target is not None
            listed.add(target)
            groups.append({entry[1]: pages[target]})
    files = [file for file in sorted(pages) if file not in listed]
    if missing := [file.name for file in files if DOCS in file.parents]:
        raise SystemExit(f"docs/README.md does not list {', '.join(missing)}")
    sections.append({"Files": [{file.name: pages[file]} for file in files]})
    return [section for section in sections if [] not in section.values()]


def within(sections: Navigation) -> Navigation:
    """The entries of the last section."""
    (entries,) = sections[-1].values()
    assert isinstance(entries, list)
    return entries


def toml(value: str | Navigation) -> str:
    """A navigation as TOML writes it."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    tables = (f"{{ {toml(title)} = {toml(entry)} }}" for table in value for title, entry in table.items())
    return f"[{', '.join(tables)}]"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
