"""Predicted speeds against the target alone, for a grid of targets, drafters, acceptances and distances.

    python tests/benchmarks/simulate.py
    python tests/benchmarks/simulate.py --trace tests/unit/data/greedy.jsonl --tokens 4000

To compare governors: run it before and after a change. Each figure is the mean over a few traces, the same ones for
every run. By default answers have 256 tokens and learn from one another.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from specrouter.simulator import (
    Conditions,
    Prediction,
    TargetCosts,
    Trace,
    fanout,
    from_lines,
    injection,
    like_text,
    native,
    rpc,
    steady,
)

CURVES = {
    "CPU, BF16, 1 thread": TargetCosts({2: 1.2, 4: 1.6, 6: 1.9, 8: 2.7, 16: 3.2, 32: 5.5}),
    "CPU, in a busy batch": TargetCosts({8: 2.4, 16: 3.6}),
    "nearly free": TargetCosts({32: 1.2}),
}
ACCEPTANCES = (0.5, 0.65, 0.8, 0.93)
SPEEDS = (7, 5)
MILLISECONDS = (0.0, 2.0, 10.0, 40.0)


def main() -> None:
    arguments = parsed()
    started = time.perf_counter()
    for curve, costs in CURVES.items():
        for speed in arguments.speeds:
            conditions = Conditions(costs, arguments.plain_step, arguments.plain_step / speed, jitter=arguments.jitter)
            print(f"\n{curve}, a draft token takes 1/{speed:g} of a step")
            heads = [f"{f'inject {ms:g} ms':>14}" for ms in arguments.rtt]
            heads += [f"{name:>9}" for name in ("fanout", "native", *(f"rpc {ms:g}ms" for ms in arguments.rtt[1:2]))]
            print("acceptance  " + "".join(heads))
            for name, traces in chosen_traces(arguments):
                print(f"{name:<12}" + "".join(cells(arguments, conditions, traces)))
    print(f"\n{time.perf_counter() - started:.1f} s")


def chosen_traces(arguments: argparse.Namespace) -> list[tuple[str, list[Trace]]]:
    if arguments.trace:
        return [(path.stem, [from_lines(path.read_text("utf-8").splitlines())]) for path in arguments.trace]
    named = []
    for acceptance in arguments.acceptance:
        draw = steady if arguments.steady else like_text
        traces = [draw(acceptance, tokens=arguments.tokens, seed=seed) for seed in range(arguments.seeds)]
        named.append((f"{acceptance:g}", traces))
    return named


def cells(arguments: argparse.Namespace, conditions: Conditions, traces: list[Trace]) -> list[str]:
    def mean(predict: Callable[[Conditions, Trace], Prediction], ms: float = 0.0) -> float:
        there = replace(conditions, rtt_drafter=ms / 1000)
        return statistics.fmean(predict(there, trace).ratio for trace in traces)

    inject = partial(injection, tokens=arguments.tokens, answer=arguments.answer)
    found = [f"{mean(inject, ms):>14.2f}" for ms in arguments.rtt]
    found += [f"{mean(predict):>9.2f}" for predict in (fanout, native)]
    return [*found, *(f"{mean(rpc, ms):>9.2f}" for ms in arguments.rtt[1:2])]


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--acceptance", type=float, nargs="+", default=ACCEPTANCES)
    parser.add_argument("--rtt", type=float, nargs="+", default=MILLISECONDS, help="to the drafter, in milliseconds")
    parser.add_argument("--speeds", type=float, nargs="+", default=SPEEDS, help="draft tokens in a plain step")
    parser.add_argument("--plain-step", type=float, default=0.045, help="seconds")
    parser.add_argument("--jitter", type=float, default=0.0, help="by how much of their time steps are late")
    parser.add_argument("--tokens", type=int, default=2000)
    parser.add_argument("--answer", type=int, default=256, help="tokens of one answer")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--steady", action="store_true", help="no easy and hard stretches by turns")
    parser.add_argument("--trace", type=Path, nargs="+", help="recorded ones, as JSON lines")
    return parser.parse_args()


if __name__ == "__main__":
    main()
