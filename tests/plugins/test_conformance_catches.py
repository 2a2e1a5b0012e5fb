"""The conformance tests catch plugins that break a rule, and name the rule; there is one for each."""

from __future__ import annotations

import subprocess
import sys
from typing import Any, ClassVar

import bad_drafts
import bad_policies
import bad_verifiers
import pytest

from specrouter.interfaces import AcceptancePolicy, DraftStrategy, NativeVerifier, StepVerifier, TokenizerCheck
from specrouter.testing import (
    AcceptancePolicyConformance,
    DraftStrategyConformance,
    NativeVerifierConformance,
    Rule,
    RuleBroken,
    StepVerifierConformance,
    TokenizerCheckConformance,
)


class Draft(DraftStrategyConformance):
    options: ClassVar[dict[str, Any]] = {"server": "drafter"}


KITS: list[tuple[type[Any], type[Any], str]] = [
    (DraftStrategy, Draft, "strategy"),
    (NativeVerifier, NativeVerifierConformance, "verifier"),
    (StepVerifier, StepVerifierConformance, "verifier"),
    (AcceptancePolicy, AcceptancePolicyConformance, "policy"),
    (TokenizerCheck, TokenizerCheckConformance, "check"),
]

OPTIONS: dict[type[Any], dict[str, Any]] = {bad_policies.DrawsFirst: {"method": "rejection"}}

BROKEN: list[tuple[type[Any], str, Rule]] = [
    (bad_drafts.ReturnedByNoHook, "it_is_registered", Rule.REGISTERED),
    (bad_drafts.WithoutDocstring, "it_has_a_summary", Rule.SUMMARY),
    (bad_drafts.FailsInInit, "it_takes_its_options", Rule.OPTIONS_TAKEN),
    (bad_drafts.RefusesGoodOptions, "it_takes_its_options", Rule.OPTIONS_TAKEN),
    (bad_drafts.TakesAnyOption, "it_refuses_wrong_options", Rule.OPTIONS_REFUSED),
    (bad_drafts.ServerIsJustAText, "it_refuses_wrong_options", Rule.OPTIONS_REFUSED),
    (bad_drafts.ConnectsInInit, "it_takes_its_options", Rule.INIT_IS_QUIET),
    (bad_drafts.AvailableIsTrue, "available_answers_at_once", Rule.AVAILABLE),
    (bad_drafts.AvailableReadsAFile, "available_answers_at_once", Rule.AVAILABLE),
    (bad_drafts.DraftServerIsAName, "the_draft_server_stays", Rule.DRAFT_SERVER),
    (bad_drafts.StartConnects, "start_is_quiet", Rule.START),
    (bad_drafts.StartBeginsATask, "start_is_quiet", Rule.START),
    (bad_drafts.OneDrafterForAll, "start_is_quiet", Rule.START),
    (bad_drafts.StartReturnsText, "start_is_quiet", Rule.START),
    (bad_drafts.DraftReturnsAList, "drafts_are_tokens_of_the_target", Rule.DRAFTS),
    (bad_drafts.DraftsIds, "drafts_are_tokens_of_the_target", Rule.DRAFTS),
    (bad_drafts.NeverDrafts, "drafts_are_tokens_of_the_target", Rule.DRAFTS),
    (bad_drafts.DraftsTooMuch, "drafts_are_tokens_of_the_target", Rule.MAX_TOKENS),
    (bad_drafts.DraftsPadding, "drafts_are_tokens_of_the_target", Rule.IDS),
    (bad_drafts.StripsPieces, "drafts_are_tokens_of_the_target", Rule.PIECES),
    (bad_drafts.GivesLogarithms, "drafts_are_tokens_of_the_target", Rule.PROBABILITY),
    (bad_drafts.GivesTopOnly, "drafts_are_tokens_of_the_target", Rule.DISTRIBUTION),
    (bad_drafts.ChangesContext, "context_is_not_changed", Rule.INPUTS_STAY),
    (bad_drafts.WaitsForEver, "servers_that_fail", Rule.COMES_BACK),
    (bad_drafts.RaisesKeyError, "servers_that_fail", Rule.UPSTREAM_ERRORS),
    (bad_drafts.LeavesATask, "a_draft_can_be_closed", Rule.LETS_GO),
    (bad_drafts.CannotBeClosed, "a_draft_can_be_closed", Rule.LETS_GO),
    (bad_drafts.CannotBeCancelled, "a_draft_can_be_cancelled", Rule.LETS_GO),
    (bad_drafts.DraftsOnce, "it_drafts_again", Rule.AGAIN),
    (bad_drafts.ObservesLater, "it_learns_and_closes_at_any_time", Rule.OBSERVE),
    (bad_drafts.ObservesAfterDraftsOnly, "it_learns_and_closes_at_any_time", Rule.OBSERVE),
    (bad_drafts.ClosesOnce, "it_learns_and_closes_at_any_time", Rule.ACLOSE),
    (bad_drafts.SharesContext, "requests_do_not_mix", Rule.REQUESTS_APART),
    (bad_verifiers.WorksEverywhere, "it_says_what_is_missing", Rule.INSPECT),
    (bad_verifiers.TakesFailureForLack, "a_target_that_fails", Rule.INSPECT),
    (bad_verifiers.AccompaniesWithoutCounts, "accompanying_is_quiet", Rule.SESSION),
    (bad_verifiers.StaysAfterTheEnd, "it_follows_an_answer", Rule.FOLLOWS),
    (bad_verifiers.LeavesBeforeTheEnd, "it_follows_an_answer", Rule.FOLLOWS),
    (bad_verifiers.PrimesAfterTheEnd, "it_follows_an_answer", Rule.ENDS),
    (bad_verifiers.RaisesGroups, "a_drafter_that_fails", Rule.DRAFTER_FAULTS),
    (bad_verifiers.ForgetsTheLastPosition, "positions", Rule.POSITIONS),
    (bad_verifiers.BelievesTheDraft, "positions", Rule.EXACT),
    (bad_verifiers.BelievesTheDraft, "the_answer_is_the_targets", Rule.EXACT),
    (bad_verifiers.HasNoCosts, "it_knows_its_costs", Rule.COSTS),
    (bad_verifiers.AsksInATaskGroup, "a_target_that_fails_within_an_answer", Rule.UPSTREAM_ERRORS),
    (bad_verifiers.CompilesGrammars, "obstacles", Rule.OBSTACLE),
    (bad_verifiers.AsksWhenStarted, "starting_is_quiet", Rule.SESSION),
    (bad_policies.ComparesNone, "what_it_covers", Rule.COVERS),
    (bad_policies.CoversNothing, "what_it_covers", Rule.COVERS),
    (bad_policies.HasDiceOfItsOwn, "it_is_pure", Rule.PURE),
    (bad_policies.CountsTheNextToken, "it_accepts_a_prefix", Rule.ACCEPTED),
    (bad_policies.SaysWhatWasDrafted, "it_accepts_a_prefix", Rule.FOLLOWING),
    (bad_policies.DrawsFirst, "incomplete_distributions", Rule.INCOMPLETE),
    (bad_policies.NeedsWhatItDoesNotNeed, "incomplete_distributions", Rule.INCOMPLETE),
    (bad_policies.AcceptsTheLikely, "the_distribution_is_kept", Rule.LOSSLESS),
    (bad_policies.AcceptsTheLikelyWhenCool, "the_distribution_is_kept", Rule.LOSSLESS),
    (bad_policies.ComparesSizes, "padding", Rule.EQUAL),
    (bad_policies.ComparesSizes, "swapped_ids", Rule.DIFFERENT),
    (bad_policies.AlwaysContent, "swapped_ids", Rule.DIFFERENT),
]

GOOD = [bad_drafts.GoodStrategy, bad_verifiers.OneByOne, bad_policies.Matching]


def kit(plugin: type[Any], **attributes: Any) -> Any:
    """The tests of its kind for a plugin."""
    base, attribute = next((kit, attribute) for kind, kit, attribute in KITS if issubclass(plugin, kind))
    if plugin in OPTIONS:
        attributes["options"] = OPTIONS[plugin]
    return type(f"Test{plugin.__name__}", (base,), {attribute: plugin, **attributes})()


@pytest.mark.parametrize(("plugin", "test", "rule"), BROKEN)
def test_bad_plugins_are_caught(plugin: type[Any], test: str, rule: Rule) -> None:
    # What never ends is waited for: not as long as in tests of plugins that may be good.
    patience = 2.0 if rule in (Rule.COMES_BACK, Rule.LETS_GO, Rule.FOLLOWS) else 15.0
    with pytest.raises(RuleBroken) as caught:
        getattr(kit(plugin, patience=patience), f"test_{test}")()
    assert caught.value.rule is rule
    assert str(caught.value).startswith(f"{plugin.__name__}: ")
    assert rule.value in str(caught.value)


def test_no_test_runner_is_needed() -> None:
    """Who installs specrouter has the tests; pytest is the author's affair."""
    program = "import sys, specrouter.testing; sys.exit('pytest' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == 0


def test_every_rule_is_checked() -> None:
    assert set(Rule) == {rule for _, _, rule in BROKEN}


@pytest.mark.parametrize("test", [name for name in dir(StepVerifierConformance) if name.startswith("test_")])
def test_a_good_step_verifier_passes(test: str) -> None:
    getattr(kit(bad_verifiers.OneByOne), test)()


@pytest.mark.parametrize("test", [name for name in dir(Draft) if name.startswith("test_")])
def test_a_good_strategy_passes(test: str) -> None:
    getattr(kit(bad_drafts.GoodStrategy), test)()


@pytest.mark.parametrize("test", [name for name in dir(AcceptancePolicyConformance) if name.startswith("test_")])
def test_a_good_policy_passes(test: str) -> None:
    getattr(kit(bad_policies.Matching), test)()
