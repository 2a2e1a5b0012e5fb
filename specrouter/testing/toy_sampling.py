"""Models that sample, with every probability known, and speculative decoding between two of them.

With `chi_square` they show whether an acceptance policy keeps the target's distribution:

    decoder = ToyDecoder(policy, target, drafter, longest_draft=4, samples_drafts=True, seed=1)
    result = chi_square(decoder.count(PROMPT, 3, 50_000), target.joint(PROMPT, 3))
    assert result.p_value > 0.001
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Mapping, Sequence

from specrouter.errors import IncompleteDistribution
from specrouter.interfaces import AcceptancePolicy
from specrouter.sampling import RANDOM_SEED, position_seed
from specrouter.types import Acceptance, DraftToken, Sampling, Verification

PROMPT = (0, 1)
"""Enough of a context for every ToyDistribution."""


class ToyDistribution:
    """A model whose next token depends on the last two.

    `rows` has a distribution (token id → probability) for each pair of tokens. Samplers have done their work: not
    every token need be in a row.
    """

    def __init__(self, rows: Mapping[tuple[int, int], Mapping[int, float]]) -> None:
        self.rows = rows

    @classmethod
    def random(cls, seed: int, *, tokens: int = 4, kept: int = 3) -> ToyDistribution:
        """Rows drawn at random, each with `kept` of the `tokens` there are. The same for the same seed everywhere."""
        rng = random.Random(f"toy distribution {seed}")  # noqa: S311
        rows = {}
        for pair in itertools.product(range(tokens), range(tokens)):
            weights = {token: rng.uniform(0.1, 1) ** 2 for token in sorted(rng.sample(range(tokens), kept))}
            rows[pair] = {token: weight / sum(weights.values()) for token, weight in weights.items()}
        return cls(rows)

    def blend(self, other: ToyDistribution, share: float) -> ToyDistribution:
        """A model between this one (share 0) and another (share 1): a drafter as good as you like."""
        rows = {}
        for pair, row in self.rows.items():
            tokens = sorted({*row, *other.rows[pair]})
            rows[pair] = {t: (1 - share) * row.get(t, 0.0) + share * other.rows[pair].get(t, 0.0) for t in tokens}
        return ToyDistribution(rows)

    def distribution(self, context: Sequence[int]) -> Mapping[int, float]:
        """The distribution of the token after `context`, two tokens or more."""
        return self.rows[context[-2], context[-1]]

    def draw(self, context: Sequence[int], number: float) -> int:
        """The token that a random number from [0, 1) picks."""
        row = self.distribution(context)
        below = 0.0
        for token, share in row.items():
            below += share
            if number < below:
                return token
        # Rounded, the shares may sum to less than 1.
        return max(row)

    def joint(self, context: Sequence[int], length: int) -> dict[tuple[int, ...], float]:
        """The probability of every answer of `length` tokens to `context`."""
        answers: dict[tuple[int, ...], float] = {(): 1.0}
        for _ in range(length):
            answers = {
                (*said, token): share * probability
                for said, share in answers.items()
                for token, probability in self.distribution((*context, *said)).items()
            }
        return answers


class ToyDecoder:
    """Speculative decoding, a round trip at a time: `drafter` drafts, `target` samples each position, `policy` decides.

    A draft has from 0 to `longest_draft` tokens, as chance will have it. With `samples_drafts` they are drawn from the
    drafter's distribution, else its most likely ones are taken. To try out what a fault does, override a method.
    """

    sampling = Sampling(temperature=1.0)

    def __init__(
        self,
        policy: AcceptancePolicy,
        target: ToyDistribution,
        drafter: ToyDistribution,
        *,
        longest_draft: int,
        samples_drafts: bool,
        seed: int,
    ) -> None:
        self.policy = policy
        self.target = target
        self.drafter = drafter
        self.longest_draft = longest_draft
        self.samples_drafts = samples_drafts
        # Three generators: drafts, acceptance and the target must not share random numbers.
        self.drafting = random.Random(f"draft {seed}")  # noqa: S311
        self.accepting = random.Random(f"accept {seed}")  # noqa: S311
        self.seeding = random.Random(f"seed {seed}")  # noqa: S311

    def count(self, prompt: Sequence[int], length: int, number: int) -> Counter[tuple[int, ...]]:
        """How often each answer of `length` tokens was given to `number` requests, each with a seed of its own."""
        return Counter(self.answer(prompt, length, self.seeding.randrange(RANDOM_SEED)) for _ in range(number))

    def answer(self, prompt: Sequence[int], length: int, seed: int) -> tuple[int, ...]:
        """The first `length` tokens of the answer to a request with this seed."""
        context = list(prompt)
        end = len(prompt) + length
        while len(context) < end:
            draft = self.draft(context)
            acceptance = self.accept(draft, self.verify(context, draft, seed))
            context += [token.id for token in draft[: acceptance.accepted]]
            context.append(acceptance.next_token)
        return tuple(context[len(prompt) : end])

    def draft(self, context: Sequence[int]) -> list[DraftToken]:
        """A draft behind `context`."""
        drafted: list[DraftToken] = []
        said = list(context)
        for _ in range(self.drafting.randint(0, self.longest_draft)):
            row = self.drafter.distribution(said)
            if self.samples_drafts:
                token = self.drafter.draw(said, self.drafting.random())
                drafted.append(DraftToken(token, b"", row[token], row))
            else:
                token = max(row, key=row.__getitem__)
                drafted.append(DraftToken(token, b"", row[token]))
            said.append(token)
        return drafted

    def verify(self, context: Sequence[int], draft: Sequence[DraftToken], seed: int) -> Verification:
        """What the target says at each position."""
        said = list(context)
        tokens, probabilities = [], []
        for token in (*draft, None):
            tokens.append(self.target.draw(said, self.position_seed(seed, len(said)) / RANDOM_SEED))
            probabilities.append(self.target.distribution(said))
            if token is not None:
                said.append(token.id)
        return Verification(tokens, probabilities)

    def position_seed(self, seed: int, position: int) -> int:
        """The seed of one position; the toy's random number is its seed, as a fraction of all seeds."""
        return position_seed(seed, position)

    def accept(self, draft: Sequence[DraftToken], verification: Verification) -> Acceptance:
        """What the policy decides; the target's own token where it cannot."""
        try:
            return self.policy.accept(draft, verification, self.sampling, self.accepting)
        except IncompleteDistribution:
            return Acceptance(0, verification.tokens[0])
