"""Decides when showing drafts to a target pays, and how much of them. Pure: the caller brings time and facts.

Units: times in seconds of one monotonic clock, costs and values in plain steps (the time in which the target alone
says one token).

The model behind it. A step whose batch holds other tokens besides the answer's own one costs more than a plain one
(`StepCost`, learned). A primed token is evaluated once when it is primed and, if the draft holds up to it, once more
when it is verified. An accepted token saves a step. So priming some more tokens is worth the likelihoods of those
tokens, each the product of what the drafter's confidence in it and in all before it has been worth so far
(`Calibration`) and of how often drafts broke in this answer, less what the steps that evaluate and verify them take
longer, and that time counts as the tokens that would have been said in it, in all answers that share the steps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from .step_cost import StepCost

_BINS = 10
_GREEDY_ACCEPTANCE = 0.85
_SAMPLED_ACCEPTANCE = 0.7
_PRIOR_WEIGHT = 6.0
_MEMORY = 400.0  # tokens after which old ones fade

_USUAL_MISSES = 2.0
_ANSWER_MEMORY = 64.0
"""Some answers are harder to draft than others, and some parts of an answer: misses come more or less often than the
drafter's confidence says. How often is a gamma distribution to begin with, as wide as after that many misses; tokens
after which old ones fade."""

_LEAD = 2
"""Tokens that a prime which starts from nothing does not save: those of the step under way and of the step that
evaluates it."""

_CAUTION = 0.85
"""What is reached of the speed that the average acceptance allows: drafts are late, and are right by turns."""

_SPEED_MEMORY = 96.0
"""Tokens over which the speed with drafts is averaged, across requests."""

_PATIENCE, _PATIENCE_AGAIN = 16.0, 12.0
"""Plain steps that drafts may cost before they stand down for the first time, and again."""

_CLEARLY = 6.0
_CREDIT = 24.0
"""Plain steps of gain after which drafts pay, clearly; and what counts of a long gain when losses follow."""

_UNSHOWN, _UNSHOWN_AGAIN = 192, 96
_UNSHOWN_PAUSE = 256
"""Tokens that the target says alone, because no draft was there in time or worth showing, after which the draft server
has a rest, and after which it has the next one; and the tokens that it rests. That costs nothing but late gains: it has
better to do, and where it shares a machine with the target, the target too."""

_SHORTEST_PAUSE = 64
_LONGEST_PAUSE = 2048


class Calibration:
    """What a drafter's confidence is worth: share of its tokens accepted so far, by their probability.

    `expected` is the share to begin with. It may be low: what comes true is seen without priming anything.
    """

    def __init__(self, expected: float) -> None:
        self._bins = [_Share() for _ in range(_BINS + 1)]
        self._all = _Share(expected * _PRIOR_WEIGHT, _PRIOR_WEIGHT)

    @classmethod
    def fresh(cls, *, is_greedy: bool) -> Calibration:
        """What to believe before anything was seen."""
        return cls(_GREEDY_ACCEPTANCE if is_greedy else _SAMPLED_ACCEPTANCE)

    def add(self, probability: float | None, *, accepted: bool) -> None:
        """Learn from one verified draft token."""
        self._bins[_bin(probability)].add(accepted)
        self._all.add(accepted)

    def acceptance(self, probability: float | None) -> float:
        """How likely a draft token of this probability is accepted, given that all before it were."""
        seen = self._bins[_bin(probability)]
        # What is known of all tokens goes for those of a probability that was rarely seen, with some caution: the
        # square is little less for good drafts and much for poor ones.
        return (seen.accepted + _PRIOR_WEIGHT * self.average**2) / (seen.tokens + _PRIOR_WEIGHT)

    @property
    def average(self) -> float:
        """Acceptance over all tokens seen."""
        return self._all.accepted / self._all.tokens


@dataclass(slots=True)
class _Share:
    """How many tokens were seen, and accepted; old ones fade."""

    accepted: float = 0.0
    tokens: float = 0.0

    def add(self, accepted: bool) -> None:
        if self.tokens >= _MEMORY:
            self.accepted *= 0.5
            self.tokens *= 0.5
        self.accepted += accepted
        self.tokens += 1


def _bin(probability: float | None) -> int:
    return _BINS if probability is None else min(int(probability * _BINS), _BINS - 1)


def longer_by(plain_steps: float, extra_tokens: int) -> float:
    """How much longer than a plain step one took that lasted `plain_steps`, as far as its extra tokens can explain."""
    return min(max(plain_steps - 1, 0.0), 1.0 + 1.5 * extra_tokens)


class Speed:
    """What drafts have brought lately, against the target alone. They may lose `patience` plain steps.

    A loss is counted from the last gain on, as in a cumulative sum control chart (E. S. Page, 1954): drafts lose
    before they win, so the speed of the last few tokens says little.
    """

    def __init__(self, patience: float = _PATIENCE) -> None:
        self._patience = patience
        self._tokens = self._steps = self._balance = 0.0

    def add(self, tokens: float, plain_steps: float) -> None:
        """`tokens` were said in the time of `plain_steps` plain steps: per answer, where several share them."""
        fading = 0.5 ** (tokens / _SPEED_MEMORY)
        self._tokens = self._tokens * fading + tokens
        self._steps = self._steps * fading + plain_steps
        self._balance = min(self._balance + tokens - plain_steps, _CREDIT)

    @property
    def ratio(self) -> float:
        """Tokens per plain step, on average; 1 before anything was seen."""
        return self._tokens / self._steps if self._steps else 1.0

    @property
    def is_loss(self) -> bool:
        """Whether drafting should stand down."""
        return self._balance < -self._patience

    @property
    def is_gain(self) -> bool:
        """Whether drafting pays, clearly."""
        return self._balance > _CLEARLY

    @classmethod
    def after_standing_down(cls) -> Speed:
        """Nothing seen, and less patience."""
        return cls(_PATIENCE_AGAIN)


@dataclass(slots=True)
class Memory:
    """What is learned about a route under one kind of sampling, carried from request to request.

    `plain_step` is the time of a step of the target alone, None before one was seen. `unshown` counts the tokens said
    since a draft was shown. `pause` is how many tokens drafting rests when it next stands down for a loss, `resting`
    how many it still has to.
    """

    calibration: Calibration
    cost: StepCost = field(default_factory=StepCost)
    speed: Speed = field(default_factory=Speed)
    plain_step: float | None = None
    unshown: int = 0
    pause: int = _SHORTEST_PAUSE
    resting: int = 0

    @classmethod
    def fresh(cls, *, is_greedy: bool, batches: Mapping[int, float] | None = None) -> Memory:
        """What to believe before anything was seen. `batches` is what batches cost, as for `StepCost`, if measured."""
        return cls(Calibration.fresh(is_greedy=is_greedy), StepCost(batches))

    def add_plain_step(self, seconds: float) -> None:
        """Learn from a step that nothing accompanied."""
        if self.plain_step is None:
            self.plain_step = seconds
        else:
            # A step can be late for many reasons and early for none.
            weight = 0.25 if seconds < self.plain_step else 0.1
            self.plain_step += weight * (min(seconds, 2 * self.plain_step) - self.plain_step)

    def add_step(self, seconds: float, tokens: int, extra_tokens: int, beside: int = 0) -> None:
        """Learn from a step that said `tokens` tokens, with `extra_tokens` primed or verified ones in its batch.

        It was shared with `beside` other answers.
        """
        assert self.plain_step is not None
        if tokens > 1 and not extra_tokens:
            return  # The pool knew an earlier text, or several steps were read together: nobody's gain.
        steps = seconds / (self.plain_step * self.cost.shared(beside))
        if not beside:  # nobody knows what was drafted for them
            if not extra_tokens:
                self.cost.add_without_others()
            elif tokens - 1 <= extra_tokens:
                self.cost.add(extra_tokens, longer_by(steps, extra_tokens))
        if not self.resting:
            # A step without others is a plain one whatever it took: a machine's hiccups say nothing about drafts.
            longer = longer_by(steps, max(extra_tokens, tokens - 1)) if extra_tokens else 0.0
            self.speed.add((tokens + beside) / (1 + beside), 1 + longer)


class Governor:
    """Watches one answer. `primed` counts the pending draft tokens that were shown to the target already.

    With `spares_drafter`, drafting also rests where it was of no use for long, though it cost the target nothing.
    `beside` is how many other answers the target has under way now, kept by the caller: they share the steps, and what
    a draft costs, they pay too.
    """

    def __init__(self, memory: Memory, longest_verified: int, *, spares_drafter: bool = True) -> None:
        self.memory = memory
        self.stood_down = self.beside = 0
        self._longest_verified = longest_verified
        self._spares_drafter = spares_drafter
        self._misses = self._expected_misses = _USUAL_MISSES
        self._price = 1.0

    @property
    def is_resting(self) -> bool:
        """Drafting has stood down for now."""
        return self.memory.resting > 0

    def judged(self, probability: float | None, *, accepted: bool) -> None:
        """A draft token of this answer came true or did not."""
        calibration = self.memory.calibration
        fading = 1 - 1 / _ANSWER_MEMORY
        self._misses = fading * self._misses + (1 - fading) * _USUAL_MISSES + (not accepted)
        expected = 1 - calibration.acceptance(probability)
        self._expected_misses = fading * self._expected_misses + (1 - fading) * _USUAL_MISSES + expected
        calibration.add(probability, accepted=accepted)

    def step(self, seconds: float, tokens: int, extra_tokens: int, beside: int = 0) -> None:
        """The target took a step of `seconds`, said `tokens` tokens, with `extra_tokens` others in its batch.

        It was shared with `beside` other answers.
        """
        memory = self.memory
        if tokens == 1 and extra_tokens == 0:
            memory.add_plain_step(seconds / memory.cost.shared(beside))
        if memory.plain_step is None:
            return
        memory.add_step(seconds, tokens, extra_tokens, beside)
        if memory.resting:
            memory.resting = max(0, memory.resting - tokens)
            return
        if extra_tokens:
            memory.unshown = 0
        elif tokens == 1 and not beside:  # in company, drafts may not pay that would pay alone
            memory.unshown += 1
        self._judge()

    def _judge(self) -> None:
        memory = self.memory
        if memory.speed.is_loss:
            self.stood_down += 1
            memory.speed = Speed.after_standing_down()
            memory.resting = memory.pause
            memory.pause = min(2 * memory.pause, _LONGEST_PAUSE)
        elif memory.unshown >= _UNSHOWN and self._spares_drafter:
            self.stood_down += 1
            memory.unshown = _UNSHOWN - _UNSHOWN_AGAIN
            memory.resting = _UNSHOWN_PAUSE
        elif memory.speed.is_gain:
            memory.pause = _SHORTEST_PAUSE

    def tokens_to_prime(
        self, probabilities: Sequence[float | None], primed: int, *, verifying: int = 0, unseen: int = 0
    ) -> int:
        """How many pending draft tokens should be primed in all; not more than `primed` means: nothing now.

        The step under way can verify `verifying` of those. The next prime will carry `unseen` tokens besides.
        """
        # Until one step went by unaccompanied nothing can be compared with anything.
        if self.is_resting or self.memory.plain_step is None or len(probabilities) <= primed:
            return primed
        chain = self._chain(probabilities)
        self._price = self._price_of_time()
        if not primed:
            return self._first_prime(chain, unseen)
        return self._further_prime(chain, primed, min(verifying, primed))

    def _first_prime(self, chain: Sequence[float], unseen: int) -> int:
        """Nothing is primed: tokens are evaluated in the next step, which says one, and verified in the one after."""
        lead = chain[min(_LEAD, len(chain)) - 1]
        best, best_value, hits = 0, 0.0, 0.0
        for count in range(_LEAD + 1, min(len(chain), _LEAD + self._longest_verified) + 1):
            hits += chain[count - 1]
            value = hits - self._worth(self._cost(unseen + count) + lead * self._cost(count - _LEAD))
            if value > best_value:
                best, best_value = count, value
        return best

    def _further_prime(self, chain: Sequence[float], primed: int, verifying: int) -> int:
        """Something is primed: whether to prime more before it is known what becomes of that, or afterwards.

        Afterwards costs a plain step, and one that evaluates what could have been evaluated together with what is
        verified. Now costs the evaluation of what will have been for nothing.
        """
        ready = max(0, primed - verifying - 1)  # for the next step to verify
        # Each step says one token more than it verifies: the one under way that at `verifying`, the next at `own`.
        own = max(primed, verifying + 1)
        if own >= len(chain):
            return primed
        holds, goes_on = chain[verifying], chain[own]
        alone = self._cost(ready)
        # Steps that would not be taken, or be plain ones: each takes a step's time, and says a token.
        base = (goes_on if ready else goes_on + holds) * (self._price - 1) * (1 + self.beside)
        best, best_value, hits = primed, 0.0, 0.0
        for end in range(own + 2, min(len(chain), own + 1 + self._longest_verified) + 1):
            hits += chain[end - 1]
            evaluated = end - primed
            evaluating = holds * (self._cost(ready + evaluated) - alone) + (1 - holds) * self._cost(evaluated)
            value = hits - base - self._worth(evaluating + goes_on * self._cost(end - own - 1))
            if value > best_value:
                best, best_value = end, value
        return best

    def _cost(self, extra_tokens: int) -> float:
        return self.memory.cost.of(extra_tokens, self.beside)

    def _worth(self, plain_steps: float) -> float:
        """The tokens that are said, in all answers, in the time of that many plain steps of a target with one."""
        return plain_steps * self._price * (1 + self.beside) / self.memory.cost.shared(self.beside)

    def _price_of_time(self) -> float:
        """How many times the plain speed drafting reaches here, or could reach; never less than 1.

        Could: with drafts of average acceptance, shown, verified, and then shown again, each with as many tokens as
        are best. What it reaches is less as long as too much is shown, and that would seem cheap by itself.
        """
        average, answers = self.memory.calibration.average, 1 + self.beside
        plain = self.memory.cost.shared(self.beside)
        lead = likely = average**_LEAD
        best, hits = 1.0, 0.0
        for verified in range(1, self._longest_verified + 1):
            likely *= average
            hits += likely
            longer = self._cost(_LEAD + verified) + lead * self._cost(verified)
            said = (1 + hits / answers / (_LEAD + 1)) / (1 + longer / plain / (_LEAD + 1))
            best = max(best, _CAUTION * said)
        return max(best, self.memory.speed.ratio)

    def _chain(self, probabilities: Sequence[float | None]) -> list[float]:
        """Likelihood that the draft holds up to and including each token."""
        acceptance = self.memory.calibration.acceptance
        often = self._misses / self._expected_misses
        product = 1.0
        chain = []
        for probability in probabilities:
            product *= max(0.0, 1 - often * (1 - acceptance(probability)))
            chain.append(product)
        return chain

    def step_seconds(self, extra_tokens: int) -> float:
        """How long a step with that many extra tokens is expected to take; 0 before anything is known."""
        return (self.memory.plain_step or 0.0) * self.memory.cost.shared(self.beside + extra_tokens)

    @property
    def tokens_ahead(self) -> int:
        """How far ahead of the confirmed text to draft."""
        average = min(max(self.memory.calibration.average, 0.01), 0.99)
        # Up to three steps' tokens can be under way. Beyond this a draft survives less than one time in ten.
        return min(4 * (self._longest_verified + 1), max(8, math.ceil(math.log(0.1) / math.log(average))))
