"""Takes the pictures of the page that the docs show, of real servers: `python tests/page/screenshots.py`.

It runs what the demo runs: the small model as the draft, its deep twin as the target. `--llama-server` and `--model`
are as for `specrouter demo`; `--folder` is where the pictures go.
"""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import click
from anyio.from_thread import start_blocking_portal

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from browser import Browser, browser  # noqa: E402  (the folder is known only now)

from specrouter.app import serve_in_background  # noqa: E402
from specrouter.demo.downloads import CPU_ONLY, fetch_model, find_llama_server  # noqa: E402
from specrouter.demo.processes import ManagedServer  # noqa: E402
from specrouter.demo.run import share_cores  # noqa: E402
from specrouter.demo.twin import cached_twin  # noqa: E402
from specrouter.ngram_pool import FLAGS  # noqa: E402

PROMPTS = ("Write a short story about a lighthouse.", "Name the days of the week.", "Name the months of the year.")
TOKENS = 64
WIDTH = 1120


@click.command(help=__doc__)
@click.option("--llama-server", type=click.Path(path_type=Path))
@click.option("--model", type=click.Path(path_type=Path))
@click.option("--twin", type=click.Path(path_type=Path), help="A twin that was made already.")
@click.option("--folder", type=click.Path(path_type=Path), default=ROOT / "docs" / "images", show_default=True)
def main(llama_server: Path | None, model: Path | None, twin: Path | None, folder: Path) -> None:
    command = [*find_llama_server(llama_server).prefix]
    draft = fetch_model(model)
    with running(command, twin or cached_twin(draft), draft) as (url, laptop), browser() as page:
        take(page, url, laptop, folder)


@contextlib.contextmanager
def running(command: list[str], target: Path, draft: Path) -> Iterator[tuple[str, ManagedServer]]:
    """A router before both servers: the address of its page, and the draft server."""
    cores = share_cores()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))

        def start(name: str, file: Path, pinned: tuple[int, ...] | None, *flags: str) -> ManagedServer:
            line = [*command, "-m", str(file), "-t", str(cores.threads), "-c", "4096", *flags, *CPU_ONLY]
            server = ManagedServer(line, name=name, log=folder / f"{name}.log", cores=pinned)
            return stack.enter_context(server)

        big = start("big", target, cores.target, *FLAGS.split())
        laptop = start("laptop", draft, cores.draft)
        topology = {
            "version": 1,
            "servers": {"big": {"url": big.url}, "laptop": {"url": laptop.url}},
            "routes": {
                "chat": {
                    "aliases": ["default"],
                    "target": "big",
                    "draft": {"use": "remote", "options": {"server": "laptop"}},
                    "verify": "inject",
                },
                "chat-plain": {"target": "big"},
            },
        }
        file = folder / "topology.yaml"
        file.write_text(json.dumps(topology), encoding="utf-8")
        portal = stack.enter_context(start_blocking_portal())
        url = stack.enter_context(portal.wrap_async_context_manager(serve_in_background(file)))
        yield f"{url}/specrouter/", laptop


def take(page: Browser, url: str, laptop: ManagedServer, folder: Path) -> None:
    page.look(width=WIDTH)
    page.open(url)
    page.until(lambda: page.all(".badge"))
    for prompt in PROMPTS:
        ask(page, prompt, TOKENS)
    # It would lie over what is taken.
    page.run("document.querySelector('.top').style.position = 'static'")
    page.until(lambda: "\u25b8" not in page.text("#request-table"))
    for name in ("dark", "light"):
        page.look(width=WIDTH, height=760, dark=name == "dark")
        page.picture(folder / f"playground-{name}.png", "#playground")
    page.run("scrollTo(0, 0)")
    page.picture(folder / "page-light.png")
    page.look(width=390, height=844)
    page.until(lambda: page.find("svg.topology").size["width"] < 390)
    page.run("document.querySelector('#results').scrollIntoView()")
    page.picture(folder / "page-phone.png")
    page.look(width=WIDTH)
    page.until(lambda: page.find("svg.topology").size["width"] > 390)
    laptop.kill()
    page.until(lambda: page.all(".node.down") and "laptop is down" in page.text("#obstacles"))
    page.picture(folder / "server-down.png", "#topology")


def ask(page: Browser, prompt: str, tokens: int) -> None:
    for selector, text in (("#prompt", prompt), ("#max-tokens", str(tokens))):
        page.run("document.querySelector(arguments[0]).value = arguments[1]", selector, text)
    page.find("#run").click()
    page.until(lambda: page.find("#results").get_attribute("data-done") == "yes")
    click.echo(page.text("#progress"))
    click.echo("; ".join(note.text for note in page.all("#notes li")))


if __name__ == "__main__":
    main()
