"""What `inject` does while its target is slow to say which tokens a text is, and what it learns about whom."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Any

import anyio
import pytest
from specrouter_plugins.inject import Inject, InjectCompanion, Known

from specrouter.governor import Memory
from specrouter.interfaces import Drafter, Generation, Support
from specrouter.llama_api import Primed
from specrouter.measuring import TargetSpeed
from specrouter.ngram_pool import PoolSettings
from specrouter.testing import ToyVocabulary
from specrouter.types import Delta, DraftToken, Sampling, ServerInfo, Token

pytestmark = pytest.mark.anyio

VOCABULARY = ToyVocabulary()
PROMPT = VOCABULARY.tokenize("<s> hello")
POOL = PoolSettings(n_match=4, n_min=1, n_max=16)
GREEDY = Sampling(temperature=0.0)


class Target:
    """A target that answers about tokens when `may_answer` is set; with `space`, it puts one before every text."""

    def __init__(self, name: str = "big", *, space: bool = False) -> None:
        self.name = name
        self.epoch = 1
        self.in_flight = 1
        self.info = ServerInfo(slots=2)
        self.pieces = self
        self.space = space
        self.asked: list[str] = []
        self.primed = 0
        self.may_answer = anyio.Event()
        self.may_answer.set()

    async def tokenize(self, text: str, **_: Any) -> list[Token]:
        self.asked.append(text)
        await self.may_answer.wait()
        ids = VOCABULARY.tokenize(" " * self.space + text)
        return [Token(token, VOCABULARY.pieces[token]) for token in ids]

    async def of(self, ids: Sequence[int]) -> list[bytes]:
        return [VOCABULARY.pieces[token] for token in ids]

    async def prime(self, ids: Sequence[int], **_: Any) -> Primed:
        self.primed += 1
        return Primed(len(ids), 0.001)


class Script(Drafter):
    """Drafts ` bako deli mimi`, the last word when `go` is set, and remembers what it was to continue."""

    def __init__(self) -> None:
        self.contexts: list[list[int]] = []
        self.go = anyio.Event()

    async def draft(self, context: Sequence[int], max_tokens: int) -> AsyncGenerator[DraftToken]:
        self.contexts.append(list(context))
        for word in (" bako", " deli", " mimi"):
            if word == " mimi":
                await self.go.wait()
            [token] = VOCABULARY.tokenize(word)
            yield DraftToken(token, word.encode(), 0.99)
        await anyio.sleep_forever()


def generation(target: Target) -> Generation:
    return Generation("fast", target, PROMPT, GREEDY)  # type: ignore[arg-type]


async def following(
    target: Target,
    drafter: Script,
    script: Callable[[InjectCompanion, Callable[[str], Awaitable[None]]], Awaitable[None]],
) -> None:
    """Run a companion beside an answer; `script` says its texts, each returns when all there is to do is done."""
    companion = InjectCompanion(generation(target), drafter, POOL, Memory.fresh(is_greedy=True), Known())
    send, receive = anyio.create_memory_object_stream[list[Delta]](100)

    async def say(text: str) -> None:
        await send.send([Delta(text, received=time.monotonic())])
        await anyio.wait_all_tasks_blocked()

    async with anyio.create_task_group() as tasks, send, receive:
        tasks.start_soon(companion.run, receive)
        await anyio.wait_all_tasks_blocked()
        await script(companion, say)
        tasks.cancel_scope.cancel()


async def test_no_draft_begins_behind_a_text_that_is_not_identified() -> None:
    target, drafter = Target(), Script()

    async def script(companion: InjectCompanion, say: Callable[[str], Awaitable[None]]) -> None:
        await say(" bako")
        target.may_answer = anyio.Event()
        await say(" koko")
        assert target.asked == [" koko"]
        # The draft under way finds out that it was wrong before the target has said what is right.
        drafter.go.set()
        await anyio.wait_all_tasks_blocked()
        assert drafter.contexts == [PROMPT]
        target.may_answer.set()
        await anyio.wait_all_tasks_blocked()
        assert drafter.contexts == [PROMPT, [*PROMPT, *VOCABULARY.tokenize(" bako koko")]]

    await following(target, drafter, script)


async def test_what_was_primed_of_a_wrong_draft_is_not_counted_on() -> None:
    """The draft is behind the answer when it turns out wrong, and the next one begins before the answer goes on."""
    target, drafter = Target(), Script()

    async def script(companion: InjectCompanion, say: Callable[[str], Awaitable[None]]) -> None:
        await say(" bako deli")
        await say(" koko")
        assert drafter.contexts == [PROMPT]
        priming = companion._priming
        priming.primed_to = priming.evaluated_to = len(PROMPT) + 9
        drafter.go.set()
        await anyio.wait_all_tasks_blocked()
        assert drafter.contexts[1:] == [[*PROMPT, *VOCABULARY.tokenize(" bako deli koko")]]
        assert (priming.primed_to, priming.evaluated_to) == (len(PROMPT) + 3, len(PROMPT) + 3)

    await following(target, drafter, script)


async def test_nothing_is_drafted_or_primed_for_a_target_without_a_free_slot() -> None:
    """A prime would wait for the end of an answer, and then keep the others waiting."""
    target, drafter = Target(), Script()
    drafter.go.set()
    target.in_flight = 2

    async def script(companion: InjectCompanion, say: Callable[[str], Awaitable[None]]) -> None:
        companion._governor.tokens_to_prime = lambda chain, primed, **_: len(chain)  # type: ignore[method-assign]
        for _ in range(5):
            await say(" bako")
            await anyio.sleep(0.01)
        assert (drafter.contexts, target.primed) == ([], 0)
        target.in_flight = 1
        for _ in range(5):
            await say(" bako")
            await anyio.sleep(0.05)
        assert len(drafter.contexts) > 0
        assert target.primed > 0
        assert companion._known.primes == 0

    await following(target, drafter, script)


async def test_a_space_that_the_tokenizer_adds_is_not_said() -> None:
    target, drafter = Target(space=True), Script()

    async def script(companion: InjectCompanion, say: Callable[[str], Awaitable[None]]) -> None:
        await say(" bako")
        await say(" koko")
        assert drafter.contexts[1:] == [[*PROMPT, *VOCABULARY.tokenize(" bako koko")]]
        # Asked once, then known.
        asked = len(target.asked)
        assert companion._known.names[b" koko"] == VOCABULARY.tokenize(" koko")[0]
        await say(" koko")
        assert len(target.asked) == asked
        assert drafter.contexts[2:] == [[*PROMPT, *VOCABULARY.tokenize(" bako koko koko")]]

    await following(target, drafter, script)


async def test_every_target_has_its_own_names() -> None:
    verifier = Inject({}, {})
    support = Support(details={"pool": POOL})

    def known(target: Target) -> Known:
        companion = verifier.accompany(generation(target), Script(), support)
        assert isinstance(companion, InjectCompanion)
        return companion._known

    big, other = Target(), Target("other")
    of_big, of_other = known(big), known(other)
    assert of_big is not of_other
    assert known(big) is of_big
    # It has another model now; what is known about the other target stays.
    big.epoch += 1
    big.info = ServerInfo(slots=1)  # which is soon looked at
    await verifier.inspect(big)  # type: ignore[arg-type]
    assert {key[0] for key in verifier._memories} == {"other"}
    assert known(big) is not of_big
    assert known(other) is of_other


async def test_what_was_measured_is_where_companions_begin() -> None:
    target, verifier = Target(), Inject({}, {})
    speed = TargetSpeed(plain_step=0.05, round_trip=0.03, batches={2: 3.0, 8: 5.0})
    support = Support(details={"pool": POOL, "speed": speed})
    companion = verifier.accompany(generation(target), Script(), support)
    assert isinstance(companion, InjectCompanion)
    assert companion._known.round_trip == 0.03
    assert companion._priming.governor.memory.cost.of(1) == pytest.approx(2.0)
