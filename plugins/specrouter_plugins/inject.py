"""Verifier `inject`: drafts reach the target's own n-gram pool through side requests, and the target verifies them."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import anyio
import anyio.abc

from specrouter.crossing import tokens_behind
from specrouter.errors import UpstreamError
from specrouter.governor import Memory
from specrouter.hookspecs import hookimpl
from specrouter.interfaces import Companion, Drafter, Generation, NativeVerifier, Support
from specrouter.measuring import TargetSpeed, measure_target
from specrouter.ngram_pool import FLAGS, PoolSettings, find_pool
from specrouter.pacing import FinishedStep
from specrouter.priming import Prime, Priming
from specrouter.random_text import random_tokens
from specrouter.sampling import regime
from specrouter.tasks import background
from specrouter.types import Delta, DraftCounts, Outcome, Token
from specrouter.upstream import LlamaServer

log = logging.getLogger(__name__)

_SLOW_PRIME = 2.0
"""Seconds after which a prime is given up: all slots are busy, also with answers that the router knows nothing of."""

_MARK = 8
"""Tokens of the mark: enough for a tenth of any prime, llama-server's least for a slot to be preferred."""

_LEAD_IN = 16
"""Tokens before a text that are enough to split it as it would be within the whole."""

_NO_LIMIT = 2**31


@dataclass(slots=True)
class Known:
    """What the companions of one target have in common: a mark, ids of texts of one token, and a round trip.

    Primes begin with the mark. A server gives a request the idle slot that knows most of its prompt: so primes find
    the slot of earlier ones, and leave those of conversations alone. `primes` are being evaluated, or wait for that.
    """

    mark: Sequence[int] = ()
    names: dict[bytes, int] = field(default_factory=dict)
    round_trip: float = 0.0
    primes: int = 0


class InjectCompanion(Companion):
    """Follows one answer, keeps a draft ahead of it, and primes the target when its `Priming` says so."""

    def __init__(
        self,
        generation: Generation,
        drafter: Drafter,
        pool: PoolSettings,
        memory: Memory,
        known: Known,
    ) -> None:
        self.counts = DraftCounts()
        self._target = generation.target
        self._vocabulary_limit = generation.vocabulary_limit or _NO_LIMIT
        self._drafter = drafter
        self._n_max = pool.n_max
        self._known = known
        self._priming = Priming(
            generation.prompt,
            memory,
            n_match=pool.n_match,
            n_max=pool.n_max,
            # Without a server, drafting is next to nothing, and what it learns from the answer is worth more.
            spares_drafter=generation.draft_server is not None,
        )
        self._follower, self._governor = self._priming.follower, self._priming.governor
        self._prompt_length = len(generation.prompt)
        self._unidentified = b""
        self._draft_scope = anyio.CancelScope()
        self._draft_wanted = anyio.Event()
        self._prime_wanted = anyio.Event()

    async def run(self, deltas: AsyncIterator[Sequence[Delta]]) -> None:
        """Until the answer ends or the drafter fails."""
        async with background() as tasks:
            tasks.start_soon(self._draft)
            tasks.start_soon(self._prime, tasks)
            async for arrived in deltas:
                self._governor.beside = self._beside()
                for delta in arrived:
                    await self._follow(delta)
                self._after_deltas()

    def _beside(self) -> int:
        """How many other answers the target is saying, as far as we know: more than it has slots have to wait."""
        target = self._target
        answers = min(target.in_flight, target.info.slots or target.in_flight)
        return max(0, answers - 1)

    def _has_room(self, primes: int) -> bool:
        """Whether the target has a slot besides those of the answers under way and of so many primes.

        Without one, a prime waits for the end of an answer, and then keeps the others waiting.
        """
        slots = self._target.info.slots
        return slots is None or self._target.in_flight + primes < slots

    # -- follow --------------------------------------------------------------------------------------------

    async def _follow(self, delta: Delta) -> None:
        priming = self._priming
        if not delta.text and not delta.token_ids:
            if delta.finished:
                self._count_step(priming.end(delta.received))
            return
        if priming.clock.begins_step(delta.received):
            # What arrives together may be of several steps.
            self._after_deltas()
            self._count_step(priming.begin_step(delta.received))
        before = len(self._follower.confirmed)
        if delta.token_ids:
            await self._identify()
        self._unidentified += self._follower.take(delta)
        # Nobody needs to know while drafting rests, and asking costs the target a little each time.
        if not self._governor.is_resting:
            await self._identify()
        priming.clock.tokens += max(1, len(self._follower.confirmed) - before)

    def _count_step(self, step: FinishedStep | None) -> None:
        # Also without a prime: the target's pool knows earlier answers.
        if step is None or (not step.verified and step.tokens <= 1):
            return
        accepted = step.tokens - 1
        # More than a draft can hold: several steps that were read together.
        while accepted > self._n_max:
            self.counts.add_verification(self._n_max)
            accepted -= self._n_max + 1
        self.counts.add_verification(accepted)

    async def _identify(self) -> None:
        """Find the token ids of what the target said and no draft foresaw."""
        text = self._unidentified
        if not text:
            return
        known = self._known.names.get(text)
        ids = await self._ask_for_ids(text) if known is None else [known]
        if ids is None:
            return
        # Only now: until its ids are known, no draft may begin behind this text.
        self._unidentified = self._unidentified[len(text) :]
        self._follower.resolve(ids)

    async def _ask_for_ids(self, text: bytes) -> list[int] | None:
        """The ids of the tokens that are exactly this text; None where the target's tokenizer finds none."""
        started = time.monotonic()
        tokens = await self._target.tokenize(text.decode("utf-8", "replace"))
        self._known.round_trip = time.monotonic() - started
        if b"".join(token.piece for token in tokens) != text:
            behind = await self._tokens_behind(text)
            if behind is None:
                return None
            tokens = behind
        if len(tokens) == 1:
            self._known.names[text] = tokens[0].id
        return [token.id for token in tokens]

    async def _tokens_behind(self, text: bytes) -> list[Token] | None:
        """Some tokenizers put a space before every text; behind another one it stays away."""
        confirmed = await self._target.pieces.of(self._follower.confirmed[-_LEAD_IN:])
        # The end of a line is a token of its own where the last piece and the text would be one.
        for before in (confirmed, [b"\n"]):
            found = await tokens_behind(self._target, before, text, revisable=0)
            if found is not None:
                return found[1]
        return None

    def _after_deltas(self) -> None:
        hits, misses = self._priming.settle()
        self.counts.confirmed += len(hits)
        self.counts.predicted = len(self._follower.confirmed) - self._prompt_length
        self.counts.stood_down = self._governor.stood_down
        if hits or misses:
            self._drafter.observe(Outcome(len(hits) + len(misses), len(hits)))
        if self._priming.should_stop_draft:
            self._draft_scope.cancel()
        self._draft_wanted.set()
        self._prime_wanted.set()

    # -- draft ---------------------------------------------------------------------------------------------

    async def _draft(self) -> None:
        while True:
            self._draft_wanted = anyio.Event()
            count = self._priming.tokens_to_draft if self._has_room(0) else 0
            if not count or self._unidentified:
                await self._draft_wanted.wait()
                continue
            context = self._priming.restart()
            drafted = self.counts.drafted
            with anyio.CancelScope() as self._draft_scope:
                await self._draft_from(context, count)
            if self.counts.drafted == drafted and not self._draft_scope.cancelled_caught:
                # The draft model has ended its text; the target may not.
                await self._draft_wanted.wait()

    async def _draft_from(self, context: Sequence[int], ahead: int) -> None:
        async with aclosing(self._drafter.draft(context, ahead)) as tokens:
            async for token in tokens:
                if not 0 <= token.id < self._vocabulary_limit:
                    return
                self.counts.drafted += 1
                self._known.names.setdefault(token.piece, token.id)
                if not self._follower.add_draft(token):
                    return
                self._prime_wanted.set()

    # -- prime ---------------------------------------------------------------------------------------------

    async def _prime(self, tasks: anyio.abc.TaskGroup) -> None:
        priming = self._priming
        while True:
            self._prime_wanted = anyio.Event()
            has_room = self._has_room(self._known.primes - priming.in_flight)
            next_one = priming.next_prime(time.monotonic(), self._known.round_trip) if has_room else None
            if isinstance(next_one, Prime):
                self._send(tasks, next_one)
                continue
            with anyio.move_on_after(next_one):
                await self._prime_wanted.wait()

    def _send(self, tasks: anyio.abc.TaskGroup, prime: Prime) -> None:
        self.counts.primes += 1
        self._known.primes += 1
        tasks.start_soon(self._prime_with, prime)

    async def _prime_with(self, prime: Prime) -> None:
        try:
            primed = await self._target.prime([*self._known.mark, *prime.ids], timeout=_SLOW_PRIME)
        except UpstreamError as error:
            log.debug("a prime failed: %s", error)
            self._priming.failed(prime)
        else:
            self.counts.primed += primed.evaluated
            self._priming.answered(prime, time.monotonic(), primed.evaluated)
        finally:
            self._known.primes -= 1
            self._prime_wanted.set()


class Inject(NativeVerifier):
    """Put drafts into the target's n-gram pool by side requests; the target verifies them with its own sampler."""

    name = "inject"

    def __init__(self, options: Mapping[str, Any], servers: Mapping[str, LlamaServer]) -> None:
        super().__init__(options, servers)
        self._memories: dict[tuple[str, int, str], Memory] = {}
        self._known: dict[tuple[str, int], Known] = {}

    async def inspect(self, target: LlamaServer) -> Support:
        """Prime random text and see whether the target drafts it."""
        name, epoch = target.name, target.epoch
        self._known = {key: known for key, known in self._known.items() if key[0] != name or key[1] == epoch}
        self._memories = {key: memory for key, memory in self._memories.items() if key[0] != name or key[1] == epoch}
        if target.info.slots == 1:
            return Support(
                reason=f"server {target.name} has one slot, the side requests need another",
                advice=f"start it without -np 1, and with {FLAGS}",
            )
        pool = await find_pool(target)
        if pool is None:
            return Support(
                reason=f"server {target.name} has no n-gram pool that verifies drafts",
                advice=f"start it with {FLAGS}",
            )
        details = {"n_match": pool.n_match, "n_min": pool.n_min, "n_max": pool.n_max, "pool": pool}
        if pool.n_min > 4:
            reason = f"server {target.name} drafts only chains of {pool.n_min} tokens and more"
            return Support(reason=reason, details=details, advice="start it with --spec-ngram-mod-n-min 1")
        return Support(details={**details, "speed": await _speed(target)})

    def accompany(self, generation: Generation, drafter: Drafter, support: Support) -> Companion:
        """A companion that learns from those before it on this route with this kind of sampling."""
        # A server that came back may be another machine or model: its epoch is part of what was learned about it.
        target = (generation.target.name, generation.target.epoch)
        key = (*target, regime(generation.sampling))
        memory = self._memories.get(key)
        speed: TargetSpeed | None = support.details.get("speed")
        if memory is None:
            batches = None if speed is None else speed.batches
            memory = self._memories[key] = Memory.fresh(is_greedy=generation.sampling.is_greedy, batches=batches)
        known = self._known.get(target)
        if known is None:
            mark = random_tokens(generation.target, _MARK)
            known = self._known[target] = Known(mark, round_trip=0.0 if speed is None else speed.round_trip)
        return InjectCompanion(generation, drafter, support.details["pool"], memory, known)


async def _speed(target: LlamaServer) -> TargetSpeed | None:
    """What batches cost a target, if it says. Answers teach it too, but only for the sizes that seem to pay."""
    try:
        return await measure_target(target, repeats=1)
    except UpstreamError as error:
        log.debug("what batches cost %s could not be measured: %s", target.name, error)
        return None


@hookimpl
def specrouter_verifiers() -> list[type[NativeVerifier]]:
    return [Inject]
