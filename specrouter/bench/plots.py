"""Plots as inline SVG. Colours come from the page's style sheet, by class."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape

from specrouter.request_log import visible

from .figures import Answer, Pair, acceptance_by_position, steps

_WIDTH = 860
_LABELS = 250
_ROW = 18
_TOP = 26
_BAR_HEIGHT = 120
_CELL = 6
_LONGEST_LABEL = 38


def speed_by_prompt(pairs: Sequence[Pair]) -> str:
    """For each pair a line from the plain answer's speed to the drafted one's."""
    shown = [pair for pair in pairs if pair.ratio is not None]
    if not shown:
        return ""
    highest = max(max(pair.plain.speed or 0, pair.drafted.speed or 0) for pair in shown)
    ticks = _ticks(highest)
    height = _TOP + _ROW * len(shown) + 8

    def x(speed: float) -> float:
        return _LABELS + (_WIDTH - _LABELS - 20) * speed / ticks[-1]

    parts = [*_vertical_grid(ticks, x_of=[x(tick) for tick in ticks], height=height)]
    for index, pair in enumerate(shown):
        plain, drafted = pair.plain.speed or 0.0, pair.drafted.speed or 0.0
        y = _TOP + _ROW * index + _ROW / 2
        parts += [
            f"<g><title>{printable(_hint(pair))}</title>",
            f'<text class="label" x="0" y="{y + 4:.1f}">{printable(_label(pair))}</text>',
            f'<line class="link" x1="{x(plain):.1f}" x2="{x(drafted):.1f}" y1="{y:.1f}" y2="{y:.1f}"/>',
            f'<circle class="plain" cx="{x(plain):.1f}" cy="{y:.1f}" r="4"/>',
            f'<circle class="drafted" cx="{x(drafted):.1f}" cy="{y:.1f}" r="4"/></g>',
        ]
    return _svg(parts, height, "tokens per second of each prompt, alone and with drafts")


def positions(pairs: Sequence[Pair]) -> str:
    """A bar for each number of draft tokens: in which share of the steps at least that many were accepted."""
    shares = acceptance_by_position(pair.drafted for pair in pairs)
    if not shares:
        return ""
    width, height = 34, _BAR_HEIGHT + 40
    ticks = _ticks(shares[0])

    def y(share: float) -> float:
        return 10 + _BAR_HEIGHT * (1 - share / ticks[-1])

    parts = []
    for index, share in enumerate(shares):
        left, top = 40 + width * index, y(share)
        parts += [
            f"<g><title>at least {index + 1} accepted: {share:.0%} of the steps</title>",
            f'<rect class="drafted" x="{left}" y="{top:.1f}" width="{width - 8}" height="{y(0) - top:.1f}"/>',
            f'<text class="tick" x="{left + width / 2 - 4}" y="{_BAR_HEIGHT + 26}">{index + 1}</text></g>',
        ]
    for share in ticks:
        parts.append(f'<text class="tick" x="16" y="{y(share) + 4:.1f}">{share:.0%}</text>')
        line = f'x1="36" x2="{44 + width * len(shares)}" y1="{y(share):.1f}" y2="{y(share):.1f}"'
        parts.insert(0, f'<line class="grid" {line}/>')
    return _svg(parts, height, "share of steps by accepted draft tokens")


def timeline(pair: Pair) -> str:
    """Both answers of a pair over time: a column for each step, a square for each token."""
    drafted = steps(pair.drafted)
    tallest = max(drafted.sizes)
    end = max(pair.plain.seconds, pair.drafted.seconds)
    ticks = _ticks(end)
    below_plain, height = 60, 60 + 20 + _CELL * (tallest + 1) + 30

    def x(at: float) -> float:
        return 90 + (_WIDTH - 110) * at / ticks[-1]

    parts = [*_vertical_grid(ticks, x_of=[x(tick) for tick in ticks], height=height, unit=" s")]
    for name, y in (("alone", below_plain), ("with drafts", height - 18)):
        parts.append(f'<text class="label" x="0" y="{y}">{name}</text>')
    parts += [_square("own", x(chunk.at), below_plain, 0) for chunk in pair.plain.chunks if chunk.text]
    for size, start in _columns(drafted.sizes):
        at = pair.drafted.chunks[start].at
        # Its own token at the bottom: that is what the target would have said anyway in this step.
        parts += [_square("accepted" if level else "own", x(at), height - 18, level) for level in range(size)]
    return _svg(parts, height, "both answers over time, a column for each step of the target")


def marked_text(answer: Answer) -> str:
    """An answer with its accepted draft tokens marked."""
    chunks = [
        (printable(chunk.text), accepted)
        for chunk, accepted in zip(answer.chunks, steps(answer).accepted(), strict=True)
    ]
    return "".join(f"<mark>{text}</mark>" if accepted else text for text, accepted in chunks)


def printable(text: str) -> str:
    """Text for a page: escaped, and control characters, which a page must not have, shown."""
    return escape("\n".join(visible(line) for line in text.split("\n")))


def _columns(sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    start = 0
    for size in sizes:
        yield size, start
        start += size


def _square(kind: str, x: float, below: float, level: int) -> str:
    size = _CELL - 1
    return f'<rect class="{kind}" x="{x:.1f}" y="{below - _CELL * (level + 1):.1f}" width="{size}" height="{size}"/>'


def _ticks(highest: float) -> list[float]:
    """Round numbers from 0 to at least `highest`, about five of them."""
    rough = highest / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)
    return [step * index for index in range(math.ceil(highest / step - 1e-9) + 1)]


def _vertical_grid(ticks: Sequence[float], x_of: Sequence[float], height: float, unit: str = "") -> Iterator[str]:
    for tick, x in zip(ticks, x_of, strict=True):
        yield f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP - 8}" y2="{height - 8:.1f}"/>'
        yield f'<text class="tick" x="{x:.1f}" y="12">{tick:g}{unit}</text>'


def _label(pair: Pair) -> str:
    words = " ".join(pair.question.drafted.text.split())
    return words if len(words) <= _LONGEST_LABEL else f"{words[: _LONGEST_LABEL - 1]}…"


def _hint(pair: Pair) -> str:
    return (
        f"{pair.kind}: {pair.plain.speed or 0:.1f} → {pair.drafted.speed or 0:.1f} tokens/s, x{pair.ratio or 0:.2f}, "
        f"accepted {pair.drafted.accepted} of {pair.drafted.drafted}"
    )


def _svg(parts: Sequence[str], height: float, label: str) -> str:
    inner = "".join(parts)
    return f'<svg viewBox="0 0 {_WIDTH} {height:.0f}" role="img" aria-label="{escape(label)}">{inner}</svg>'
