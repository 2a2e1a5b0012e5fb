"""What the tokens of a server stand for: asked for once, then known."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from .types import Token

if TYPE_CHECKING:
    from .upstream import LlamaServer


class Pieces:
    """The pieces of a server's tokens by id. Whatever the server tokenises is learned, prompts and answers alike."""

    def __init__(self, server: LlamaServer) -> None:
        self._server = server
        self._known: dict[int, bytes] = {}

    def learn(self, tokens: Iterable[Token]) -> None:
        """Remember tokens that came with their pieces."""
        self._known.update((token.id, token.piece) for token in tokens)

    def clear(self) -> None:
        """The server may have another model now."""
        self._known.clear()

    async def of(self, ids: Sequence[int]) -> list[bytes]:
        """The pieces of token ids. Asks the server for those never seen; raises UpstreamError."""
        unknown = self._unknown(ids)
        if unknown:
            # A text of several tokens: what is only a part of a character by itself is named, too.
            await self._server.tokenize(await self._server.detokenize(ids))
        for token in self._unknown(unknown):
            self._known[token] = (await self._server.detokenize([token])).encode()
        # A server that changed its model meanwhile has made all of them unknown.
        return [self._known.get(token, b"") for token in ids]

    def _unknown(self, ids: Sequence[int]) -> list[int]:
        return [token for token in dict.fromkeys(ids) if token not in self._known]
