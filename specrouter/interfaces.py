"""The classes that plugins implement. A hook of `specrouter.hookspecs` returns classes like these.

Every plugin class is instantiated once per route that names it, with its checked `options` and the servers of
the topology, while no event loop runs in that thread. A reload keeps the instances of a route whose plugins, options
and servers are the same. Calls into a plugin pass a guard that names the plugin when it raises; on the draft side a
fault ends drafting for that request and nothing else.
"""

from __future__ import annotations

import abc
import random
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from .types import Acceptance, Delta, DraftCounts, DraftToken, Mismatch, Outcome, Sampling, Verification

if TYPE_CHECKING:
    from .upstream import LlamaServer
    from .workers import Workers

JsonSchema = Mapping[str, Any]


class Plugin(abc.ABC):
    """What all plugin classes share.

    `name` is what the YAML says after `use:`; the first line of the docstring is what `specrouter plugins`
    shows. `options_schema` is a JSON schema of an object; a string property with `"format": "server"` must name
    a server of the topology that is no target of the route, one with `"format": "answering_server"` any server. A
    property with `"format": "draft_strategy"` names a draft strategy as a route does; in `options`, a DraftStrategy
    made for the same route stands there, and what it raises names it. Raise ValueError from `__init__` for options a
    schema cannot describe.
    """

    name: ClassVar[str]
    options_schema: ClassVar[JsonSchema] = {"type": "object", "properties": {}, "additionalProperties": False}

    # Not abstract on purpose: a plugin without state or options needs no __init__.
    def __init__(self, options: Mapping[str, Any], servers: Mapping[str, LlamaServer]) -> None:
        self.options = options
        self.servers = servers


@dataclass(frozen=True, slots=True)
class Generation:
    """One request as drafters and verifiers see it.

    `prompt` holds the ids the target evaluates (BOS included), in the target's vocabulary. `max_tokens` is None
    where the request sets no limit. Draft only ids below `vocabulary_limit`. `draft_server` is the server that drafts,
    None where the strategy has none. Where drafts cross as text, a drafter sees that server as its `target`, and all
    ids are in its vocabulary.
    """

    route: str
    target: LlamaServer
    prompt: Sequence[int]
    sampling: Sampling
    max_tokens: int | None = None
    vocabulary_limit: int | None = None
    draft_server: LlamaServer | None = None


class Drafter(abc.ABC):
    """Drafts for one request. Closed with `aclose()` when the request ends, however it ends."""

    @abc.abstractmethod
    def draft(self, context: Sequence[int], max_tokens: int) -> AsyncGenerator[DraftToken]:
        """Yield up to `max_tokens` tokens that may follow `context`, each as soon as it is known.

        Ending early is allowed, raising ends drafting for this request. The generator is closed (`aclose`) at the
        first token that turned out wrong; `draft` is then called again with the new context.
        """

    def observe(self, outcome: Outcome) -> None:  # noqa: B027  (optional hook, not abstract)
        """Learn what became of the tokens drafted last."""

    async def aclose(self) -> None:  # noqa: B027
        """Release what the drafter holds."""


class DraftStrategy(Plugin):
    """Where draft tokens come from."""

    def available(self) -> str | None:
        """None, or the reason why nothing can be drafted now. Answers at once, from what is known."""
        return None

    def draft_server(self) -> LlamaServer | None:
        """The server whose tokenizer the drafts come from and must match the target's, else None."""
        return None

    def answering_server(self) -> LlamaServer | None:
        """The server that answers the route's requests itself and drafts natively, else None.

        While the strategy is `available` and `inspect` has found that this server drafts, requests go there first, and
        the targets are what is left otherwise. Always the same one, from an option of `"format": "answering_server"`.
        """
        return None

    def workers(self) -> Workers | None:
        """The RPC workers that the `answering_server` computes with, for the status; None where there are none."""
        return None

    async def inspect(self) -> Support:
        """Try on the running `answering_server` whether it drafts.

        Called in the background when it came up, and by `specrouter check` in any state. Raises UpstreamError where
        the server does not answer; it is asked again later.
        """
        return Support()

    async def watch(self) -> None:
        """Keep true what `available` says from, as long as the route exists, until cancelled.

        Also runs for strategies within the options of another one. May return where there is nothing to watch; what
        it raises is logged and ends it.
        """

    @abc.abstractmethod
    def start(self, generation: Generation) -> Drafter | None:
        """A drafter for this request, or None to leave it to the target alone. Does no I/O."""


@dataclass(frozen=True, slots=True)
class Support:
    """Whether a verifier works with a target, or a draft strategy's server drafts, as tried on the running server.

    `reason` is None when it works. `details` are its findings for people and machines; `advice` is what to
    change, for example flags to add to the target's command line. `best_speed` is what it can make of the target's
    speed (1.0) with drafts that are all accepted, None where that depends on more than the target. `costs` is there
    where a StepVerifier works.
    """

    reason: str | None = None
    details: Mapping[str, Any] = field(default_factory=dict)
    advice: str | None = None
    best_speed: float | None = None
    costs: RoundCosts | None = None


class Companion(abc.ABC):
    """Runs beside one proxied request and never in its way."""

    counts: DraftCounts

    @abc.abstractmethod
    async def run(self, deltas: AsyncIterator[Sequence[Delta]]) -> None:
        """Follow the answer until it ends. Each item holds all that arrived since the last one.

        Cancelled when the request ends, however it ends.
        """


class Verifier(Plugin):
    """How draft tokens are verified by a target: a NativeVerifier or a StepVerifier."""

    @abc.abstractmethod
    async def inspect(self, target: LlamaServer) -> Support:
        """Try on the running target whether this works. Called in the background, when the target came up.

        Raises UpstreamError where the target does not answer; it is asked again later.
        """


class NativeVerifier(Verifier):
    """How draft tokens are shown to a target that verifies them itself, with its own sampler."""

    @abc.abstractmethod
    def accompany(self, generation: Generation, drafter: Drafter, support: Support) -> Companion:
        """A companion for this request. Does no I/O."""


@dataclass(frozen=True, slots=True)
class RoundCosts:
    """What a `StepVerifier` needs in time, in seconds, as measured on the running target.

    `plain` is what the target alone needs for a token; `rounds[K]` what a round with a draft of K tokens needs.
    """

    plain: float
    rounds: Sequence[float]

    @property
    def longest_draft(self) -> int:
        """The largest K."""
        return len(self.rounds) - 1

    @property
    def best_speed(self) -> float:
        """Tokens in the time of one plain token, if every draft token were accepted."""
        return max((length + 1) * self.plain / seconds for length, seconds in enumerate(self.rounds))


class StepSession(abc.ABC):
    """Asks the target step by step, for one request."""

    @abc.abstractmethod
    async def verify(self, context: Sequence[int], draft: Sequence[int]) -> Verification:
        """What the target says at each of the K + 1 positions of `draft` behind `context`. One round trip.

        Raises UpstreamError.
        """


class StepVerifier(Verifier):
    """How a target that does not verify by itself is asked what it says at the positions of a draft.

    The router then writes the answer from what the acceptance policy makes of it. Where `inspect` finds that it works,
    `Support.costs` holds its RoundCosts. `stands_down` is False where drafts are to be verified even if that makes
    the answer slower.
    """

    stands_down: bool = True

    @abc.abstractmethod
    def obstacle(self, target: LlamaServer, body: Mapping[str, Any]) -> str | None:
        """Why the answer to a request could not be exactly the target's, or None. `body` is its `/completion` form.

        Answers at once, from what `inspect` has found out about the target.
        """

    @abc.abstractmethod
    def start(self, generation: Generation, body: Mapping[str, Any], *, distributions: bool) -> StepSession:
        """A session for a request with this body; with `distributions`, verifications carry complete ones."""


class AcceptancePolicy(Plugin):
    """Which draft tokens are accepted, given what the target says. Pure: no I/O, no state."""

    is_lossless: ClassVar[bool] = True

    @property
    def needs_distributions(self) -> bool:
        """Whether `accept` needs `verification.probabilities`, complete at every position."""
        return False

    @abc.abstractmethod
    def covers(self, sampling: Sampling) -> bool:
        """Whether this policy is exact for requests sampled this way."""

    @abc.abstractmethod
    def accept(
        self, draft: Sequence[DraftToken], verification: Verification, sampling: Sampling, rng: random.Random
    ) -> Acceptance:
        """Accept a prefix of `draft` (K tokens, given K + 1 positions) and name the token that follows it.

        `rng` is the only source of chance, and independent of how the draft and `verification.tokens` were drawn.
        Raises IncompleteDistribution, before it has drawn from `rng`, where it cannot decide without complete
        distributions; a policy that needs none decides about the same draft and verification then.
        """


class TokenizerCheck(Plugin):
    """Whether two servers' tokenizers agree."""

    @abc.abstractmethod
    async def check(self, draft: LlamaServer, target: LlamaServer) -> Sequence[Mismatch]:
        """All mismatches found, empty when compatible."""
