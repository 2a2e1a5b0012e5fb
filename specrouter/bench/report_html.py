"""A measurement as one page that needs nothing else: no script, no network, light or dark as the reader has it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from specrouter import __version__

from .figures import Pair, Series, steps
from .notes import notes, title
from .plots import marked_text, positions, printable, speed_by_prompt, timeline
from .report_terminal import best_first, figures_table
from .runner import Results

_STYLE = """
:root { color-scheme: light dark; --ink: #1d2328; --paper: #fff; --faint: #68727c; --line: #d9dee3;
  --plain: #7a8691; --drafted: #0a7d5c; --mark: #cdeee2; }
@media (prefers-color-scheme: dark) { :root { --ink: #e3e7ea; --paper: #15191d; --faint: #97a1aa; --line: #333b43;
  --plain: #93a0ab; --drafted: #3fc397; --mark: #134a39; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 2rem auto;
  max-width: 72rem; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.2rem; margin-top: 2.5rem; } h3 { font-size: 1rem; }
p.about, figcaption { color: var(--faint); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .7rem; vertical-align: top; border-bottom: 1px solid var(--line); text-align: right;
  white-space: nowrap; }
th { white-space: normal; vertical-align: bottom; font-weight: 600; }
th:first-child, td:first-child { text-align: left; }
tbody tr:last-child { font-weight: 600; }
small { color: var(--faint); font-weight: 400; }
figure { margin: 1.5rem 0; } svg { width: 100%; max-width: 54rem; height: auto; display: block; }
svg text { font: 11px system-ui, sans-serif; fill: var(--ink); }
svg text.tick { fill: var(--faint); text-anchor: middle; }
.grid { stroke: var(--line); } .link { stroke: var(--plain); stroke-width: 1.5; }
circle.plain { fill: var(--paper); stroke: var(--plain); stroke-width: 2; }
.drafted, .accepted { fill: var(--drafted); } .own { fill: var(--plain); }
blockquote { white-space: pre-wrap; margin: 0; padding: .8rem 1rem; border-left: 3px solid var(--line);
  overflow-wrap: anywhere; }
mark { background: var(--mark); color: inherit; }
""".strip()


def page(results: Results) -> str:
    """The page."""
    series = [*results.series, *best_first(results.native)]
    body = "".join(_section(one) for one in series if one.pairs)
    found = "".join(f"<li>{escape(note)}</li>" for note in notes(results))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>specrouter bench: {escape(results.topology)}</title><style>{_STYLE}</style></head><body>"
        f"<h1>What drafts are worth: {escape(results.topology)}</h1>"
        f'<p class="about">{escape(_about(results))}</p>'
        f"<h2>To know</h2><ul>{found}</ul>{body}</body></html>\n"
    )


def _about(results: Results) -> str:
    models = [f"{name}: {info.model or '?'} ({info.build or '?'})" for name, info in results.servers.items()]
    when = results.started.strftime("%Y-%m-%d %H:%M UTC")
    parts = [f"{when}, specrouter {__version__}", *models, f"at most {results.options.tokens} tokens an answer"]
    return ". ".join([*parts, "Medians with their range; ratios compare answers of this run only."])


def _section(series: Series) -> str:
    return "".join([f"<h2>{escape(title(series))}</h2>", _table(series), *_figures(series)])


def _table(series: Series) -> str:
    headings, *lines = figures_table(series)
    head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    body = "".join(f"<tr>{''.join(_cell(cell) for cell in line)}</tr>" for line in lines)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _cell(text: str) -> str:
    above, _, below = text.partition("\n")
    return f"<td>{escape(above)}{f'<br><small>{escape(below)}</small>' if below else ''}</td>"


def _figures(series: Series) -> Iterator[str]:
    yield _figure("Tokens per second of each prompt: hollow alone, filled with drafts.", speed_by_prompt(series.pairs))
    yield _figure(
        "Share of the target's steps in which at least so many draft tokens were accepted.", positions(series.pairs)
    )
    example = _typical(series.pairs)
    if example is None:
        return
    yield _figure(
        f"One answer, x{example.ratio or 0:.2f}, from the question on: a column is a step of the target, its own token "
        "at the bottom, accepted draft tokens above.",
        timeline(example),
    )
    yield (
        "<figure><blockquote>"
        f"{marked_text(example.drafted)}</blockquote><figcaption>The same answer: accepted draft tokens are "
        f"marked. It was asked: {printable(_beginning(example.question.drafted.text))}</figcaption></figure>"
    )


def _beginning(text: str) -> str:
    return text if len(text) <= 300 else f"{text[:300]}…"


def _figure(caption: str, plot: str) -> str:
    return f"<figure>{plot}<figcaption>{escape(caption)}</figcaption></figure>" if plot else ""


def _typical(pairs: Sequence[Pair]) -> Pair | None:
    """Of the answers whose steps can be told apart, the one with the median ratio."""
    shown = [pair for pair in pairs if pair.ratio is not None and steps(pair.drafted).is_certain]
    return sorted(shown, key=lambda pair: pair.ratio or 0)[len(shown) // 2] if shown else None
