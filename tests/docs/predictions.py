"""The tables of docs/explanation/when-it-pays.md, as the simulator has them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from specrouter.predicting import least_acceptance
from specrouter.simulator import (
    Conditions,
    TargetCosts,
    fanout,
    from_lines,
    injection,
    like_text,
    native,
    rpc,
)

_TOKENS = 1000
_ACCEPTANCES = (0.5, 0.65, 0.8, 0.9, 0.97)

MACHINES = {
    "CPU, 16-bit weights, one thread": Conditions(
        TargetCosts({2: 1.2, 4: 1.6, 6: 1.9, 8: 2.7, 16: 3.2, 32: 5.5}), plain_step=0.045, draft_token=0.0065
    ),
    "CPU, 16-bit weights, two threads": Conditions(
        TargetCosts({2: 1.1, 4: 1.5, 8: 1.8, 16: 2.4, 32: 3.8}), plain_step=0.14, draft_token=0.02
    ),
    "CPU, 4-bit weights": Conditions(TargetCosts({8: 6.5}), plain_step=0.1, draft_token=0.015),
    "GPU, batches nearly free": Conditions(TargetCosts({32: 1.2}), plain_step=0.03, draft_token=0.006),
}
_MEASURED = Path(__file__).parent.parent / "unit" / "data" / "greedy.jsonl"


def machines() -> str:
    """A row for each machine and strategy."""
    rows = ["| target | strategy |" + "".join(f" {acceptance:.0%} |" for acceptance in _ACCEPTANCES)]
    rows.append("| --- | --- |" + " --- |" * len(_ACCEPTANCES))
    traces = [like_text(acceptance, tokens=_TOKENS, seed=1) for acceptance in _ACCEPTANCES]
    for name, conditions in MACHINES.items():
        there = replace(conditions, rtt_drafter=0.001)
        ratios = {
            "`inject`": [injection(there, trace).ratio for trace in traces],
            "`fanout`": [fanout(there, trace).ratio for trace in traces],
            "llama-server's own, draft model at hand": [native(there, trace).ratio for trace in traces],
        }
        rows += [f"| {name} | {strategy} | {_cells(row)} |" for strategy, row in ratios.items()]
    return "\n".join([*rows, "", ""])


def distance() -> str:
    """Injection and RPC by round trips to the drafter."""
    trace = from_lines(_MEASURED.read_text("utf-8").splitlines())
    conditions = MACHINES["CPU, 16-bit weights, one thread"]
    rows = ["| round trip | `inject` | draft model on an RPC device |", "| --- | --- | --- |"]
    for milliseconds in (0, 0.5, 2, 10, 40):
        far = replace(conditions, rtt_drafter=milliseconds / 1000)
        ratios = [injection(far, trace, tokens=2 * _TOKENS).ratio, rpc(far, trace, tokens=2 * _TOKENS).ratio]
        rows.append(f"| {milliseconds:g} ms | {_cells(ratios)} |")
    return "\n".join([*rows, "", ""])


def clients() -> str:
    """Injection with other answers under way on the target."""
    others = (0, 1, 3, 7)
    rows = ["| target | acceptance |" + "".join(f" {count + 1} answers |" for count in others)]
    rows[0] = rows[0].replace(" 1 answers", " alone")
    rows.append("| --- | --- |" + " --- |" * len(others))
    for name in ("CPU, 16-bit weights, one thread", "CPU, 16-bit weights, two threads", "GPU, batches nearly free"):
        for acceptance in (0.8, 0.9, 0.97):
            trace = like_text(acceptance, tokens=_TOKENS, seed=1)
            there = [replace(MACHINES[name], rtt_drafter=0.001, beside=count) for count in others]
            cells = _cells([injection(conditions, trace).ratio for conditions in there])
            rows.append(f"| {name} | {acceptance:.0%} | {cells} |")
    return "\n".join([*rows, "", ""])


def least() -> str:
    """What batches cost, and which drafts pay."""
    rows = ["| target | a batch of 8 costs | of 16 | drafts pay with `inject` |", "| --- | --- | --- | --- |"]
    for name, conditions in MACHINES.items():
        acceptance = least_acceptance(conditions)
        words = "never" if acceptance is None else f"from {acceptance:.0%} acceptance on"
        costs = [f"{conditions.costs.at(size):.1f} plain steps" for size in (8, 16)]
        rows.append(f"| {name} | {' | '.join(costs)} | {words} |")
    return "\n".join([*rows, "", ""])


def _cells(ratios: list[float]) -> str:
    return " | ".join(f"×{ratio:.2f}" for ratio in ratios)  # noqa: RUF001  (as on all pages)
