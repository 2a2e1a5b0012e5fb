"""What the tests of `specrouter init` share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio.to_thread
import click.testing
from http_support import StartFake

from specrouter.cli import main
from specrouter.testing import FakeServer, NgramPool, respond_with

ANSWER = "".join(f" {first}{second}" for first in ("ba", "ko", "mi", "tu") for second in ("da", "fo", "li", "ga", "he"))
BIG, SMALL = 20 * 2**30, 2**30


async def run(*arguments: object, stdin: str | None = None) -> click.testing.Result:
    """The command, beside the fakes that it asks."""
    words = [str(argument) for argument in arguments]
    return await anyio.to_thread.run_sync(lambda: click.testing.CliRunner().invoke(main, words, input=stdin))


def files_in(folder: Path) -> list[Path]:
    return list(folder.iterdir())


async def init(*servers: FakeServer | str, options: tuple[object, ...] = ()) -> click.testing.Result:
    addresses = [server.url if isinstance(server, FakeServer) else server for server in servers]
    return await run("init", *addresses, *options)


def weighs(server: FakeServer, n_bytes: int, **meta: Any) -> FakeServer:
    """Let a fake say what its weights are."""
    meta = {"vocab_type": 2, "n_vocab": len(server.model.vocabulary), "n_ctx": server.n_ctx, "size": n_bytes, **meta}
    entry = {"id": server.name, "object": "model", "owned_by": "llamacpp", "meta": meta}
    server.replies["/v1/models"] = respond_with({"object": "list", "data": [entry]})
    return server


async def big_toy(fake: StartFake) -> FakeServer:
    """A big model that verifies drafts; a step takes 20 ms."""
    server = await fake(ANSWER, pool=NgramPool(), name="/models/Toy-20B-Q4_K_M.gguf")
    server.step_seconds = 0.02
    return weighs(server, BIG)
