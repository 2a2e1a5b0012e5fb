"""Draft strategy `remote`: a smaller model on another llama-server drafts."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, ClassVar

from specrouter.hookspecs import hookimpl
from specrouter.interfaces import Drafter, DraftStrategy, Generation, JsonSchema
from specrouter.types import DraftToken, ServerState
from specrouter.upstream import LlamaServer


class RemoteDrafter(Drafter):
    """Drafts greedily; the cache of the draft server's slots follows the answer."""

    def __init__(self, server: LlamaServer) -> None:
        self._server = server

    async def draft(self, context: Sequence[int], max_tokens: int) -> AsyncGenerator[DraftToken]:
        """Stream tokens from the draft server. Ends early where the draft model ends its text."""
        async with aclosing(self._server.generate(context, max_tokens)) as events:
            async for event in events:
                if event.complete and len(event.tokens) == 1:
                    tokens = [DraftToken(event.tokens[0], event.text.encode(), event.probabilities[0])]
                elif event.text:
                    # A character of several tokens: the stream shows one id of them, the text knows all.
                    tokens = [DraftToken(token.id, token.piece) for token in await self._server.tokenize(event.text)]
                else:
                    continue
                for token in tokens:
                    yield token


class Remote(DraftStrategy):
    """A smaller model on another llama-server drafts ahead of the answer."""

    name = "remote"
    options_schema: ClassVar[JsonSchema] = {
        "type": "object",
        "properties": {
            "server": {
                "type": "string",
                "format": "server",
                "description": "The server with the draft model.",
            }
        },
        "required": ["server"],
        "additionalProperties": False,
    }

    def __init__(self, options: Mapping[str, Any], servers: Mapping[str, LlamaServer]) -> None:
        super().__init__(options, servers)
        self._server = servers[options["server"]]

    def available(self) -> str | None:
        """The draft server has to be up."""
        if self._server.state is ServerState.UP:
            return None
        return f"draft server {self._server.name} is {self._server.state.value} ({self._server.state_reason})"

    def draft_server(self) -> LlamaServer:
        """The server with the draft model."""
        return self._server

    def start(self, generation: Generation) -> Drafter | None:
        """A drafter for this request; None where its prompt does not fit the draft model's context."""
        context = self._server.info.n_ctx
        if context is not None and len(generation.prompt) >= context:
            return None
        return RemoteDrafter(self._server)


@hookimpl
def specrouter_draft_strategies() -> list[type[DraftStrategy]]:
    return [Remote]
