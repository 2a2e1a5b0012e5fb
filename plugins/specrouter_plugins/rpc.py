"""Draft strategy `rpc`: a server that drafts by itself answers, as long as it and its RPC workers are there."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any, ClassVar

import anyio

from specrouter.hookspecs import hookimpl
from specrouter.interfaces import Drafter, DraftStrategy, Generation, JsonSchema, Support
from specrouter.measuring import counting_question
from specrouter.types import ServerState
from specrouter.upstream import LlamaServer
from specrouter.workers import ADDRESS_PATTERN, ADDRESS_WORDS, SETTLE_SECONDS, Workers, WorkersState

_TRIAL_SECONDS = 60.0

_FLAGS = (
    "start it with `--spec-type`: draft-simple for a draft model (with --model-draft), draft-mtp or draft-eagle3 for "
    "heads of the model's own; `specrouter commands` prints whole command lines"
)


class Rpc(DraftStrategy):
    """A server answers that drafts by itself: on an RPC worker, with heads of its own, or with a local draft model."""

    name = "rpc"
    options_schema: ClassVar[JsonSchema] = {
        "type": "object",
        "properties": {
            "server": {
                "type": "string",
                "format": "answering_server",
                "description": "The server that drafts by itself.",
            },
            "workers": {
                "type": "array",
                "items": {"type": "string", "pattern": ADDRESS_PATTERN, "patternErrorMessage": ADDRESS_WORDS},
                "uniqueItems": True,
                "default": [],
                "description": "The RPC workers (ggml-rpc-server) that it drafts with, as host:port.",
            },
            "settle": {
                "type": "number",
                "minimum": 0,
                "maximum": 3600,
                "default": SETTLE_SECONDS,
                "description": "Seconds that server and workers must have been back before requests go there again.",
            },
        },
        "required": ["server"],
        "additionalProperties": False,
    }

    def __init__(self, options: Mapping[str, Any], servers: Mapping[str, LlamaServer]) -> None:
        super().__init__(options, servers)
        self._server = servers[options["server"]]
        self._settle = float(options.get("settle", SETTLE_SECONDS))
        self._workers = Workers(options.get("workers", ()), in_use=self._is_connected, settle_seconds=self._settle)
        self._was_down = False
        self._back_since = -math.inf

    def available(self) -> str | None:
        """Server and workers have to be up, and if they were away, for a while."""
        if self._workers.state is WorkersState.AWAY:
            return f"the RPC workers of {self._server.name} are away"
        if self._server.state is not ServerState.UP:
            return f"server {self._server.name} is {self._server.state.value} ({self._server.state_reason})"
        if self._workers.state is WorkersState.RETURNING:
            return f"the RPC workers of {self._server.name} are back, for less than {self._settle:g} s"
        if time.monotonic() - self._back_since < self._settle:
            return f"server {self._server.name} is back, for less than {self._settle:g} s"
        return None

    def answering_server(self) -> LlamaServer:
        """The server that drafts by itself."""
        return self._server

    def workers(self) -> Workers | None:
        """Those of the option `workers`."""
        return self._workers if self._workers.addresses else None

    async def inspect(self) -> Support:
        """Have it say a few tokens, and see in its timings whether it drafted. Costs some 80 tokens."""
        found: dict[str, Any] = {}
        if self._workers.addresses:
            if not self._is_connected():
                await self._workers.ask()
            found["workers"] = "in use" if self._is_connected() else self._workers.detail
        if self._server.state is not ServerState.UP:
            return Support(self.available(), found)
        answer = await self._server.complete(counting_question(), timeout=_TRIAL_SECONDS)
        timings = answer.get("timings") or {}
        found["drafted"] = int(timings.get("draft_n") or 0)
        if not found["drafted"]:
            return Support(f"server {self._server.name} drafts nothing", found, _advice(answer))
        found["accepted"] = int(timings.get("draft_n_accepted") or 0)
        return Support(details=found)

    async def watch(self) -> None:
        """Ask the workers now and then, and note when the server comes back."""
        self._server_changed()
        stop_listening = self._server.on_change(self._server_changed)
        try:
            if self._workers.addresses:
                await self._workers.watch()
            await anyio.sleep_forever()
        finally:
            stop_listening()

    def _is_connected(self) -> bool:
        """Whether the server has the workers to itself: it connects when it starts, and dies with them."""
        return self._server.state in (ServerState.UP, ServerState.LOADING)

    def _server_changed(self) -> None:
        state = self._server.state
        if state is ServerState.DOWN:
            self._was_down = True
        elif state is ServerState.UP and self._was_down:
            self._was_down, self._back_since = False, time.monotonic()

    def start(self, generation: Generation) -> Drafter | None:  # noqa: ARG002
        """Nothing: the server drafts by itself."""
        return None


def _advice(answer: Mapping[str, Any]) -> str:
    settings = answer.get("generation_settings") or {}
    kinds = {kind for kind in str(settings.get("speculative.types") or "").split(",") if kind not in ("", "none")}
    if not kinds:
        return _FLAGS
    prompt = counting_question()["prompt"]
    return f"its `--spec-type {','.join(sorted(kinds))}` did not draft how {prompt!r} goes on; {_FLAGS}"


@hookimpl
def specrouter_draft_strategies() -> list[type[DraftStrategy]]:
    return [Rpc]
