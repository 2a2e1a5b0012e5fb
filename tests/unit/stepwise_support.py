"""Stepwise answers of the toy model, without servers."""

from __future__ import annotations

import codecs
import json
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import anyio
import anyio.lowlevel
from specrouter_plugins.greedy import Greedy

from specrouter.answers import Ending, Said
from specrouter.config import ServerConfig
from specrouter.draft_length import StepGovernor, StepMemory
from specrouter.interfaces import AcceptancePolicy, Drafter, Generation, RoundCosts, StepSession
from specrouter.plugins import Bound, PluginInfo
from specrouter.stepwise import StepwiseAnswer
from specrouter.testing import ToyModel
from specrouter.types import DraftToken, Outcome, Sampling, ServerInfo, Verification
from specrouter.upstream import LlamaServer

EOS = 259
PROMPT = [256, 262]
COSTS = RoundCosts(plain=20.0, rounds=[20.0, 20.1, 20.2, 20.3, 20.4])
"""Seconds. Half of a plain step is what a round waits for a draft: no test ever waits that long."""

POLICY: Bound[AcceptancePolicy] = Bound(PluginInfo("accept", "greedy", Greedy, "specrouter", "1"), Greedy({}, {}))
VERIFIER = PluginInfo("verify", "toy", Greedy, "toys", "1")


class ToyTarget(LlamaServer):
    """What the engine asks of a target, answered by the toy model. `plain` are the bodies of answers it gave alone."""

    def __init__(self, model: ToyModel, *, n_ctx: int = 4096) -> None:
        super().__init__(ServerConfig("big", "http://127.0.0.1:1"))
        self.model = model
        self.info = ServerInfo(n_ctx=n_ctx)
        self.plain: list[dict[str, Any]] = []

    async def detokenize(self, ids: Sequence[int]) -> str:
        return self.model.vocabulary.detokenize(ids).decode("utf-8", "replace")

    async def completion_events(self, body: Mapping[str, Any]) -> AsyncGenerator[bytes]:
        """As llama-server streams: an event for a whole character, with the last of its ids."""
        self.plain.append(dict(body))
        context, decoder, said = list(body["prompt"]), codecs.getincrementaldecoder("utf-8")("replace"), 0
        stop_type, n_ctx = "limit", self.info.n_ctx or 0
        while said != body["n_predict"] and len(context) < n_ctx:
            await anyio.lowlevel.checkpoint()
            token = self.model.next_token(context)
            said += 1
            if token is None:
                stop_type = "eos"
                break
            context.append(token)
            text = decoder.decode(self.model.vocabulary.pieces[token])
            if text:
                yield json.dumps({"content": text, "tokens": [token], "tokens_predicted": said}).encode()
        last = {"content": "", "tokens": [], "tokens_predicted": said, "stop": True, "stop_type": stop_type}
        yield json.dumps({**last, "truncated": len(context) >= n_ctx}).encode()


class ToySession(StepSession):
    """What the toy model says at each position. `before` is called with the number of the round, and may raise."""

    def __init__(self, model: ToyModel, *, before: Callable[[int], None] = lambda number: None) -> None:
        self.model = model
        self.before = before
        self.rounds: list[tuple[list[int], list[int]]] = []

    async def verify(self, context: Sequence[int], draft: Sequence[int]) -> Verification:
        await anyio.lowlevel.checkpoint()
        self.before(len(self.rounds))
        self.rounds.append((list(context), list(draft)))
        said = [self.model.next_token([*context, *draft[:count]]) for count in range(len(draft) + 1)]
        tokens = [EOS if token is None else token for token in said]
        return Verification(tokens, ends=frozenset({EOS}), pieces=self._pieces(tokens), cached=1)

    def _pieces(self, tokens: Sequence[int]) -> dict[int, bytes]:
        known = {}
        for token in tokens:
            piece = self.model.vocabulary.pieces[token]
            # A server shows no part of a character, and nothing of control tokens.
            if piece.decode("utf-8", "ignore").encode() == piece:
                known[token] = b"" if token == EOS else piece
        return known


class ToyDrafter(Drafter):
    """Drafts what the model says, another word where `wrong` says so of a position in the text, the end as a token.

    What it says of its tokens' pieces is nonsense.
    """

    def __init__(self, model: ToyModel, wrong: Callable[[int], bool] = lambda position: False) -> None:
        self.model = model
        self.wrong = wrong
        self.outcomes: list[Outcome] = []
        self.closed = False

    async def draft(self, context: Sequence[int], max_tokens: int) -> AsyncGenerator[DraftToken]:
        said = list(context)
        for _ in range(max_tokens):
            await anyio.lowlevel.checkpoint()
            right = self.model.next_token(said)
            token = EOS if right is None else right
            if self.wrong(len(said) - len(PROMPT)):
                token = 264 + (token + 7) % 6400
            yield DraftToken(token, b"?", 0.9)
            said.append(token)

    def observe(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)


def stepwise(
    model: ToyModel,
    drafter: Drafter,
    *,
    session: StepSession | None = None,
    target: ToyTarget | None = None,
    policy: Bound[AcceptancePolicy] = POLICY,
    max_tokens: int | None = None,
    stops: Sequence[str] = (),
    stands_down: bool = False,
    sampling: Sampling | None = None,
    fields: Mapping[str, Any] | None = None,
) -> StepwiseAnswer:
    """An answer of the model."""
    generation = Generation(
        "fast", target or ToyTarget(model), PROMPT, sampling or Sampling(temperature=0.0), max_tokens
    )
    memory = StepMemory.fresh(COSTS, is_greedy=True)
    return StepwiseAnswer(
        generation,
        session or ToySession(model),
        drafter,
        policy,
        VERIFIER,
        StepGovernor(memory, stands_down=stands_down),
        sampling=fields or {},
        stops=stops,
        pieces={},
    )


async def spoken(answer: StepwiseAnswer) -> list[Said]:
    """All that it says."""
    with anyio.fail_after(15):
        async with answer.drafting(), aclosing(answer.say()) as said:
            return [token async for token in said]


def summary(said: Sequence[Said]) -> tuple[str, Ending]:
    """The visible text and how it ended, `unshown` text included in the first."""
    (ending,) = [token.ending for token in said if token.ending is not None]
    assert said[-1].ending is ending
    return "".join(token.text for token in said) + ending.unshown, replace(ending, unshown="")
