"""The classes that plugins implement. A hook of `specrouter.hookspecs` returns classes like these.

Every plugin class is instantiated once per route that names it, with its checked `options` and the servers of
the topology. Calls into a plugin pass a guard that names the plugin when it raises; on the draft side a fault
ends drafting for that request and nothing else.
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

JsonSchema = Mapping[str, Any]


class Plugin(abc.ABC):
    """What all plugin classes share.

    `name` is what the YAML says after `use:`; the first line of the docstring is what `specrouter plugins`
    shows. `options_schema` is a JSON schema of an object; a string property with `"format": "server"` must name
    a server of the topology. Raise ValueError from `__init__` for options a schema cannot describe.
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
    where the request sets no limit. Draft only ids below `vocabulary_limit`.
    """

    route: str
    target: LlamaServer
    prompt: Sequence[int]
    sampling: Sampling
    max_tokens: int | None = None
    vocabulary_limit: int | None = None


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

    @abc.abstractmethod
    def start(self, generation: Generation) -> Drafter | None:
        """A drafter for this request, or None to leave it to the target alone. Does no I/O."""


@dataclass(frozen=True, slots=True)
class Support:
    """Whether a verifier works with a target, as tried on the running server.

    `reason` is None when it works. `details` are its findings for people and machines; `advice` is what to
    change, for example flags to add to the target's command line.
    """

    reason: str | None = None
    details: Mapping[str, Any] = field(default_factory=dict)
    advice: str | None = None


class Companion(abc.ABC):
    """Runs beside one proxied request and never in its way."""

    counts: DraftCounts

    @abc.abstractmethod
    async def run(self, deltas: AsyncIterator[Sequence[Delta]]) -> None:
        """Follow the answer until it ends. Each item holds all that arrived since the last one.

        Cancelled when the request ends, however it ends.
        """


class NativeVerifier(Plugin):
    """How draft tokens are shown to a target that verifies them itself, with its own sampler."""

    @abc.abstractmethod
    async def inspect(self, target: LlamaServer) -> Support:
        """Try on the running target whether this works. Called in the background, when the target came up.

        Raises UpstreamError where the target does not answer; it is asked again later.
        """

    @abc.abstractmethod
    def accompany(self, generation: Generation, drafter: Drafter, support: Support) -> Companion:
        """A companion for this request. Does no I/O."""


class AcceptancePolicy(Plugin):
    """Which draft tokens are accepted, given what the target says. Pure: no I/O, no state."""

    is_lossless: ClassVar[bool] = True

    @abc.abstractmethod
    def covers(self, sampling: Sampling) -> bool:
        """Whether this policy is exact for requests sampled this way."""

    @abc.abstractmethod
    def accept(
        self, draft: Sequence[int], verification: Verification, sampling: Sampling, rng: random.Random
    ) -> Acceptance:
        """Accept a prefix of `draft` and name the token that follows it."""


class TokenizerCheck(Plugin):
    """Whether two servers' tokenizers agree."""

    @abc.abstractmethod
    async def check(self, draft: LlamaServer, target: LlamaServer) -> Sequence[Mismatch]:
        """All mismatches found, empty when compatible."""
