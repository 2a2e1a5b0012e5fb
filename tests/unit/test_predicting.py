"""What is predicted from what was measured, and the words for what bounds it."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from specrouter.interfaces import RoundCosts, Support
from specrouter.measuring import TargetSpeed
from specrouter.measuring_drafts import DraftSpeed
from specrouter.ngram_pool import PoolSettings
from specrouter.predicting import Measured, conditions, least_acceptance, lines, measured
from specrouter.simulator import Conditions, Drafted, TargetCosts, steady
from specrouter.types import ServerInfo

FREE = {8: 1.0, 32: 1.0}
MIDDLING = {4: 1.6, 8: 2.4, 16: 3.2, 32: 5.0}
DEAR = {8: 6.5, 32: 26.0}
PLAIN = 0.1


def drafts(acceptance: float = 0.9, *, token: float | None = 0.02, first: float | None = 0.02) -> DraftSpeed:
    return DraftSpeed(token, first, steady(acceptance, tokens=120, seed=1))


def predicted(
    batches: Mapping[int, float],
    found: DraftSpeed,
    *,
    distance: float = 0.0,
    attempts: Mapping[str, Support] | None = None,
    draft_params: int | None = 100,
) -> Measured:
    return measured(
        TargetSpeed(PLAIN, 0.0, batches),
        found,
        draft_round_trip=distance,
        attempts=attempts or {},
        target_info=ServerInfo(n_params=1000),
        draft_info=ServerInfo(n_params=draft_params),
    )


def ratio(found: Measured, strategy: str) -> float | None:
    (one,) = [one for one in found.predicted if one.strategy == strategy]
    return one.ratio


def test_where_batches_are_free_drafts_pay() -> None:
    found = predicted(FREE, drafts(0.95))
    inject = ratio(found, "inject")
    assert inject is not None
    assert 1.3 < inject < 6
    assert (
        "the drafter says 5.0 tokens in a plain step: no drafts of it make more than that out of a step" in found.bounds
    )


def test_where_batches_cost_as_much_as_tokens_nothing_pays() -> None:
    found = predicted(DEAR, drafts(0.95))
    inject = ratio(found, "inject")
    assert inject is not None
    assert 0.9 < inject <= 1
    assert found.bounds[0] == (
        "a batch of 8 costs the target 6.5 plain steps: with inject, which evaluates every draft token twice, "
        "no drafts of this drafter pay"
    )


def test_fanout_by_the_rounds_of_the_target() -> None:
    support = Support(costs=RoundCosts(PLAIN, [PLAIN] * 4))
    found = ratio(predicted(DEAR, drafts(1.0), attempts={"fanout": support}), "fanout")
    assert found is not None
    assert found > 2
    none = predicted(DEAR, drafts(), attempts={"fanout": Support(reason="server big has one slot")})
    assert "predicted: fanout not known (server big has one slot)" in lines(none)


def test_what_inject_would_need_is_said() -> None:
    found = predicted(FREE, drafts(), attempts={"inject": Support(reason="server big has no n-gram pool")})
    assert [one.note for one in found.predicted if one.strategy == "inject"] == [
        "with the right flags: server big has no n-gram pool"
    ]
    assert ratio(found, "inject") == ratio(predicted(FREE, drafts()), "inject")


def test_the_target_verifies_as_much_as_its_pool_finds() -> None:
    small = Support(details={"pool": PoolSettings(n_match=8, n_min=1, n_max=2)})
    short, usual = (ratio(predicted(FREE, drafts(0.97), attempts=found), "inject") for found in ({"inject": small}, {}))
    assert short is not None
    assert usual is not None
    assert short < usual


def test_drafting_at_hand_goes_by_the_size_of_the_models() -> None:
    small, large = (predicted(FREE, drafts(), draft_params=size) for size in (50, 900))
    ratios = [ratio(found, "llama-server's own") for found in (small, large)]
    assert ratios[0] is not None
    assert ratios[1] is not None
    assert ratios[0] > 1.5
    assert ratios[1] < 1.2
    assert ratio(predicted(FREE, drafts(), draft_params=None), "llama-server's own") is None


@pytest.mark.parametrize("nothing", [{"token": None}, {"first": None}])
def test_too_few_drafts_to_tell(nothing: dict[str, None]) -> None:
    found = predicted(FREE, drafts(**nothing))
    assert [(one.strategy, one.ratio) for one in found.predicted] == [("none", 1.0), ("inject", None)]
    assert list(lines(found))[-1] == "predicted: inject not known (too little was drafted to tell)"


def test_drafts_that_come_at_once() -> None:
    found = predicted(FREE, drafts(0.95, token=0.0, first=0.0))
    inject = ratio(found, "inject")
    assert inject is not None
    assert inject > 1.3


def test_tokens_without_a_draft_are_no_draft_tokens() -> None:
    trace = [Drafted(None, accepted=True)] * 30 + [Drafted(None, accepted=False)] * 70
    found = predicted(FREE, DraftSpeed(0.02, 0.02, trace, silent=60))
    assert "the target said 30 of 40 draft tokens (75%)" in found.bounds
    assert "nothing was drafted for 60 tokens more, which the prediction takes for wrong drafts" in found.bounds


def test_a_slow_start_and_a_network_are_named() -> None:
    found = predicted(FREE, drafts(0.9, first=0.35), distance=0.2)
    assert "after a miss its first token takes 3.5 plain steps to come" in found.bounds
    assert any("would be saved with no network between the machines" in bound for bound in found.bounds)
    near = predicted(FREE, drafts(0.9))
    assert not any("network" in bound or "after a miss" in bound for bound in near.bounds)


def test_what_a_new_draft_takes_is_without_the_round_trip() -> None:
    pool = PoolSettings(n_match=6, n_min=1, n_max=12)
    found = conditions(TargetSpeed(PLAIN, 0.001, FREE), drafts(first=0.07), draft_round_trip=0.03, pool=pool)
    assert found is not None
    assert (found.n_match, found.n_max) == (6, 12)
    assert found.draft_restart == pytest.approx(0.02)
    assert (found.rtt_drafter, found.rtt_target) == (0.03, 0.001)


def test_drafts_pay_from_some_acceptance_on() -> None:
    found = [least_acceptance(Conditions(TargetCosts(costs), PLAIN, 0.02)) for costs in (FREE, MIDDLING, DEAR)]
    assert found[0] is not None
    assert found[1] is not None
    assert found[0] < found[1]
    assert found[2] is None


def test_lines_for_people() -> None:
    said = list(lines(predicted({2: 1.25, 8: 2.4}, drafts(), distance=0.0015)))
    assert said[0] == "measured: 10.0 tokens/s alone; plain steps for a batch of 2: 1.2, 8: 2.4"
    assert said[1] == "measured: 50 draft tokens/s; round trips of 1.5 ms to the drafter, 0.0 ms to the target"
    assert said[2].startswith("predicted: inject x")
