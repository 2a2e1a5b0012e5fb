"""Verifier `fanout`: one request with a prompt per position of the draft, a token each: any llama-server with slots."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

from specrouter.errors import UpstreamRejected
from specrouter.hookspecs import hookimpl
from specrouter.interfaces import Generation, JsonSchema, RoundCosts, StepSession, StepVerifier, Support
from specrouter.next_token import Chosen, is_text, next_tokens, sampling_fields
from specrouter.random_text import random_tokens, tried_again
from specrouter.sampling import RANDOM_SEED, position_seed, sampling_of
from specrouter.step_cost import Curve
from specrouter.tasks import gather
from specrouter.types import Verification
from specrouter.upstream import LlamaServer

_TIMEOUT = 60.0
_MORE_SLOTS = "start it with -np 4 (slots share the context: make -c four times as large)"
_TRIED_PROMPT = 48  # tokens
_PLAIN_TOKENS = 8
_TRIES = 4
_ATTEMPTS = 3
_SHORTEST_STEP = 1e-6  # seconds

_RARE_CHARACTER = "\U0002a6a5"
"""No vocabulary has a token of its own for it, those that know bytes have several."""

_WHOLE_DISTRIBUTION = 1000
"""Entries; what is left after the usual samplers is far less, and what is more is found to be incomplete."""

_OWN = {"n_predict": ("-n", -1), "stop": ("-r", []), "grammar": ("--grammar", "")}
"""Settings that a server may have been started with: their flags, and what they are without them."""


class FanoutSession(StepSession):
    """Asks a target what it says at each position of a draft, every position in a slot of its own."""

    def __init__(
        self, generation: Generation, sampling: Mapping[str, Any], ends: set[int], *, distributions: bool
    ) -> None:
        self._target = generation.target
        self._sampling = dict(sampling)
        self._seed = generation.sampling.seed
        # A server may have a seed by default, and one request one random number.
        self._sampling.setdefault("seed", RANDOM_SEED)
        if generation.sampling.is_greedy:
            # No chance is left: one request for all positions will do.
            self._sampling["seed"], self._seed = RANDOM_SEED, None
        self._ends = ends
        self._top = _WHOLE_DISTRIBUTION if distributions else 0

    async def verify(self, context: Sequence[int], draft: Sequence[int]) -> Verification:
        """One request; with a seed one for each position, so that each gets a random number of its own."""
        prompts = [[*context, *draft[:length]] for length in range(len(draft) + 1)]
        if self._seed is None:
            chosen = await next_tokens(self._target, prompts, self._sampling, top=self._top)
        else:
            chosen = await self._seeded(prompts, self._seed)
        self._ends.update(choice.token for choice in chosen if choice.ends)
        return Verification(
            tokens=[choice.token for choice in chosen],
            # An empty one is incomplete at its position, and only there.
            probabilities=[choice.distribution or {} for choice in chosen] if self._top else None,
            ends=frozenset(self._ends),
            pieces={token: piece for choice in chosen for token, piece in choice.pieces.items()},
            cached=chosen[0].cached,
        )

    async def _seeded(self, prompts: Sequence[Sequence[int]], seed: int) -> list[Chosen]:
        async def ask(prompt: Sequence[int]) -> Chosen:
            sampling = {**self._sampling, "seed": position_seed(seed, len(prompt))}
            [chosen] = await next_tokens(self._target, [prompt], sampling, top=self._top)
            return chosen

        return await gather([partial(ask, prompt) for prompt in prompts])


class Fanout(StepVerifier):
    """Ask the target for its own token at every position of the draft at once, each in a slot of its own."""

    name = "fanout"
    options_schema: ClassVar[JsonSchema] = {
        "type": "object",
        "properties": {
            "max_draft": {
                "type": "integer",
                "minimum": 1,
                "maximum": 63,
                "description": "The longest draft, in tokens; by default one less than the target has slots.",
            },
            "stand_down": {
                "type": "boolean",
                "default": True,
                "description": "Stop drafting where it makes answers slower; false is for measurements.",
            },
        },
        "additionalProperties": False,
    }

    def __init__(self, options: Mapping[str, Any], servers: Mapping[str, LlamaServer]) -> None:
        super().__init__(options, servers)
        self.stands_down = bool(options.get("stand_down", True))
        self._ends: dict[str, set[int]] = {}
        self._greedy_only: set[str] = set()

    async def inspect(self, target: LlamaServer) -> Support:
        """Measure rounds with short and long drafts, and see whether the slots keep what they have evaluated."""
        return await tried_again(partial(self._inspect, target), _ATTEMPTS)

    async def _inspect(self, target: LlamaServer) -> Support:
        slots = target.info.slots or 1
        if slots < 2:
            return Support(
                reason=f"server {target.name} has one slot, every position of a draft needs one",
                advice=_MORE_SLOTS,
            )
        longest = min(slots - 1, self.options.get("max_draft", slots - 1))
        plain, settings = await _plain_step(target)
        stateful = _stateful(settings)
        if stateful is not None:
            return Support(reason=f"server {target.name} samples with {stateful} by default")
        own = _own_flag({**settings, "n_predict": await _own_limit(target)})
        if own is not None:
            return Support(
                reason=f"server {target.name} was started with {own}, which single tokens do not show",
                advice=f"start it without {own}",
            )
        self._ends[target.name] = _ends(settings)
        prompt = random_tokens(target, _TRIED_PROMPT)
        rounds = [await _round(target, prompt, length) for length in (0, 1, longest)]
        if any(seconds is None for seconds in rounds):
            return Support(
                reason=f"server {target.name} forgets in its slots what it has evaluated",
                advice=f"{_MORE_SLOTS} or --no-cache-idle-slots",
            )
        measured = [seconds for seconds in rounds if seconds is not None]
        seconds = Curve({0: measured[0], 1: measured[1], longest: measured[2]})
        costs = RoundCosts(plain, [seconds.at(length) for length in range(longest + 1)])
        details = {
            "longest_draft": longest,
            "plain_ms": round(plain * 1000, 1),
            "longest_round_ms": round(costs.rounds[-1] * 1000, 1),
            "best_speed": round(costs.best_speed, 2),
        }
        self._greedy_only.discard(target.name)
        if not await _says_parts_of_characters(target):
            self._greedy_only.add(target.name)
            details["greedy_only"] = True
        return Support(details=details, best_speed=costs.best_speed, costs=costs)

    def obstacle(self, target: LlamaServer, body: Mapping[str, Any]) -> str | None:
        """Whatever remembers more than tokens from one token to the next cannot be asked for token by token.

        Nor can a draw from a target that refuses to say what it drew: it would be drawn again, by the target alone,
        and characters of several tokens would come up too rarely.
        """
        if target.name in self._greedy_only and not sampling_of(body).is_greedy:
            return "sampling on a server that refuses to say a part of a character"
        return _stateful(body)

    def start(self, generation: Generation, body: Mapping[str, Any], *, distributions: bool) -> StepSession:
        """A session with the sampling fields of the body."""
        sampling = sampling_fields(body)
        ends = self._ends.setdefault(generation.target.name, set())
        return FanoutSession(generation, sampling, ends, distributions=distributions)


def _stateful(body: Mapping[str, Any]) -> str | None:
    if body.get("mirostat"):
        return "mirostat"
    samplers = body.get("samplers")
    # By their names, or by a letter each.
    names = samplers if isinstance(samplers, list) else ["adaptive_p"] if "a" in str(samplers or "") else []
    if any("adaptive" in str(name) for name in names):
        return "the sampler adaptive_p"
    return None


async def _says_parts_of_characters(target: LlamaServer) -> bool:
    """Whether the target answers where its one token is a part of a character. Some builds answer 500."""
    parts = [token.id for token in await target.tokenize(_RARE_CHARACTER) if not is_text(token.piece)]
    if not parts:
        return True
    forced = {"temperature": 0, "logit_bias": [[parts[0], 1000]]}
    try:
        await next_tokens(target, [parts[:1]], forced, timeout=_TIMEOUT)
    except UpstreamRejected as error:
        if error.status != 500:
            raise
        return False
    return True


def _own_flag(settings: Mapping[str, Any]) -> str | None:
    """The flag that a server was started with for a setting that it adds to every request, or None."""
    return next((flag for key, (flag, usual) in _OWN.items() if settings.get(key, usual) != usual), None)


def _ends(settings: Mapping[str, Any]) -> set[int]:
    """The tokens that end a text: those that a server gives no chance where it is told to ignore them."""
    biases = settings.get("logit_bias") or ()
    return {int(entry["token"]) for entry in biases if isinstance(entry, dict) and entry.get("bias") is None}


async def _round(target: LlamaServer, prompt: Sequence[int], length: int) -> float | None:
    """Seconds that a round with a draft of `length` tokens takes; None where slots forget their prompts."""
    best = None
    context = list(prompt)
    for attempt in range(_TRIES):
        draft = random_tokens(target, length)
        prompts = [[*context, *draft[:count]] for count in range(length + 1)]
        started = time.monotonic()
        chosen = await next_tokens(target, prompts, {"temperature": 0}, timeout=_TIMEOUT)
        seconds = time.monotonic() - started
        # The first one fills the slots. A client's request may take one of them once, but not every time.
        if attempt and not any(choice.evaluated > len(prompt) // 2 for choice in chosen):
            best = seconds if best is None else min(best, seconds)
        context += [*draft, chosen[-1].token]
    return best


async def _plain_step(target: LlamaServer) -> tuple[float, Mapping[str, Any]]:
    """Seconds that the target alone needs for a token, and the settings of an answer without any of our own."""
    body = {
        "prompt": "One, two, three, four, five, six,",
        "n_predict": _PLAIN_TOKENS,
        "ignore_eos": True,
        "temperature": 0,
    }
    answer = await target.complete(body, timeout=_TIMEOUT)
    timings = answer.get("timings") or {}
    # The first token belongs to the prompt's time.
    seconds = float(timings.get("predicted_ms", 0.0)) / 1000 / (_PLAIN_TOKENS - 1)
    return max(seconds, _SHORTEST_STEP), answer.get("generation_settings") or {}


async def _own_limit(target: LlamaServer) -> int:
    """How many tokens the target says at most where a request sets no limit; -1 for any number."""
    [token] = (await target.tokenize("."))[-1:]
    body = {"prompt": [token.id], "temperature": 0, "logit_bias": [[token.id, 1000]], "stop": [token.piece.decode()]}
    answer = await target.complete(body, timeout=_TIMEOUT)
    return int((answer.get("generation_settings") or {}).get("n_predict", -1))


@hookimpl
def specrouter_verifiers() -> list[type[StepVerifier]]:
    return [Fanout]
