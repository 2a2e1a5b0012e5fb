"""The bundled plugins pass the tests that specrouter gives to authors of plugins."""

from __future__ import annotations

from typing import Any, ClassVar

from specrouter_plugins.fanout import Fanout
from specrouter_plugins.first_of import FirstOf
from specrouter_plugins.greedy import Greedy
from specrouter_plugins.inject import Inject
from specrouter_plugins.none import NoDraft
from specrouter_plugins.probe_text import ProbeText
from specrouter_plugins.prompt_lookup import PromptLookup
from specrouter_plugins.remote import Remote
from specrouter_plugins.rpc import Rpc
from specrouter_plugins.sampled import Sampled
from specrouter_plugins.vocabulary import Vocabulary

from specrouter.plugins import load_plugins
from specrouter.testing import (
    AcceptancePolicyConformance,
    DraftStrategyConformance,
    NativeVerifierConformance,
    StepVerifierConformance,
    TokenizerCheckConformance,
)

_REMOTE = {"use": "remote", "options": {"server": "drafter"}}


class TestNone(DraftStrategyConformance):
    strategy = NoDraft
    drafts = False


class TestRemote(DraftStrategyConformance):
    strategy = Remote
    options: ClassVar[dict[str, Any]] = {"server": "drafter"}


class TestPromptLookup(DraftStrategyConformance):
    strategy = PromptLookup


class TestPromptLookupWithoutMemory(DraftStrategyConformance):
    strategy = PromptLookup
    options: ClassVar[dict[str, Any]] = {"min_match": 1, "memory": 0}


class TestFirstOf(DraftStrategyConformance):
    strategy = FirstOf
    options: ClassVar[dict[str, Any]] = {"strategies": ["prompt_lookup", _REMOTE]}


class TestRpc(DraftStrategyConformance):
    strategy = Rpc
    options: ClassVar[dict[str, Any]] = {"server": "drafter"}
    drafts = False


class TestInject(NativeVerifierConformance):
    verifier = Inject


class TestFanout(StepVerifierConformance):
    verifier = Fanout
    options: ClassVar[dict[str, Any]] = {"stand_down": False}


class TestGreedy(AcceptancePolicyConformance):
    policy = Greedy


class TestMatch(AcceptancePolicyConformance):
    policy = Sampled


class TestRejection(AcceptancePolicyConformance):
    policy = Sampled
    options: ClassVar[dict[str, Any]] = {"method": "rejection"}


class TestVocabulary(TokenizerCheckConformance):
    check = Vocabulary


class TestProbeText(TokenizerCheckConformance):
    check = ProbeText


def test_none_is_forgotten() -> None:
    ours = {info.cls for info in load_plugins() if info.distribution == "specrouter"}
    tests = [value for value in globals().values() if isinstance(value, type) and value.__name__.startswith("Test")]
    assert {test().plugin for test in tests} == ours
