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
from .answers import Totals, as_json
from .formats import FORMATS, obstacle, stepwise_obstacle, stops_of
from .next_token import SAMPLING_FIELDS
from .sampling import max_tokens_of, sampling_of
from .specimens import take_specimen
from .sse import DONE
from .text import TextWriter
from .types import Channel, Delta
from .upstream import LlamaServer


class Spoken:
    """What a client has seen of a streamed answer so far: the data of its events, looked at only when needed."""

    def __init__(self, path: str, body: Mapping[str, Any]) -> None:
        self._path = path
        self._body = body
        self._events: list[bytes] = []

    def add(self, data: Sequence[bytes]) -> None:
        """The data of events that were sent."""
        self._events += data

    @property
    def has_begun(self) -> bool:
        """Whether the client has seen anything."""
        return bool(self._events)

    def can_be_continued(self, target: LlamaServer) -> bool:
        """Whether nothing but tokens decides how the answer goes on: no grammar, no open tool call, no reasoning."""
        # Whatever is not evaluated afresh was evaluated by another server.
        body = {key: value for key, value in self._body.items() if key != "cache_prompt"}
        if obstacle(self._path, body) or stepwise_obstacle(self._path, body, target.info.chat_template):
            return False
        return not any(delta.finished or delta.channel is not Channel.CONTENT for delta in self._deltas())

    async def go_on(self, target: LlamaServer, model: str) -> AsyncGenerator[tuple[bytes, bool]]:
        """The rest of the answer as bytes for the client, and whether they are the last. Raises UpstreamError."""
        form = FORMATS[self._path]
        prompt = await form.prompt(target, self._body)
        text = "".join(delta.text for delta in self._deltas())
        said = [token.id for token in await target.tokenize(text, parse_special=False)] if text else []
        limit = max_tokens_of(self._body)
        totals = Totals(prompt=len(prompt), predicted=len(said))
        shown = await target.detokenize(prompt) if form.shows_prompt else ""
        shown = await target.detokenize(prompt) if form.shows_prompt else ""
        writer = form.writer(await take_specimen(target, self._path), self._body, model, shown)
        writer.resume(json.loads(self._events[0]))
        rest = say_alone(
            target,
            [*prompt, *said],
            {key: value for key, value in self._body.items() if key in SAMPLING_FIELDS},
            sampling_of(self._body),
            max_tokens=None if limit is None else max(limit - len(said), 1),
            text=TextWriter(stops_of(self._body)),
            totals=totals,
        )
        async with aclosing(rest) as tokens:
            async for token in tokens:
                events = writer.text(token.text, token.token, totals)
                if token.ending is not None:
                    events += writer.end(token.ending, totals)
                written = [as_json(event) for event in events]
                self._events += written
                done = token.ending is not None and writer.ends_with_done
                yield (
                    b"".join(b"data: " + data + b"\n\n" for data in [*written, *([DONE] if done else [])]),
                    (token.ending is not None),
                )

    @property
    def accounting(self) -> bytes:
        """The data of the last event."""
        return self._events[-1]

    def _deltas(self) -> Sequence[Delta]:
        reader = FORMATS[self._path].new_reader()
        return [delta for data in self._events for delta in reader(data, 0.0)]
