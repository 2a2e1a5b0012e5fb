"""Whether a route's drafts can be verified on a target: found out in the background, ready when a request comes."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

import anyio

from .errors import SpecrouterError
from .interfaces import NativeVerifier, Support, TokenizerCheck
from .plugins import Bound, guard
from .types import Mismatch, ServerState
from .upstream import LlamaServer

log = logging.getLogger(__name__)

RETRY_SECONDS = 15.0
"""Pause before a pair that could not be tried out is tried again."""


@dataclass(slots=True)
class Pair:
    """A route's drafter and one of its targets. With a `fault`, which is its obstacle for good, nothing is tried.

    `draft_server` is the server whose tokenizer must match the target's, if the strategy has one. `obstacle` is None
    when drafts can be verified, else the reason why not. `verifier` and `support` are what works, `attempts` what
    each verifier found, by name.
    """

    target: LlamaServer
    draft_server: LlamaServer | None
    verifiers: Sequence[Bound[NativeVerifier]]
    checks: Sequence[Bound[TokenizerCheck]]
    fault: str | None = None
    obstacle: str | None = "not tried out yet"
    mismatches: tuple[Mismatch, ...] = ()
    verifier: Bound[NativeVerifier] | None = None
    support: Support | None = None
    attempts: dict[str, Support] = field(default_factory=dict)
    _tried: int | None = None  # the target's epoch that `attempts` are about

    def __post_init__(self) -> None:
        self.obstacle = self.fault or self.obstacle

    @property
    def vocabulary_limit(self) -> int | None:
        """Ids from here on are unknown to one of the two; None where the sizes are not known."""
        servers = [self.target, self.draft_server]
        sizes = [server.info.n_vocab for server in servers if server is not None and server.info.n_vocab is not None]
        return min(sizes, default=None)

    async def watch(self, inspecting: anyio.Lock) -> None:
        """Keep `obstacle` true until cancelled; `inspecting` lets one pair at a time ask a target."""
        if self.fault is not None:
            return
        servers = [server for server in (self.target, self.draft_server) if server is not None]
        settled: tuple[int, ...] | None = None
        while True:
            changed = anyio.Event()
            stops = [server.on_change(changed.set) for server in servers]
            try:
                epochs = tuple(server.epoch for server in servers)
                if any(server.state is not ServerState.UP for server in servers) or epochs == settled:
                    await changed.wait()
                    continue
                self.obstacle = "being tried out"
                if await self._try(inspecting):
                    settled = epochs
                else:
                    with anyio.move_on_after(RETRY_SECONDS):
                        await changed.wait()
            finally:
                for stop in stops:
                    stop()

    async def _try(self, inspecting: anyio.Lock) -> bool:
        try:
            async with inspecting:
                await self.examine()
        except SpecrouterError as error:
            self.obstacle = str(error)
            log.warning("%s cannot be tried out: %s", self.target.name, error)
            return False
        except Exception:
            self.obstacle = "an error in specrouter, see its log"
            log.exception("trying out %s", self.target.name)
            return False
        return True

    async def examine(self) -> None:
        """Compare the tokenizers and try the verifiers now. Raises UpstreamError, PluginError."""
        self.mismatches = await self._compare()
        if self.mismatches:
            self.obstacle = f"tokenizers differ: {self.mismatches[0]}"
            return
        if self._tried != self.target.epoch:
            self.attempts.clear()
            self._tried = self.target.epoch
        for verifier in self.verifiers:
            name = verifier.info.name
            # A drafter that comes and goes is no reason to bother the target again.
            if name not in self.attempts:
                with guard(verifier.info):
                    self.attempts[name] = await verifier.plugin.inspect(self.target)
            support = self.attempts[name]
            if support.reason is None:
                self.verifier, self.support, self.obstacle = verifier, support, None
                return
        self.obstacle = "; ".join(f"{name}: {support.reason}" for name, support in self.attempts.items())

    async def _compare(self) -> tuple[Mismatch, ...]:
        draft = self.draft_server
        if draft is None:
            return ()
        found: list[Mismatch] = []
        for check in self.checks:
            with guard(check.info):
                found += await check.plugin.check(draft, self.target)
        return tuple(found)
