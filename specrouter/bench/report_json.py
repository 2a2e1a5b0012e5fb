"""A measurement for programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from specrouter import __version__

from .figures import Answer, Pair, Series, acceptance_by_position, rows, steps
from .notes import notes
from .runner import Results

FORMAT = 1
"""Raised when a key changes its meaning or goes; new ones may come any time."""


def as_json(results: Results) -> dict[str, Any]:
    """Everything that was measured, and the figures made of it. Times are in seconds, speeds in tokens per second."""
    options = results.options
    return {
        "format": FORMAT,
        "specrouter": __version__,
        "started": results.started.isoformat(timespec="seconds"),
        "topology": results.topology,
        "tokens": options.tokens,
        "against": options.against,
        "servers": {name: asdict(info) for name, info in results.servers.items()},
        "methods": results.methods,
        "series": [_series(series) for series in results.series],
        "native": [_series(series) for series in results.native],
        "notes": notes(results),
    }


def _series(series: Series) -> dict[str, Any]:
    together = series.together()
    return {
        "route": series.route,
        "target": series.target,
        "concurrency": series.concurrency,
        "rtt": series.rtt,
        "rtt_target": series.rtt_target,
        "cached": series.cached,
        "figures": {kind: asdict(found) for kind, found in rows(series.pairs)},
        "together": None if together is None else {"plain": together[0], "drafted": together[1]},
        "accepted_by_position": acceptance_by_position(pair.drafted for pair in series.pairs),
        "missing": [{"prompt": missing.question.drafted.text, "reason": missing.reason} for missing in series.missing],
        "pairs": _pairs(series.all_pairs),
    }


def _pairs(pairs: Sequence[Pair]) -> list[dict[str, Any]]:
    return [
        {
            "kind": pair.kind,
            "is_first": pair.is_first,
            "plain_first": pair.question.plain_first,
            "temperature": pair.question.drafted.temperature,
            "ratio": pair.ratio,
            "is_equal": pair.is_equal,
            "difference": pair.difference,
            "audit": None if pair.audit is None else asdict(pair.audit),
            "plain": {"prompt": pair.question.plain.text, **_answer(pair.plain)},
            "drafted": {"prompt": pair.question.drafted.text, **_answer(pair.drafted)},
        }
        for pair in pairs
    ]


def _answer(answer: Answer) -> dict[str, Any]:
    found = steps(answer)
    return {
        "text": answer.text,
        "tokens": answer.tokens,
        "speed": answer.speed,
        "first": answer.first,
        "seconds": answer.seconds,
        "finish": answer.finish,
        "drafted": answer.drafted,
        "accepted": answer.accepted,
        "primed": answer.primed,
        "decoding": answer.decoding,
        "ended_early": answer.ended_early,
        "arrivals": [round(chunk.at, 5) for chunk in answer.chunks],
        "steps": found.sizes,
        "steps_are_certain": found.is_certain,
    }
