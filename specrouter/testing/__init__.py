"""For tests of plugins and of specrouter itself.

A scripted fake llama-server and the toy model it speaks with; for acceptance policies, models that sample, with every
probability known, and a test whether the target's distribution was kept. Tests that every plugin of a kind has to pass.
"""

from __future__ import annotations

from .chi_square import ChiSquare, chi_square
from .conformance import (
    AcceptancePolicyConformance,
    DraftStrategyConformance,
    NativeVerifierConformance,
    PluginConformance,
    Rule,
    RuleBroken,
    StepVerifierConformance,
    TokenizerCheckConformance,
    VerifierConformance,
)
from .fake_http import Exchange, ReceivedRequest, Reply, hang, reset, respond_with
from .fake_server import FakeServer
from .toy_model import NgramPool, ToyModel, ToyVocabulary
from .toy_sampling import PROMPT, ToyDecoder, ToyDistribution

__all__ = [
    "PROMPT",
    "AcceptancePolicyConformance",
    "ChiSquare",
    "DraftStrategyConformance",
    "Exchange",
    "FakeServer",
    "NativeVerifierConformance",
    "NgramPool",
    "PluginConformance",
    "ReceivedRequest",
    "Reply",
    "Rule",
    "RuleBroken",
    "StepVerifierConformance",
    "TokenizerCheckConformance",
    "ToyDecoder",
    "ToyDistribution",
    "ToyModel",
    "ToyVocabulary",
    "VerifierConformance",
    "chi_square",
    "hang",
    "reset",
    "respond_with",
]
