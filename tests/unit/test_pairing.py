"""What a pair makes of what its verifiers find."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from specrouter.config import ServerConfig
from specrouter.interfaces import Generation, StepSession, StepVerifier, Support
from specrouter.pairing import Pair
from specrouter.plugins import Bound, PluginInfo
from specrouter.tokenizers import Comparisons
from specrouter.upstream import LlamaServer

pytestmark = pytest.mark.anyio


class Costless(StepVerifier):
    """Says that it works, and not what it costs."""

    name = "costless"

    async def inspect(self, target: LlamaServer) -> Support:
        return Support()

    def obstacle(self, target: LlamaServer, body: Mapping[str, Any]) -> str | None:
        return None

    def start(self, generation: Generation, body: Mapping[str, Any], *, distributions: bool) -> StepSession:
        raise NotImplementedError


async def test_a_step_verifier_without_costs_is_not_taken() -> None:
    info = PluginInfo("verify", "costless", Costless, "mine", "2")
    target = LlamaServer(ServerConfig("big", "http://127.0.0.1:1"))
    pair = Pair(target, None, [Bound(info, Costless({}, {}))], [], Comparisons())
    await pair.examine()
    assert pair.obstacle == f"costless: {info} has not measured what its rounds cost"
    assert pair.verifier is None
