"""What a reader of the figures has to know. Pure, and in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from .figures import FEWEST_PAIRS, NEAR_TIE, SHORTEST_ANSWER, Series, is_noisy, spread, steps, undrafted_speed
from .runner import Results


def notes(results: Results) -> list[str]:
    """One line each, the most general ones first."""
    series = [*results.series, *results.native]
    methods = [f"{name}: {method}." for name, method in results.methods.items()]
    return list(dict.fromkeys([*methods, *(note for one in series for note in _about(one))]))


def title(series: Series) -> str:
    """A series in words: `chat on big, 4 at once, 10 ms more to the drafter`."""
    parts = [f"{series.route} on {series.target}"]
    if series.concurrency > 1:
        parts.append(f"{series.concurrency} at once")
    if series.rtt:
        parts.append(f"{series.rtt * 1000:g} ms more to the drafter")
    if series.rtt_target:
        parts.append(f"{series.rtt_target * 1000:g} ms more to the target")
    return ", ".join(parts)


def _about(series: Series) -> Iterator[str]:
    yield from (f"{title(series)}: {note}." for note in _findings(series))


def _findings(series: Series) -> Iterator[str]:
    pairs = series.pairs
    first = spread(pair.ratio for pair in series.all_pairs if pair.is_first)
    if first is not None:
        words = "answer, with nothing learned yet, is" if first.n == 1 else "answers, with nothing learned yet, are"
        yield f"the first {words} not in the medians (x{first.median:.2f})"
    if series.cached:
        yield "prompts may have been in the target's cache: the times to first token say little"
    for reason, count in Counter(missing.reason for missing in series.missing).items():
        yield f"{'a pair is' if count == 1 else f'{count} pairs are'} left out, for want of an answer: {reason}"
    compared = sum(pair.ratio is not None for pair in pairs)
    if compared < len(pairs):
        short = len(pairs) - compared
        yield f"{short} of {len(pairs)} pairs have an answer under {SHORTEST_ANSWER} tokens and no ratio"
    if compared < FEWEST_PAIRS:
        few = "1 pair" if compared == 1 else f"{compared} pairs"
        yield f"its ratio is of {few}, fewer than {FEWEST_PAIRS}: nothing to rely on"
    alone = undrafted_speed(pairs)
    if alone is not None and is_noisy(alone):
        yield (
            f"the target alone varied from {alone.low:.1f} to {alone.high:.1f} tokens/s: the machine was busy with "
            "something else, or the prompts differ much in length"
        )
    own = sum(pair.plain.accepted > 0 for pair in pairs)
    if own:
        yield f"without the router's drafts the target drafted by itself in {own} of {len(pairs)} answers"
    plainly = Counter(pair.drafted.decoding for pair in pairs if pair.drafted.decoding.startswith("plain; "))
    for decoding, count in plainly.items():
        yield f"{count} of {len(pairs)} answers were not drafted: {decoding.removeprefix('plain; reason=')}"
    for reason, count in Counter(pair.drafted.ended_early for pair in pairs if pair.drafted.ended_early).items():
        yield f"drafting ended early in {count} of {len(pairs)} answers: {reason}"
    gaps = [max(pair.difference or 0.0, pair.audit.worst if pair.audit is not None else 0.0) for pair in pairs]
    wide = [gap for gap in gaps if gap >= NEAR_TIE]
    if wide:
        yield (
            f"{len(wide)} of {len(pairs)} answers hold a token that the target likes less than another, by up to "
            f"{max(wide):.2f} nats: more than a near tie ({NEAR_TIE:g}). With coarsely quantised weights, batches of "
            "another size can do that; what is much larger is a fault"
        )
    uncertain = sum(not steps(pair.drafted).is_certain for pair in pairs)
    if uncertain:
        yield f"acceptance by position leaves out {uncertain} of {len(pairs)} answers: their steps cannot be told apart"
