"""Plain data that the router and its plugins exchange. No I/O, no behaviour beyond small derived values."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


class ServerState(enum.Enum):
    """What is known about a server from probes and from the requests it has seen.

    STOPPED is a server that the router runs itself and that nobody needs now: a request starts it.
    """

    UNKNOWN = "unknown"
    STOPPED = "stopped"
    LOADING = "loading"
    UP = "up"
    DOWN = "down"


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """What a llama-server says about itself (`/v1/models`, `/props`); None where it does not say.

    `n_ctx` is the context of one slot in tokens, `slots` the number of requests it decodes at once, `n_bytes` the size
    of the weights, `ftype` how they are quantised (`Q4_K - Medium`).
    """

    model: str | None = None
    n_vocab: int | None = None
    vocab_type: int | None = None
    n_ctx: int | None = None
    n_ctx_train: int | None = None
    n_params: int | None = None
    n_bytes: int | None = None
    ftype: str | None = None
    slots: int | None = None
    build: str | None = None
    model_path: str | None = None
    bos_token: str | None = None
    eos_token: str | None = None
    chat_template: str | None = None
    modalities: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Token:
    """A token: its `id` in the target's vocabulary and its `piece`, the bytes it stands for."""

    id: int
    piece: bytes


@dataclass(frozen=True, slots=True)
class DraftToken:
    """A token a drafter proposes.

    `probability` is the drafter's own confidence in [0, 1], or None where it has none. How much of it comes
    true is learned by the verifier; a drafter need not calibrate it.

    `distribution` (token id → probability) is the complete distribution that the token was drawn from, with random
    numbers nobody else uses. Whether the token is then proposed must not depend on which one was drawn, here or later.
    None says that there is nothing to go by: the token was chosen without chance, or in a way that is not known.
    That is exact too, for any way of choosing, and costs some acceptance where there was chance.
    """

    id: int
    piece: bytes
    probability: float | None = None
    distribution: Mapping[int, float] | None = None


@dataclass(frozen=True, slots=True)
class Sampling:
    """The part of a request that decides how the target samples.

    `temperature` is None where the request leaves it to the server, `seed` also where it asks for a random one.
    `is_greedy` is certain only when the request itself says so.
    """

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int | None = None
    constrained: bool = False

    @property
    def is_greedy(self) -> bool:
        """The target takes its most likely token at every position."""
        return self.top_k == 1 or (self.temperature is not None and self.temperature <= 0)


class Channel(enum.Enum):
    """Which part of an answer a piece of text belongs to."""

    CONTENT = "content"
    REASONING = "reasoning"
    TOOL_CALL = "tool_call"


@dataclass(frozen=True, slots=True)
class Delta:
    """What one event of the target's stream adds to the visible answer.

    `token_ids` are the ids of exactly this text, empty where the endpoint does not report all of them.
    `received` is when the event arrived, in seconds of `time.monotonic()`.
    """

    text: str = ""
    channel: Channel = Channel.CONTENT
    token_ids: Sequence[int] = ()
    finished: bool = False
    received: float = 0.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a drafter's tokens: how many were drafted in a row, how many of those the target said."""

    drafted: int
    accepted: int


@dataclass(frozen=True, slots=True)
class Verification:
    """What a target says at each of the K + 1 positions of a draft of K tokens.

    Position i is the one behind the first i draft tokens. `tokens` are the ids its own sampler chose, one per position,
    each with a random number of its own (`specrouter.sampling.position_seed`). `probabilities`, where known, are the
    distributions (token id → probability) they were drawn from, after all samplers. `ends` are those tokens with which
    the target ends its text, `pieces` the bytes of tokens as far as they are known. Of the tokens before the draft,
    `cached` needed no evaluation.
    """

    tokens: Sequence[int]
    probabilities: Sequence[Mapping[int, float]] | None = None
    ends: frozenset[int] = frozenset()
    pieces: Mapping[int, bytes] = field(default_factory=dict)
    cached: int = 0


@dataclass(frozen=True, slots=True)
class Acceptance:
    """What a policy decides: how many draft tokens are accepted, and the token that follows them.

    The next token is the bonus token when all were accepted, else the recovered one.
    """

    accepted: int
    next_token: int


@dataclass(frozen=True, slots=True)
class Mismatch:
    """One way in which a drafter's and a target's tokenizers differ, in words for people."""

    what: str
    draft: str
    target: str

    def __str__(self) -> str:
        return f"{self.what}: draft has {self.draft}, target has {self.target}"


_LONGEST_REASON = 240


@dataclass(frozen=True, slots=True)
class Decoding:
    """How a request is decoded and why.

    `verifier` is the name of the one whose companion runs beside the request, or that is asked step by step, or of the
    draft strategy whose server drafts by itself; None is the target alone. `reason` is given where drafting was
    declared and does not happen. `is_lossless` is False where an acceptance policy may change the answer.
    """

    verifier: str | None = None
    reason: str | None = None
    is_lossless: bool = True

    def __str__(self) -> str:
        """The value of the header `x-specrouter-decoding`: printable ASCII, one line, not long."""
        text = self.verifier or "plain"
        if self.reason is not None:
            text += f"; reason={self.reason}"
        if not self.is_lossless:
            text += "; lossy"
        # A reason may quote a server or a plugin.
        line = " ".join("".join(c if " " <= c <= "~" else " " if c.isspace() else "?" for c in text).split())
        return line if len(line) <= _LONGEST_REASON else f"{line[:_LONGEST_REASON]}..."


@dataclass(slots=True)
class DraftCounts:
    """What a companion did for one request.

    Tokens `drafted`, `primed` (evaluated by the target in `primes` side requests) and `confirmed` (drafted ones that
    the target said), of those `predicted` in all; how often drafting `stood_down`. `drafts` counts the target's
    verifications of a draft, `accepted_per_position` those that accepted the draft's first, second, … token: both as
    far as they can be told from when tokens arrive.
    """

    drafted: int = 0
    primed: int = 0
    primes: int = 0
    confirmed: int = 0
    predicted: int = 0
    stood_down: int = 0
    drafts: int = 0
    accepted_per_position: list[int] = field(default_factory=list)

    def add_verification(self, accepted: int) -> None:
        """Count the verification of a draft whose first `accepted` tokens were accepted."""
        self.drafts += 1
        self.accepted_per_position += [0] * (accepted - len(self.accepted_per_position))
        for position in range(accepted):
            self.accepted_per_position[position] += 1
