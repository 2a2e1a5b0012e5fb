"""Asks a router as a chat client does, and notes when each piece of the answer arrives."""

from __future__ import annotations

import contextlib
import json
import logging
import time
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

import anyio
import httpx

from specrouter.accounting import is_accounting, usage_of
from specrouter.errors import SetupError
from specrouter.request_log import REQUEST_ID_HEADER, RequestRecord
from specrouter.sse import EventSplitter, payload

from .figures import Answer, Chunk
from .prompts import Prompt

PATH = "/v1/chat/completions"
SEED = 1

_RECORD_SECONDS = 10.0
_SILENCE_SECONDS = 900.0


class NoAnswer(SetupError):
    """A question was not answered as it should have been: with an error, not to the end, or by another server."""


class Records(logging.Handler):
    """The router's records of requests, which know what its companions did. The router is in this process."""

    def __init__(self) -> None:
        super().__init__()
        self._records: dict[str, RequestRecord] = {}
        self._arrived = anyio.Event()

    def emit(self, record: logging.LogRecord) -> None:
        """Keep it until it is asked for."""
        found: RequestRecord = record.request  # type: ignore[attr-defined]
        self._records[found.request_id] = found
        self._arrived.set()
        self._arrived = anyio.Event()

    async def of(self, request_id: str) -> RequestRecord:
        """The record of a request, which is written when its answer has been sent."""
        with anyio.fail_after(_RECORD_SECONDS):
            while request_id not in self._records:
                await self._arrived.wait()
        return self._records.pop(request_id)


@contextlib.contextmanager
def recording() -> Iterator[Records]:
    """Collect the records of all requests while the context lasts."""
    logger, records = logging.getLogger("specrouter.requests"), Records()
    level = logger.level
    logger.addHandler(records)
    logger.setLevel(logging.DEBUG)
    try:
        yield records
    finally:
        logger.removeHandler(records)
        logger.setLevel(level)


def client_of(base_url: str) -> httpx.AsyncClient:
    """A client of the router in this process."""
    # trust_env: a proxy for the outside world must not be asked for a loopback address.
    return httpx.AsyncClient(base_url=base_url, trust_env=False, timeout=_SILENCE_SECONDS)


def chat_body(model: str, prompt: Prompt, tokens: int, *, cached: bool = False) -> dict[str, Any]:
    """The request for an answer of at most `tokens` tokens; `cached` allows the target to know the prompt already."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": prompt.text}],
        "max_tokens": tokens,
        "temperature": prompt.temperature,
        "seed": SEED,
        "stream": True,
    }
    return body if cached else {**body, "cache_prompt": False}


async def ask(client: httpx.AsyncClient, records: Records, body: Mapping[str, Any]) -> Answer:
    """The answer to a chat request. Raises NoAnswer for an error instead of it, or within it."""
    identity, model = uuid.uuid4().hex, body["model"]
    reader = _Reader(model)
    started = time.perf_counter()
    try:
        async with client.stream("POST", PATH, json=body, headers={REQUEST_ID_HEADER: identity}) as response:
            if response.status_code != httpx.codes.OK:
                raise NoAnswer(f"route {model!r} answered {response.status_code}: {_message(await response.aread())}")
            async for part in response.aiter_raw():
                reader.feed(part, time.perf_counter() - started)
            decoding = response.headers["x-specrouter-decoding"]
    except httpx.HTTPError as error:
        raise NoAnswer(f"the answer of route {model!r} broke off ({type(error).__name__})") from error
    return reader.answer(await records.of(identity), decoding)


class _Reader:
    """Reads one stream."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._splitter = EventSplitter()
        self._chunks: list[Chunk] = []
        self._finish = ""
        self._accounting = b"{}"

    def feed(self, part: bytes, at: float) -> None:
        for event in self._splitter.feed(part):
            data = payload(event)
            if data and data.startswith(b"{"):
                self._read(data, at)

    def _read(self, data: bytes, at: float) -> None:
        event = json.loads(data)
        if "error" in event:
            raise NoAnswer(f"route {self._model!r} ended its answer with an error: {_message(data)}")
        if is_accounting(data):
            self._accounting = data
        for choice in event.get("choices", ()):
            delta = choice.get("delta") or {}
            text = (delta.get("reasoning_content") or "") + (delta.get("content") or "")
            self._finish = choice.get("finish_reason") or self._finish
            # The token that ends a text shows nothing, but it is a token, and the answer takes until then.
            if text or choice.get("finish_reason") == "stop":
                self._chunks.append(Chunk(at, text))

    def answer(self, record: RequestRecord, decoding: str) -> Answer:
        usage = usage_of(self._accounting)
        if usage.predicted is None or not self._chunks:
            raise NoAnswer(f"route {self._model!r} gave an answer without text or without `timings`")
        return Answer(
            tokens=usage.predicted,
            chunks=tuple(self._chunks),
            finish=self._finish,
            drafted=usage.drafted or 0,
            accepted=usage.accepted or 0,
            primed=record.primed or 0,
            server=record.server,
            decoding=decoding,
            ended_early=record.ended_early,
        )


def _message(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return body[:200].decode("utf-8", "replace")
