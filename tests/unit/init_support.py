"""Findings to decide about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from specrouter.checking import PairReport, Report, RouteReport
from specrouter.init.addresses import Address
from specrouter.init.findings import Found, Kind
from specrouter.init.plan import Plan
from specrouter.types import ServerInfo

POOL = frozenset({"ngram-mod"})
NOTHING: frozenset[str] = frozenset()

GB = 2**30


def found(
    url: str,
    model: str = "Qwen3-32B-Q4_K_M.gguf",
    *,
    size: float | None = 20,
    speed: float | None = 5,
    spec: frozenset[str] | None = NOTHING,
    kind: Kind = Kind.GENERATES,
    **info: Any,
) -> Found:
    """A server. `size` is in GiB."""
    known: dict[str, Any] = {"n_vocab": 150_000, "vocab_type": 2, "slots": 4, "n_ctx": 8192, **info}
    n_bytes = None if size is None else int(size * GB)
    return Found(
        Address(url, url), ServerInfo(model=model, model_path=model, n_bytes=n_bytes, **known), kind, speed, spec
    )


BIG = found("http://server:8080", spec=POOL)
SMALL = found("http://laptop:8080", "Qwen3-0.6B-Q8_0.gguf", size=0.6, speed=60)


def checked(plan: Plan, pairs: Mapping[str, Sequence[PairReport]]) -> Report:
    """What `specrouter check` found of the pairs of the routes of a plan."""
    return Report([], [RouteReport(route.name, route.targets[0], pairs.get(route.name, ())) for route in plan.routes])


def verifies(target: str, **more: Any) -> PairReport:
    """A pair whose drafts are verified."""
    return PairReport(target, None, **{"verifier": "inject", "details": {"n_match": 8}, **more})


def shape(plan: Plan) -> dict[str, tuple[Any, ...]]:
    """The routes: targets, where drafts come from, and `blocked` where they cannot be verified."""
    return {
        route.name: (
            *route.targets,
            *([route.draft.use, route.draft.server] if route.draft is not None else []),
            *(["blocked"] if route.obstacle is not None else []),
        )
        for route in plan.routes
    }
