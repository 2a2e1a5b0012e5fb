"""Goes on with a streamed answer on another server when the one that gave it has died.

The other server is given the prompt and all that the client has seen, as tokens, and what it says behind them is
written in the form of the events before. At temperature 0 that is the text of an undisturbed answer, up to near ties; a
sampled answer goes on under the same settings, with other random numbers.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from .alone import say_alone
from .answers import Ending, Finish, Totals, as_json
from .crossing import tokens_behind
from .errors import UpstreamUnavailable
from .formats import FORMATS, obstacle, stepwise_obstacle, stops_of
from .next_token import sampling_fields
from .sampling import max_tokens_of, sampling_of
from .specimens import take_specimen
from .sse import DONE, encoded
from .text import TextWriter
from .types import Channel, Delta, ServerInfo
from .upstream import LlamaServer

_LEAD_IN = 16
"""Tokens of the prompt with which the text behind them is tokenised."""


class Spoken:
    """What a client has seen of a streamed answer so far: the data of its events, looked at only when needed.

    Of a request whose answer nobody could go on with, nothing is kept.
    """

    def __init__(self, path: str, body: Mapping[str, Any]) -> None:
        self.has_begun = False
        """Whether the client has seen anything."""
        self._path = path
        self._body = body
        self._events: list[bytes] = []
        self._model: tuple[object, ...] = ()
        self._is_kept = not obstacle(path, body) and self._fits("")

    def add(self, data: Sequence[bytes], server: ServerInfo) -> None:
        """The data of events that were sent, as `server` said them."""
        if not data:
            return
        if not self.has_begun:
            self.has_begun, self._model = True, _model_of(server)
        if self._is_kept:
            self._events += data

    def can_be_continued(self, target: LlamaServer) -> bool:
        """Whether the target has the model that began, and nothing but tokens decides how the answer goes on.

        A grammar, an open tool call or reasoning does.
        """
        if not self._is_kept or _model_of(target.info) != self._model or not self._fits(target.info.chat_template):
            return False
        return not any(delta.finished or delta.channel is not Channel.CONTENT for delta in self._deltas())

    async def go_on(self, target: LlamaServer, model: str) -> AsyncGenerator[tuple[bytes, bool]]:
        """The rest of the answer as bytes for the client, and whether they are the last.

        Raises UpstreamError, UpstreamUnavailable also where the target has no tokens for what was said.
        """
        form = FORMATS[self._path]
        prompt = await form.prompt(target, self._body)
        said = await self._said(target, prompt)
        limit = max_tokens_of(self._body)
        totals = Totals(prompt=len(prompt), predicted=len(said))
        shown = await target.detokenize(prompt) if form.shows_prompt else ""
        writer = form.writer(await take_specimen(target, self._path), self._body, model, shown)
        writer.resume(json.loads(self._events[0]))
        if limit is not None and len(said) >= limit:
            # Only its end was missing.
            yield self._written(writer.end(Ending(Finish.LIMIT), totals), done=writer.ends_with_done), True
            return
        rest = say_alone(
            target,
            [*prompt, *said],
            sampling_fields(self._body),
            sampling_of(self._body),
            max_tokens=None if limit is None else limit - len(said),
            text=TextWriter(stops_of(self._body)),
            totals=totals,
        )
        async with aclosing(rest) as tokens:
            async for token in tokens:
                is_last = token.ending is not None
                yield self._written(writer.said(token, totals), done=is_last and writer.ends_with_done), is_last

    @property
    def accounting(self) -> bytes:
        """The data of the last event."""
        return self._events[-1]

    def _fits(self, chat_template: str | None) -> bool:
        # Whatever is not evaluated afresh was evaluated by another server.
        body = {key: value for key, value in self._body.items() if key != "cache_prompt"}
        return self._path in FORMATS and not stepwise_obstacle(self._path, body, chat_template)

    async def _said(self, target: LlamaServer, prompt: Sequence[int]) -> list[int]:
        """What the client has seen, in tokens."""
        deltas = [delta for delta in self._deltas() if delta.text or delta.token_ids]
        text = "".join(delta.text for delta in deltas).encode("utf-8", "replace")
        if not text:
            return []
        if all(delta.token_ids for delta in deltas):
            ids = [token for delta in deltas for token in delta.token_ids]
            # Not where the beginning of a stop string was said and held back.
            if b"".join(await target.pieces.of(ids)) == text:
                return ids
        before = await target.pieces.of(prompt[-_LEAD_IN:])
        found = await tokens_behind(target, before, text, revisable=0, parse_special=False)
        if found is None:
            raise UpstreamUnavailable(
                f"server {target.name!r} cannot go on with an answer: its tokens do not add up to the text",
                server=target.name,
            )
        return [token.id for token in found[1]]

    def _written(self, events: Sequence[Mapping[str, Any]], *, done: bool) -> bytes:
        """Events as bytes for the client, who has seen them then."""
        written = [as_json(event) for event in events]
        self._events += written
        return b"".join(encoded(data) for data in [*written, *([DONE] if done else [])])

    def _deltas(self) -> Sequence[Delta]:
        reader = FORMATS[self._path].new_reader()
        return [delta for data in self._events for delta in reader(data, 0.0)]


def _model_of(server: ServerInfo) -> tuple[object, ...]:
    """What is equal where servers have one model."""
    return (server.n_vocab, server.vocab_type, server.n_params, server.n_ctx_train, server.chat_template)
