"""The step engine writes what its target would have said, whatever is drafted and whatever fails."""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stepwise_support import EOS, POLICY, PROMPT, VERIFIER, ToyDrafter, ToySession, ToyTarget, spoken, stepwise, summary

from specrouter.answers import Ending, Finish
from specrouter.errors import (
    IncompleteDistribution,
    PluginError,
    UpstreamLoading,
    UpstreamRejected,
    UpstreamUnavailable,
)
from specrouter.guarded import GuardedDrafter
from specrouter.interfaces import AcceptancePolicy
from specrouter.plugins import Bound, PluginInfo
from specrouter.sampling import position_seed
from specrouter.testing import ToyModel
from specrouter.types import Acceptance, DraftToken, Outcome, Sampling, Verification

pytestmark = pytest.mark.anyio

SAYS = " bada bafo bali 漢 👩‍👩‍👧 koda kofo, koli! mida mifo mili"
"""Words of one token, characters of one to four."""

MODEL = ToyModel(SAYS)


def naively(model: ToyModel, stops: Sequence[str], max_tokens: int | None) -> tuple[str, Ending, int]:
    """The text of an answer to its end, its ending, and its tokens: token by token, with nothing clever."""
    said = b""
    for count, token in enumerate(model.tokens, start=1):
        said += model.vocabulary.pieces[token]
        whole = said.decode("utf-8", "ignore")
        if whole.encode() == said:
            found = [(whole.index(stop), index) for index, stop in enumerate(stops) if stop in whole]
            if found:
                place, index = min(found)
                return whole[:place], Ending(Finish.STOP, stops[index]), count
        if count == max_tokens:
            return said.decode("utf-8", "replace"), Ending(Finish.LIMIT), count
    return said.decode("utf-8", "replace"), Ending(Finish.END), len(model.tokens) + 1


@settings(deadline=None, max_examples=150)
@given(
    wrong=st.sets(st.integers(0, 40)),
    max_tokens=st.one_of(st.none(), st.integers(1, 30)),
    stops=st.lists(
        st.sampled_from(["fo", "bafo", " bali 漢", "👩", "fo, k", "i! m", "li", "zz", "bafo bali", "mili."]), max_size=2
    ),
    says=st.sampled_from([SAYS, " bada", "", "漢字", " bada 👩", "fo" * 9]),
)
async def test_the_text_is_the_target_s_own(
    wrong: set[int], max_tokens: int | None, stops: list[str], says: str
) -> None:
    """For drafts of every quality, stop strings wherever they fall, and every limit."""
    model = ToyModel(says)
    answer = stepwise(model, ToyDrafter(model, wrong.__contains__), max_tokens=max_tokens, stops=stops)
    said = await spoken(answer)
    text, ending, tokens = naively(model, stops, max_tokens)
    assert summary(said) == (text, ending)
    assert answer.totals.predicted == tokens
    assert answer.totals.accepted <= answer.totals.drafted
    assert answer.totals.cached == 1


async def test_good_drafts_take_few_rounds() -> None:
    session = ToySession(MODEL)
    answer = stepwise(MODEL, ToyDrafter(MODEL), session=session)
    await spoken(answer)
    # The first one has no draft, the others bring five tokens each.
    tokens = len(MODEL.tokens) + 1
    assert len(session.rounds) <= 1 + -(-(tokens - 1) // 5) + 1
    assert answer.totals.accepted == answer.counts.confirmed >= tokens - len(session.rounds) - 4
    assert answer.counts.drafts == len(session.rounds) - 1
    assert answer.reason is None


async def test_no_draft_is_longer_than_what_is_left() -> None:
    session = ToySession(MODEL)
    answer = stepwise(MODEL, ToyDrafter(MODEL), session=session, max_tokens=8)
    await spoken(answer)
    said = 0
    for _, draft in session.rounds:
        assert said + len(draft) + 1 <= 8
        said += len(draft) + 1
    assert answer.totals.predicted == 8


@pytest.mark.parametrize("foreseen", [True, False])
async def test_the_end_as_a_draft_token_and_as_the_next_one(foreseen: bool) -> None:
    model = ToyModel(" bada bafo bali")
    session = ToySession(model)
    drafter = ToyDrafter(model, lambda position: not foreseen and position == 3)
    answer = stepwise(model, drafter, session=session)
    said = await spoken(answer)
    assert summary(said) == (" bada bafo bali", Ending(Finish.END))
    assert said[-1].token == EOS
    assert answer.totals.predicted == 4
    assert (session.rounds[-1][1][2] == EOS) is foreseen


async def test_characters_are_shown_whole() -> None:
    """And every event names the last of the tokens that it is of."""
    said = await spoken(stepwise(MODEL, ToyDrafter(MODEL)))
    texts = [(token.text, token.token) for token in said]
    assert ("漢", "漢".encode()[-1]) in texts
    assert ("👩", "👩".encode()[-1]) in texts
    assert not any("\ufffd" in text for text, _ in texts)


@pytest.mark.parametrize(
    ("max_tokens", "shown", "unshown"),
    [
        # In the middle of 漢, and where the text may become a stop string.
        (5, " bada bafo bali ", "\ufffd"),
        (6, " bada bafo bali ", "\ufffd"),
        (7, " bada bafo bali 漢", ""),
        (2, " bada", " bafo"),
    ],
)
async def test_what_only_an_unstreamed_answer_shows(max_tokens: int, shown: str, unshown: str) -> None:
    said = await spoken(stepwise(MODEL, ToyDrafter(MODEL), max_tokens=max_tokens, stops=["fo banana"]))
    assert "".join(token.text for token in said) == shown
    assert said[-1].ending == Ending(Finish.LIMIT, unshown=unshown)


# -- what fails ------------------------------------------------------------------------------------------------

END = (SAYS, Ending(Finish.END))
REFUSED = UpstreamRejected("server 'big' answered 400: no", server="big", status=400)


class Faulty(ToyDrafter):
    """Raises `error` in `draft` once it has drafted `after` tokens in all."""

    def __init__(self, error: Exception, after: int) -> None:
        super().__init__(MODEL)
        self.error, self.after = error, after

    async def draft(self, context: Sequence[int], max_tokens: int) -> AsyncGenerator[DraftToken]:
        async for token in super().draft(context, max_tokens):
            if not self.after:
                raise self.error
            self.after -= 1
            yield token


@pytest.mark.parametrize("after", range(0, 27, 3))
@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (UpstreamUnavailable("server 'laptop': gone", server="laptop"), "server 'laptop': gone"),
        (PluginError("plugin 'x' raised"), "plugin 'x' raised"),
        (LookupError("lost"), "an error in specrouter, see its log"),
    ],
)
async def test_a_drafter_s_fault_ends_drafting_only(error: Exception, reason: str, after: int) -> None:
    target = ToyTarget(MODEL)
    answer = stepwise(MODEL, Faulty(error, after), target=target)
    assert summary(await spoken(answer)) == END
    assert answer.reason == reason
    assert answer.totals.predicted == answer.counts.predicted == len(MODEL.tokens) + 1
    # From what is confirmed, at the beginning of a character.
    for body in target.plain:
        assert bytes(MODEL.vocabulary.detokenize(body["prompt"][2:])).decode()


async def test_a_fault_of_observe_ends_drafting_only() -> None:
    class Deaf(ToyDrafter):
        def observe(self, outcome: Outcome) -> None:
            raise PluginError("plugin 'deaf' raised")

    answer = stepwise(MODEL, Deaf(MODEL))
    assert summary(await spoken(answer)) == END
    assert answer.reason == "plugin 'deaf' raised"


@pytest.mark.parametrize("number", range(1, 12))
@pytest.mark.parametrize("error", [REFUSED, PluginError("plugin 'verifier' raised")])
async def test_the_target_goes_on_alone_where_a_round_fails(error: Exception, number: int) -> None:
    """Also within a character, which it then says again."""

    def fail(current: int) -> None:
        if current == number:
            raise error

    target = ToyTarget(MODEL)
    drafter = ToyDrafter(MODEL, lambda position: position % 2 == 0)
    answer = stepwise(MODEL, drafter, session=ToySession(MODEL, before=fail), target=target)
    assert summary(await spoken(answer)) == END
    assert answer.totals.predicted == len(MODEL.tokens) + 1
    assert answer.reason == str(error)
    assert len(target.plain) == 1


@pytest.mark.parametrize(
    "error", [REFUSED, PluginError("plugin raised"), UpstreamLoading("server 'big' is loading", server="big")]
)
async def test_a_first_round_that_fails_is_somebody_else_s_business(error: Exception) -> None:
    def fail(_: int) -> None:
        raise error

    with pytest.raises(type(error)):
        await spoken(stepwise(MODEL, ToyDrafter(MODEL), session=ToySession(MODEL, before=fail)))


async def test_a_target_that_dies_within_its_answer() -> None:
    def fail(number: int) -> None:
        if number == 2:
            raise UpstreamUnavailable("server 'big': the connection broke", server="big")

    with pytest.raises(UpstreamUnavailable, match="broke"):
        await spoken(stepwise(MODEL, ToyDrafter(MODEL), session=ToySession(MODEL, before=fail)))


class Policy(AcceptancePolicy):
    """Does what it is told to."""

    name = "policy"

    def __init__(self, does: Exception | Acceptance) -> None:
        super().__init__({}, {})
        self.does = does

    def covers(self, sampling: Sampling) -> bool:
        return True

    def accept(
        self, draft: Sequence[DraftToken], verification: Verification, sampling: Sampling, rng: random.Random
    ) -> Acceptance:
        if isinstance(self.does, Exception):
            raise self.does
        return self.does if draft else POLICY.plugin.accept(draft, verification, sampling, rng)


def bound(policy: AcceptancePolicy) -> Bound[AcceptancePolicy]:
    return Bound(PluginInfo("accept", "policy", Policy, "mine", "2"), policy)


async def test_without_distributions_the_target_s_own_samples_decide() -> None:
    policy = bound(Policy(IncompleteDistribution("none")))
    target = ToyTarget(MODEL)
    answer = stepwise(MODEL, ToyDrafter(MODEL), policy=policy, target=target)
    assert summary(await spoken(answer)) == END
    assert answer.totals.accepted > 10
    assert not target.plain


@pytest.mark.parametrize("accepted", [-1, 99])
async def test_a_policy_that_accepts_what_was_not_drafted(accepted: int) -> None:
    answer = stepwise(MODEL, ToyDrafter(MODEL), policy=bound(Policy(Acceptance(accepted, 5))))
    assert summary(await spoken(answer)) == END
    assert answer.reason is not None
    assert f"accepted {accepted} of" in answer.reason


@pytest.mark.parametrize(
    ("acceptance", "said"),
    [
        (None, "of the type NoneType, not an Acceptance"),
        (Acceptance(0, -1), "named -1 as the next token"),
        (Acceptance(0, 10**6), "named 1000000 as the next token"),
        (Acceptance("1", 5), "accepted 1 of"),  # type: ignore[arg-type]
    ],
)
async def test_a_policy_that_returns_nonsense(acceptance: Any, said: str) -> None:
    target = ToyTarget(MODEL)
    target.info = replace(target.info, n_vocab=6664)
    answer = stepwise(MODEL, ToyDrafter(MODEL), policy=bound(Policy(acceptance)), target=target)
    assert summary(await spoken(answer)) == END
    assert answer.reason is not None
    assert "'policy'" in answer.reason
    assert said in answer.reason


@pytest.mark.parametrize("broken", [lambda tokens: tokens[:-1], lambda tokens: [*tokens, 5], lambda tokens: ["x"] * 5])
async def test_a_verifier_that_returns_nonsense(broken: Callable[[list[int]], list[Any]]) -> None:
    class Broken(ToySession):
        async def verify(self, context: Sequence[int], draft: Sequence[int]) -> Verification:
            found = await super().verify(context, draft)
            return replace(found, tokens=broken(list(found.tokens))) if draft else found

    answer = stepwise(MODEL, ToyDrafter(MODEL), session=Broken(MODEL))
    assert summary(await spoken(answer)) == END
    assert answer.reason is not None
    assert answer.reason.startswith(f"{VERIFIER} verified 4 draft tokens, but not with 5 ids")


@pytest.mark.parametrize(
    ("token", "said"),
    [
        (7, "of the type int that is no DraftToken"),
        (DraftToken(7, b"", 1.5), "the probability 1.5, which is not from 0 to 1"),
        (DraftToken(7, b"", float("nan")), "the probability nan"),
        (DraftToken(7, b"", None, [0.5]), "a list as its distribution"),  # type: ignore[arg-type]
    ],
)
async def test_a_drafter_that_drafts_nonsense(token: Any, said: str) -> None:
    class Nonsense(ToyDrafter):
        async def draft(self, context: Sequence[int], max_tokens: int) -> AsyncGenerator[DraftToken]:
            yield token

    info = PluginInfo("draft", "odd", Policy, "mine", "2")
    answer = stepwise(MODEL, GuardedDrafter(Nonsense(MODEL), info))
    assert summary(await spoken(answer)) == END
    assert answer.reason is not None
    assert answer.reason.startswith(f"{info} drafted")
    assert said in answer.reason
    # Nobody has found that drafts do not pay.
    assert answer.counts.stood_down == 0


async def test_a_policy_that_raises() -> None:
    with pytest.raises(PluginError, match="raised ValueError: no"):
        await spoken(stepwise(MODEL, ToyDrafter(MODEL), policy=bound(Policy(ValueError("no")))))


# -- standing down -----------------------------------------------------------------------------------------------


async def test_drafts_that_do_not_pay_are_given_up_within_the_answer() -> None:
    model = ToyModel("".join(SAYS for _ in range(5)))
    target = ToyTarget(model)
    answer = stepwise(model, ToyDrafter(model, lambda position: True), target=target, stands_down=True)
    memory = answer._governor.memory
    # A round takes no time here, a plain step even less.
    memory.plain = 1e-9
    memory.rounds[:] = [1e-9, 1.1e-9, 1.2e-9, 1.3e-9, 1.4e-9]
    answer._governor.begin = lambda seconds, limit: None  # type: ignore[method-assign]
    assert summary(await spoken(answer)) == (model.says, Ending(Finish.END))
    assert answer._governor.has_stood_down
    assert answer.counts.stood_down == 1
    (body,) = target.plain
    assert len(body["prompt"]) > len(PROMPT) + 1


async def test_a_prompt_that_other_slots_would_have_to_evaluate() -> None:
    """Its first token has taken so long that the other slots could never earn theirs."""
    target = ToyTarget(MODEL)
    answer = stepwise(MODEL, ToyDrafter(MODEL), target=target, stands_down=True, max_tokens=20)
    answer._governor.memory.plain = 1e-9
    answer._governor.memory.rounds[:] = [1e-9] * 5
    await spoken(answer)
    assert [len(body["prompt"]) for body in target.plain] == [len(PROMPT) + 1]
    assert target.plain[0]["n_predict"] == 19
    assert answer.totals.predicted == 20


async def test_a_context_that_gets_full_is_the_target_s_business() -> None:
    model = ToyModel(" bada" + " bafo" * 30)
    target = ToyTarget(model, n_ctx=20)
    answer = stepwise(model, ToyDrafter(model), target=target)
    said = await spoken(answer)
    assert said[-1].ending is not None
    assert (said[-1].ending.why, said[-1].ending.truncated) == (Finish.LIMIT, True)
    assert answer.totals.predicted == 20 - len(PROMPT)
    # No round may have gone beyond it.
    assert len(target.plain[0]["prompt"]) + 5 >= 20


async def test_stop_strings_and_limits_hold_alone_too() -> None:
    for stops, max_tokens in (
        (["koda kofo"], None),
        ([" ko"], None),
        (["zz"], 7),
        (["fo, koli!"], None),
        (["mili."], None),
    ):
        drafter = Faulty(UpstreamUnavailable("gone", server="laptop"), 4)
        answer = stepwise(MODEL, drafter, stops=stops, max_tokens=max_tokens)
        text, ending, tokens = naively(MODEL, stops, max_tokens)
        assert summary(await spoken(answer)) == (text, ending)
        assert answer.totals.predicted == tokens


async def test_a_seed_goes_on_alone() -> None:
    target = ToyTarget(MODEL)
    drafter = Faulty(UpstreamUnavailable("gone", server="laptop"), 0)
    await spoken(
        stepwise(
            MODEL,
            drafter,
            target=target,
            sampling=Sampling(temperature=1.0, seed=7),
            fields={"temperature": 1.0, "seed": 7},
        )
    )
    (body,) = target.plain
    assert body["seed"] == position_seed(7, len(body["prompt"]))
    assert body["temperature"] == 1.0


async def test_a_seed_decides_what_the_policy_draws() -> None:
    def numbers(seed: int | None) -> list[float]:
        rng = stepwise(MODEL, ToyDrafter(MODEL), sampling=Sampling(temperature=1.0, seed=seed))._rng
        return [rng.random() for _ in range(3)]

    assert numbers(7) == numbers(7) != numbers(8)
    assert numbers(None) != numbers(None)
