"""Tests that every plugin of a kind has to pass, bundled or a stranger's: subclass the class of your kind."""

from __future__ import annotations

from .checks import TokenizerCheckConformance
from .drafts import DraftStrategyConformance
from .native import NativeVerifierConformance
from .plugin import PluginConformance
from .policies import AcceptancePolicyConformance
from .rules import Rule, RuleBroken
from .steps import StepVerifierConformance
from .verifiers import VerifierConformance

__all__ = [
    "AcceptancePolicyConformance",
    "DraftStrategyConformance",
    "NativeVerifierConformance",
    "PluginConformance",
    "Rule",
    "RuleBroken",
    "StepVerifierConformance",
    "TokenizerCheckConformance",
    "VerifierConformance",
]
