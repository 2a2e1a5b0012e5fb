"""What drafting is predicted to bring on a pair of servers, from what was measured on them, and what bounds it. Pure.

A prediction is as good as a few dozen draft tokens can make it. `specrouter bench` measures.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from .interfaces import Support
from .measuring import TargetSpeed
from .measuring_drafts import DraftSpeed
from .ngram_pool import PoolSettings
from .simulator import Conditions, Prediction, TargetCosts, Trace, fanout, injection, like_text, native
from .types import ServerInfo

STEPWISE, _NATIVE = "fanout", "inject"
"""The verifiers that predictions are about."""

_USUAL_POOL = PoolSettings(n_match=8, n_min=1, n_max=16)
_LEARNING, _TOKENS = 256, 1024
"""Tokens of answers that a route has learned from, and of those that count."""

_TYPICAL_BATCH = 8
_SLOW_NETWORK = 0.02
_SHORTEST = 1e-6
"""Seconds for a draft token, where they come faster than a clock tells."""

_TRIED = 768
_PAYS = 1.02


@dataclass(frozen=True, slots=True)
class Predicted:
    """The speed that a strategy is predicted to make of the target's own; None where it cannot be told, see `note`."""

    strategy: str
    ratio: float | None
    note: str | None = None


@dataclass(frozen=True, slots=True)
class Measured:
    """What was measured on a pair, what is predicted from that, and what bounds it, in words."""

    target: TargetSpeed
    drafts: DraftSpeed
    draft_round_trip: float
    predicted: Sequence[Predicted]
    bounds: Sequence[str]


def measured(
    target: TargetSpeed,
    drafts: DraftSpeed,
    *,
    draft_round_trip: float,
    attempts: Mapping[str, Support],
    target_info: ServerInfo,
    draft_info: ServerInfo | None,
) -> Measured:
    """The predictions for a pair; `attempts` are what the verifiers have found out about the target, by name."""
    found = conditions(target, drafts, draft_round_trip=draft_round_trip, pool=_pool(attempts) or _USUAL_POOL)
    predicted = [Predicted("none", 1.0)]
    bounds: list[str] = []
    if not target.batches:
        predicted.append(Predicted(_NATIVE, None, "the target's batches could not be measured"))
    elif found is None:
        predicted.append(Predicted(_NATIVE, None, "too little was drafted to tell"))
    else:
        predicted += _strategies(found, drafts.trace, attempts, target_info, draft_info)
        bounds += _bounds(found, drafts)
    return Measured(target, drafts, draft_round_trip, predicted, bounds)


def conditions(
    target: TargetSpeed, drafts: DraftSpeed, *, draft_round_trip: float, pool: PoolSettings
) -> Conditions | None:
    """What the simulator starts from; None where something could not be measured."""
    if not target.batches or drafts.token is None or drafts.first is None:
        return None
    return Conditions(
        costs=TargetCosts(target.batches),
        plain_step=target.plain_step,
        draft_token=max(drafts.token, _SHORTEST),
        draft_restart=max(0.0, drafts.first - drafts.token - draft_round_trip),
        rtt_drafter=draft_round_trip,
        rtt_target=target.round_trip,
        n_match=pool.n_match,
        n_max=pool.n_max,
    )


def _strategies(
    found: Conditions,
    trace: Trace,
    attempts: Mapping[str, Support],
    target_info: ServerInfo,
    draft_info: ServerInfo | None,
) -> Iterator[Predicted]:
    inject, stepwise = attempts.get(_NATIVE), attempts.get(STEPWISE)
    obstacle = None if inject is None or inject.reason is None else f"with the right flags: {inject.reason}"
    yield Predicted(_NATIVE, _injected(found, trace).ratio, obstacle)
    if stepwise is None or stepwise.costs is None:
        yield Predicted(STEPWISE, None, None if stepwise is None else stepwise.reason)
    else:
        there, rounds = replace(found, plain_step=stepwise.costs.plain), stepwise.costs.rounds
        yield Predicted(STEPWISE, fanout(there, trace, tokens=_TOKENS, rounds=rounds).ratio)
    if draft_info is None:
        return
    share = _share(draft_info.n_params, target_info.n_params)
    name = "llama-server's own"
    if share is None:
        yield Predicted(name, None, "the sizes of the models are not known")
    else:
        there = replace(found, draft_token=found.plain_step * share)
        note = "the draft model on the target's machine, if it is as much faster there as it is smaller"
        yield Predicted(name, native(there, trace, tokens=_TOKENS).ratio, note)


def _pool(attempts: Mapping[str, Support]) -> PoolSettings | None:
    found = attempts[_NATIVE].details.get("pool") if _NATIVE in attempts else None
    return found if isinstance(found, PoolSettings) else None


def _share(small: int | None, large: int | None) -> float | None:
    return small / large if small and large else None


def _injected(found: Conditions, trace: Trace) -> Prediction:
    """With what a route knows after a few answers."""
    return injection(found, trace, tokens=_TOKENS, learning=_LEARNING)


def _bounds(found: Conditions, drafts: DraftSpeed) -> Iterator[str]:
    cost = f"a batch of {_TYPICAL_BATCH} costs the target {found.costs.at(_TYPICAL_BATCH):.1f} plain steps"
    least = least_acceptance(found)
    if least is None:
        yield f"{cost}: with inject, which evaluates every draft token twice, no drafts of this drafter pay"
    else:
        yield f"{cost}: with inject, drafts of this drafter pay from about {least:.0%} acceptance on"
    right, drafted = sum(token.accepted for token in drafts.trace), len(drafts.trace) - drafts.silent
    yield f"the target said {right} of {drafted} draft tokens ({right / drafted:.0%})"
    if drafts.silent:
        yield f"nothing was drafted for {drafts.silent} tokens more, which the prediction takes for wrong drafts"
    speed = found.plain_step / found.draft_token
    if speed < found.n_max:
        yield f"the drafter says {speed:.1f} tokens in a plain step: no drafts of it make more than that out of a step"
    first = (found.rtt_drafter + found.draft_restart + found.draft_token) / found.plain_step
    if first > 1:
        yield f"after a miss its first token takes {first:.1f} plain steps to come"
    at_hand = _injected(replace(found, rtt_drafter=0.0, rtt_target=0.0), drafts.trace)
    network = _injected(found, drafts.trace).network_share(at_hand)
    if network > _SLOW_NETWORK:
        yield f"with inject, {network:.0%} of the time would be saved with no network between the machines"


def least_acceptance(found: Conditions) -> float | None:
    """The share of draft tokens that have to be right for injection to pay, as simulated; None where it never does."""

    def pays(acceptance: float) -> bool:
        return injection(found, like_text(acceptance, tokens=_TRIED, seed=1)).ratio > _PAYS

    low, high = 0.2, 0.99
    if not pays(high):
        return None
    while high - low > 0.02:
        middle = (low + high) / 2
        low, high = (low, middle) if pays(middle) else (middle, high)
    return high


def lines(found: Measured) -> Iterator[str]:
    """For people."""
    target = found.target
    batches = ", ".join(f"{size}: {cost:.1f}" for size, cost in target.batches.items())
    yield f"measured: {1 / target.plain_step:.1f} tokens/s alone; plain steps for a batch of {batches or 'any size: ?'}"
    drafts = found.drafts
    if drafts.token:
        yield (
            f"measured: {1 / drafts.token:.0f} draft tokens/s; round trips of {found.draft_round_trip * 1000:.1f} ms "
            f"to the drafter, {target.round_trip * 1000:.1f} ms to the target"
        )
    for one in found.predicted:
        if one.strategy == "none":
            continue
        figure = "not known" if one.ratio is None else f"x{one.ratio:.2f}"
        yield f"predicted: {one.strategy} {figure}{f' ({one.note})' if one.note else ''}"
    for bound in found.bounds:
        yield f"bound: {bound}"
