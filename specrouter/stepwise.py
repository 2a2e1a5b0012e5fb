"""Writes an answer step by step from what a StepVerifier brings and an acceptance policy makes of it.

Token ids throughout: the prompt is rendered and tokenised once on the target, and everything it says comes as ids.
"""

from __future__ import annotations

import contextlib
import logging
import random
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager
from typing import Any

import anyio

from .alone import say_alone
from .answers import Ending, Finish, Said, Totals
from .draft_ahead import DraftAhead
from .draft_length import StepGovernor
from .errors import IncompleteDistribution, PluginError, SpecrouterError, UpstreamError, UpstreamRejected
from .interfaces import AcceptancePolicy, Drafter, Generation, StepSession
from .matching import longest_match
from .plugins import Bound, PluginInfo, guard
from .sampling import position_seed
from .tasks import background
from .text import PART_OF_A_CHARACTER, TextWriter
from .types import Acceptance, DraftCounts, DraftToken, Verification
from .upstream import LlamaServer

log = logging.getLogger(__name__)

_PATIENCE = 0.5
"""Share of a plain step for which a round waits for draft tokens."""

_LONGEST_CHARACTER = 4  # bytes, so not more tokens


class StepwiseAnswer:
    """One answer. `totals` and `counts` are up to date whenever `say` has yielded; `reason` is why drafting ended."""

    def __init__(
        self,
        generation: Generation,
        session: StepSession,
        drafter: Drafter,
        policy: Bound[AcceptancePolicy],
        verifier: PluginInfo,
        governor: StepGovernor,
        *,
        sampling: Mapping[str, Any],
        stops: Sequence[str],
        pieces: dict[int, bytes],
    ) -> None:
        self.totals = Totals(prompt=len(generation.prompt))
        self.counts = DraftCounts()
        self.reason: str | None = None
        self.generation = generation
        self._target: LlamaServer = generation.target
        self._session = session
        self._policy = policy
        self._verifier = verifier
        self._governor = governor
        self._sampling = sampling
        self._pieces = pieces
        self._context = list(generation.prompt)
        self._text = TextWriter(stops)
        seed = generation.sampling.seed
        self._rng = random.Random(None if seed is None else position_seed(seed, 0))  # noqa: S311  (sampling, not a secret)
        self._half: list[int] = []  # tokens of a character that is not whole yet
        self._slots_filled = 1
        self._drafting = anyio.CancelScope()
        self._ahead = DraftAhead(
            drafter,
            generation.prompt,
            wanted=len(governor.memory.rounds) - 1,
            limit=generation.vocabulary_limit,
        )

    @asynccontextmanager
    async def drafting(self) -> AsyncIterator[None]:
        """Keep a draft ahead while the context lasts, or until drafting stands down."""
        async with background() as tasks:
            tasks.start_soon(self._draft)
            yield

    async def _draft(self) -> None:
        with self._surviving(), self._drafting:
            await self._ahead.run()

    @contextmanager
    def _surviving(self) -> Iterator[None]:
        """A fault in here ends drafting and nothing else."""
        try:
            yield
        except Exception as error:
            self._end_drafting(error)

    def _end_drafting(self, error: Exception) -> None:
        if isinstance(error, UpstreamError):
            log.debug("drafting ended: %s", error)
        else:
            log.error("drafting ended", exc_info=error)
        self.reason = str(error) if isinstance(error, SpecrouterError) else "an error in specrouter, see its log"
        self._ahead.end()

    async def say(self) -> AsyncGenerator[Said]:
        """The answer, token by token, the last one with its ending.

        Raises UpstreamError where the target fails, and before anything is said also PluginError.
        """
        async with aclosing(self._rounds()) as rounds:
            async for said in rounds:
                yield said
                if said.ending is not None:
                    return
        self._drafting.cancel()
        async with aclosing(self._plain()) as rest:
            async for said in rest:
                yield said

    async def _rounds(self) -> AsyncGenerator[Said]:
        """Rounds of verification until the answer ends or drafting does."""
        started = time.monotonic()
        while not self.totals.predicted or self._goes_on():
            begun = time.monotonic()
            # While the target evaluates the prompt, its first tokens are drafted already.
            draft = await self._next_draft() if self.totals.predicted else []
            try:
                verification, acceptance = await self._verify(draft)
            except (PluginError, UpstreamRejected) as error:
                if not self.totals.predicted:
                    raise
                self._end_drafting(error)
                self._take_back_half()
                break
            self._learn(time.monotonic() - begun, draft, acceptance.accepted, verification)
            tokens = self._account(draft, acceptance)
            self.totals.predicted_seconds = time.monotonic() - started - self.totals.prompt_seconds
            for token in tokens:
                said = await self._said(token, ends=token in verification.ends)
                if said is not None:
                    yield said
        self.counts.stood_down += self._governor.has_stood_down
        if self._governor.has_stood_down and self.reason is None:
            self.reason = "drafting did not pay here"

    def _goes_on(self) -> bool:
        longest = len(self._governor.memory.rounds)
        context = self._target.info.n_ctx
        # How an answer ends at the end of the context is the target's business.
        has_room = context is None or len(self._context) + longest < context
        # Alone, the target would begin in the middle of a character.
        drafts = self.reason is None and not self._governor.has_stood_down
        return (has_room and drafts) or bool(self._half)

    async def _next_draft(self) -> list[DraftToken]:
        longest = len(self._governor.memory.rounds) - 1
        left = None if self.generation.max_tokens is None else self.generation.max_tokens - self.totals.predicted - 1
        wanted = longest if left is None else min(longest, max(left, 0))
        if wanted:
            await self._ahead.wait_for(wanted, _PATIENCE * self._governor.memory.plain)
        pending = self._ahead.pending[:wanted]
        return pending[: self._governor.length(_confidences(pending))]

    async def _verify(self, draft: Sequence[DraftToken]) -> tuple[Verification, Acceptance]:
        with guard(self._verifier):
            verification = await self._session.verify(self._context, [token.id for token in draft])
            self._pieces.update(verification.pieces)
            tokens, wanted = verification.tokens, len(draft) + 1
            if len(tokens) != wanted or not all(isinstance(said, int) for said in tokens):
                raise PluginError(f"{self._verifier} verified {len(draft)} draft tokens, but not with {wanted} ids")
        try:
            with guard(self._policy.info):
                acceptance = self._policy.plugin.accept(draft, verification, self.generation.sampling, self._rng)
        except IncompleteDistribution as error:
            log.debug("sample and match instead: %s", error)
            acceptance = longest_match(draft, verification.tokens)
        self._check(acceptance, len(draft))
        return verification, acceptance

    def _check(self, acceptance: object, drafted: int) -> None:
        policy = self._policy.info
        if not isinstance(acceptance, Acceptance):
            raise PluginError(f"{policy} returned something of the type {type(acceptance).__name__}, not an Acceptance")
        accepted, size = acceptance.accepted, self._target.info.n_vocab
        if not isinstance(accepted, int) or not 0 <= accepted <= drafted:
            raise PluginError(f"{policy} accepted {accepted} of {drafted} draft tokens")
        token = acceptance.next_token
        if not isinstance(token, int) or token < 0 or (size is not None and token >= size):
            raise PluginError(f"{policy} named {token!r} as the next token, which is no id of the target's")

    def _learn(self, seconds: float, draft: Sequence[DraftToken], accepted: int, verification: Verification) -> None:
        """What a round says about time and acceptance. The first one is the evaluation of the prompt."""
        if not self.totals.predicted:
            self.totals.prompt_seconds, self.totals.cached = seconds, verification.cached
            self._governor.begin(seconds, self.generation.max_tokens)
            return
        filled = len(draft) + 1 > self._slots_filled
        self._slots_filled = max(self._slots_filled, len(draft) + 1)
        self._governor.round(seconds, len(draft), accepted + 1, filled_slots=filled)
        calibration = self._governor.memory.calibration
        for index, confidence in enumerate(_confidences(draft)[: accepted + 1]):
            calibration.add(confidence, accepted=index < accepted)

    def _account(self, draft: Sequence[DraftToken], acceptance: Acceptance) -> list[int]:
        """The tokens that a round adds to the answer."""
        accepted, next_token = acceptance.accepted, acceptance.next_token
        tokens = [*(token.id for token in draft[:accepted]), next_token]
        self.totals.drafted += len(draft)
        self.totals.accepted += accepted
        self._context += tokens
        with self._surviving():
            self._ahead.confirm(len(draft), accepted, next_token)
        counts = self.counts
        if draft:
            counts.add_verification(accepted)
        counts.drafted, counts.confirmed = self._ahead.drafted, self.totals.accepted
        counts.predicted = len(self._context) - len(self.generation.prompt)
        return tokens

    async def _said(self, token: int, *, ends: bool) -> Said | None:
        """What a token adds to the answer; None while the character that it is a part of is not whole."""
        self.totals.predicted += 1
        limit = self.generation.max_tokens
        is_last = limit is not None and self.totals.predicted >= limit
        if ends:
            return await self._over(token, "" if self._half else self._text.finish(), Finish.END)
        self._half.append(token)
        text = await self._text_of(self._half)
        if text is None:
            return await self._over(token, "", Finish.LIMIT) if is_last else None
        self._half.clear()
        shown = self._text.push(text)
        if self._text.stopped_by is not None:
            return Said(shown, token, Ending(Finish.STOP, self._text.stopped_by))
        return await self._over(token, shown, Finish.LIMIT) if is_last else Said(shown, token)

    async def _over(self, token: int, shown: str, why: Finish) -> Said:
        half = await self._target.detokenize(self._half) if self._half else ""
        return Said(shown, token, Ending(why, unshown=self._text.held + half))

    async def _text_of(self, tokens: Sequence[int]) -> str | None:
        """The text of the tokens of one character or more, None while it is not whole."""
        if len(tokens) == 1 and tokens[0] in self._pieces:
            # The target's own word for it. A drafter's may be anything.
            with contextlib.suppress(UnicodeDecodeError):
                return self._pieces[tokens[0]].decode()
        text = await self._target.detokenize(tokens)
        return None if text.endswith(PART_OF_A_CHARACTER) and len(tokens) < _LONGEST_CHARACTER else text

    def _take_back_half(self) -> None:
        """The target says a character that is not whole, and was not shown, again."""
        if self._half:
            del self._context[-len(self._half) :]
            self.totals.predicted -= len(self._half)
            self._half.clear()

    async def _plain(self) -> AsyncGenerator[Said]:
        """The rest of the answer, as the target says it alone. It evaluates only what its slot has not seen."""
        generation, limit = self.generation, self.generation.max_tokens
        rest = say_alone(
            self._target,
            self._context,
            self._sampling,
            generation.sampling,
            max_tokens=None if limit is None else limit - self.totals.predicted,
            text=self._text,
            totals=self.totals,
        )
        async with aclosing(rest) as tokens:
            async for said in tokens:
                self.counts.predicted = self.totals.predicted
                yield said


def _confidences(pending: Sequence[DraftToken]) -> list[float | None]:
    """What may decide how many of the pending tokens are asked about.

    Not the probability of tokens that were drawn. If unlikely ones were held back, those that are asked about would
    not be distributed as they were drawn, and rejection sampling would not keep the target's distribution.
    """
    if any(token.distribution is not None for token in pending):
        return [None] * len(pending)
    return [token.probability for token in pending]
