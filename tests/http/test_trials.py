"""What a router asks a target for itself, while the target answers clients."""

from __future__ import annotations

from contextlib import aclosing

import anyio
from http_support import StartFake

from specrouter.config.model import ServerConfig
from specrouter.giving_way import giving_way
from specrouter.upstream import LlamaServer


async def test_a_trial_waits_between_its_questions(fake: StartFake) -> None:
    target = await fake()
    async with aclosing(LlamaServer(ServerConfig("big", target.url))) as server:
        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                with server.answering():
                    with giving_way(600):
                        tasks.start_soon(server.prime, [1, 2, 3])
                        tasks.start_soon(server.tokenize, "a text")
                    # Clients' own requests, and what accompanies them, do not wait.
                    await server.tokenize("another text")
                    await anyio.sleep(0.3)
                    assert [request.json["content"] for request in target.received("/tokenize")] == ["another text"]
                    assert not target.received("/completion")
        assert len(target.received("/tokenize")) == 2
        assert len(target.received("/completion")) == 1
