"""Whether a route's drafts can be verified on a target: found out in the background, ready when a request comes."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import anyio

from .answers import Specimen
from .draft_length import StepMemory
from .errors import SpecrouterError
from .giving_way import giving_way
from .interfaces import DraftStrategy, StepVerifier, Support, TokenizerCheck, Verifier
from .plugins import Bound, guard
from .sampling import regime
from .specimens import take_specimens
from .tokenizers import Comparisons
from .types import Mismatch, Sampling, ServerState
from .upstream import LlamaServer

log = logging.getLogger(__name__)

RETRY_SECONDS = 15.0
"""Pause before a pair that could not be tried out is tried again."""


_PATIENCE = 30.0
"""Seconds, in all, that a trial waits for the end of answers under way: beside one, it would make it slower."""

_WORTH_IT = 1.15
"""Speed, with drafts that are all accepted, from which a verifier has a chance to pay with real ones."""


@dataclass(slots=True)
class Pair:
    """A route's drafter and one of its targets. With a `fault`, which is its obstacle for good, nothing is tried.

    `draft_server` is the server whose tokenizer must match the target's, if the strategy has one. `obstacle` is None
    when drafts can be verified, else the reason why not. `verifier` and `support` are what works, `attempts` what
    each verifier found, by name. Of several verifiers (`verify: auto`), the first one that works and pays is taken.
    `on_mismatch` says what the route does where the tokenizers differ: with `text`, drafts cross as text.
    For a StepVerifier, `specimens` show how the target writes its answers, on the paths on which it does; `pieces` are
    the bytes of its tokens, and `step_memories` hold what was learned, by regime of sampling.
    """

    target: LlamaServer
    draft_server: LlamaServer | None
    verifiers: Sequence[Bound[Verifier]]
    checks: Sequence[Bound[TokenizerCheck]]
    comparisons: Comparisons
    on_mismatch: str = "plain"
    fault: str | None = None
    obstacle: str | None = "not tried out yet"
    mismatches: tuple[Mismatch, ...] = ()
    verifier: Bound[Verifier] | None = None
    support: Support | None = None
    attempts: dict[str, Support] = field(default_factory=dict)
    specimens: Mapping[str, Specimen] = field(default_factory=dict)
    pieces: dict[int, bytes] = field(default_factory=dict)
    step_memories: dict[str, StepMemory] = field(default_factory=dict)
    _tried: int | None = None  # the target's epoch that `attempts` are about

    def __post_init__(self) -> None:
        self.obstacle = self.fault or self.obstacle

    @property
    def decoded_by(self) -> str | None:
        """What does the decoding where there is no obstacle, None where nothing was found to work yet."""
        return None if self.verifier is None else self.verifier.info.name

    @property
    def vocabulary_limit(self) -> int | None:
        """Ids from here on are unknown to one of the two; None where the sizes are not known."""
        servers = [self.target, self.draft_server if self.crosses_as_text is None else None]
        sizes = [server.info.n_vocab for server in servers if server is not None and server.info.n_vocab is not None]
        return min(sizes, default=None)

    @property
    def crosses_as_text(self) -> LlamaServer | None:
        """The draft server whose drafts cross as text, None where drafter and target have one vocabulary."""
        return self.draft_server if self.mismatches and self.on_mismatch == "text" else None

    async def watch(self, inspecting: anyio.Lock) -> None:
        """Keep `obstacle` true until cancelled; `inspecting` lets one pair at a time ask a target."""
        if self.fault is not None:
            return
        needed = [server for server in (self.target, self.draft_server) if server is not None]
        servers = [*needed, *self._compared_with()]
        settled: tuple[int, ...] | None = None
        while True:
            changed = anyio.Event()
            stops = [server.on_change(changed.set) for server in servers]
            try:
                epochs = tuple(server.epoch for server in servers)
                if any(server.state is not ServerState.UP for server in needed) or epochs == settled:
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
                with giving_way(_PATIENCE):
                    await self.examine()
        except SpecrouterError as error:
            self.obstacle = str(error)
            log.warning("%s cannot be tried out: %s", self.target.name, error)
            return False
        except Exception:
            self.obstacle = "an error in specrouter, see its log"
            log.exception("trying out %s", self.target.name)
            return False
        drafter = "" if self.draft_server is None else f" with {self.draft_server.name}"
        if self.obstacle is None:
            log.info("drafting for %s%s works (%s)", self.target.name, drafter, self.decoded_by)
        else:
            log.warning("no drafting for %s%s: %s", self.target.name, drafter, self.obstacle)
        return True

    async def examine(self) -> None:
        """Compare the tokenizers and try the verifiers now. Raises UpstreamError, PluginError."""
        self.mismatches = await self._compare()
        if self.mismatches and self.crosses_as_text is None:
            self.obstacle = f"tokenizers differ: {self.mismatches[0]}"
            return
        if self._tried != self.target.epoch:
            self.attempts.clear()
            self.pieces.clear()
            self.step_memories.clear()
            self._tried = self.target.epoch
        for verifier in self.verifiers:
            name = verifier.info.name
            # A drafter that comes and goes is no reason to bother the target again.
            if name not in self.attempts:
                with guard(verifier.info):
                    support = await verifier.plugin.inspect(self.target)
                if isinstance(verifier.plugin, StepVerifier) and support.reason is None and support.costs is None:
                    support = replace(support, reason=f"{verifier.info} has not measured what its rounds cost")
                self.attempts[name] = support
            support = self.attempts[name]
            pays = len(self.verifiers) == 1 or support.best_speed is None or support.best_speed >= _WORTH_IT
            if support.reason is None and pays:
                if isinstance(verifier.plugin, StepVerifier):
                    self.specimens = await take_specimens(self.target)
                self.verifier, self.support, self.obstacle = verifier, support, None
                return
        self.obstacle = "; ".join(f"{name}: {_why_not(support)}" for name, support in self.attempts.items())

    def step_memory(self, sampling: Sampling) -> StepMemory:
        """What was learned about drafting under this kind of sampling, or what to believe before."""
        assert self.support is not None
        assert self.support.costs is not None, "without them a StepVerifier is not taken"
        known = self.step_memories.get(regime(sampling))
        if known is None:
            known = StepMemory.fresh(self.support.costs, is_greedy=sampling.is_greedy)
            self.step_memories[regime(sampling)] = known
        return known

    def _compared_with(self) -> Sequence[LlamaServer]:
        """Servers that need not be up, and whose model matters."""
        return ()

    async def _compare(self) -> tuple[Mismatch, ...]:
        draft = self.draft_server
        if draft is None:
            return ()
        return tuple(
            [
                mismatch
                for check in self.checks
                for mismatch in await self.comparisons.mismatches(check, draft, self.target)
            ]
        )


@dataclass(slots=True)
class SelfDrafting(Pair):
    """A route's server that answers and drafts by itself, as its `strategy` says. It is the `target` here.

    Those it answers in place of are the `others`: they have to have its model.
    """

    strategy: Bound[DraftStrategy] = field(kw_only=True)
    others: Sequence[LlamaServer] = field(kw_only=True)

    @property
    def decoded_by(self) -> str:
        """The strategy."""
        return self.strategy.info.name

    async def examine(self) -> None:
        """Try now whether it drafts, with the model of the others that are up. Raises UpstreamError, PluginError."""
        other = self._other_model()
        if other is not None:
            self.obstacle = other
            return
        # Another one that comes and goes is no reason to bother it again.
        if self.support is None or self.support.reason is not None or self._tried != self.target.epoch:
            with guard(self.strategy.info):
                self.support = await self.strategy.plugin.inspect()
            self._tried = self.target.epoch
        self.obstacle = self.support.reason

    def _compared_with(self) -> Sequence[LlamaServer]:
        return self.others

    def _other_model(self) -> str | None:
        """In what its model differs from that of another server, None where nothing is known to differ."""
        mine = self.target.info
        for other in self.others:
            if other.state is not ServerState.UP:
                continue
            for what in ("n_vocab", "n_params"):
                here, there = getattr(mine, what), getattr(other.info, what)
                if here is not None and there is not None and here != there:
                    return f"server {self.target.name} has another model than {other.name}: {what} {here}, not {there}"
            templates = (mine.chat_template, other.info.chat_template)
            if None not in templates and templates[0] != templates[1]:
                return f"server {self.target.name} has another chat template than {other.name}"
        return None


def _why_not(support: Support) -> str:
    if support.reason is not None or support.best_speed is None:
        return str(support.reason)
    return f"even with drafts that are all accepted, only x{support.best_speed:.2f} of the target's speed"
