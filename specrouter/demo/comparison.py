"""The demo's comparison: the same prompts to two routes, their speed, acceptance and texts."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import anyio
import httpx
from rich.console import Console
from rich.table import Table
from rich.text import Text

from specrouter.errors import SetupError

DECODING_HEADER = "x-specrouter-decoding"

PROMPTS = (
    "Explain in a few sentences how photosynthesis works.",
    "Write a Python function that checks whether a string is a palindrome.",
    "List the planets of the solar system in order, one per line, with one fact about each.",
)
WARM_UP_PROMPT = "Tell me a short story about a lighthouse."
"""No measured prompt: the target remembers what it said, and would draft a second answer from its first."""

_EXCERPT = 30
_WARM_UP_PAUSE_S = 2.0


@dataclass(frozen=True, slots=True)
class Answer:
    """One streamed answer.

    `seconds` runs from sending the request to the end of the stream. `drafted` and `accepted` count draft
    tokens, `decoding` is what the router says about how it was decoded.
    """

    text: str
    tokens: int
    seconds: float
    drafted: int
    accepted: int
    decoding: str

    @property
    def speed(self) -> float:
        """Tokens per second, the wait for the first one included."""
        return self.tokens / self.seconds


async def ask(client: httpx.AsyncClient, model: str, prompt: str, max_tokens: int, console: Console | None) -> Answer:
    """Stream one chat answer at temperature 0, showing it as it comes when there is a console.

    Raises SetupError when the router answers with an error or the stream breaks.
    """
    body = {
        "model": model,
        "messages": [{"role": "user", "content": prompt}],
        "temperature": 0,
        "max_tokens": max_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    parts: list[str] = []
    last: dict[str, int] = {}
    tokens = 0
    started = time.perf_counter()
    try:
        async with client.stream("POST", "/v1/chat/completions", json=body) as response:
            if response.status_code != httpx.codes.OK:
                explanation = (await response.aread()).decode(errors="replace")
                raise SetupError(f"the route {model} answered {response.status_code}: {explanation}")
            async for line in response.aiter_lines():
                event = _event(line)
                if error := event.get("error"):
                    raise SetupError(f"the route {model} ended its answer with an error: {error}")
                last = event.get("timings") or last
                tokens = (event.get("usage") or {}).get("completion_tokens", tokens)
                for choice in event.get("choices", ()):
                    if text := choice.get("delta", {}).get("content"):
                        parts.append(text)
                        if console:
                            console.print(text, end="", markup=False, highlight=False, soft_wrap=True)
            decoding = response.headers.get(DECODING_HEADER, "")
    except httpx.HTTPError as error:
        raise SetupError(f"the answer of the route {model} broke off: {error!r}") from error
    seconds = time.perf_counter() - started
    if console:
        console.print()
    return Answer("".join(parts), tokens, seconds, last.get("draft_n", 0), last.get("draft_n_accepted", 0), decoding)


def _event(line: str) -> dict[str, Any]:
    """The object that a line of a stream carries; empty for `[DONE]`, comments and blank lines."""
    data = line.removeprefix("data:").strip()
    event: dict[str, Any] = json.loads(data) if data.startswith("{") else {}
    return event


async def warm_up(client: httpx.AsyncClient, route: str, wait: float) -> str:
    """Ask until the route decodes with injected drafts, for `wait` seconds at most; returns its last word on
    it.

    The router tries out in the background what a target can do, so its first answers are plain. The requests
    are short and far apart, since they take turns with that trial.
    """
    give_up = time.monotonic() + wait
    while True:
        answer = await ask(client, route, WARM_UP_PROMPT, 8, None)
        if answer.decoding.startswith("inject") or time.monotonic() > give_up:
            return answer.decoding
        await anyio.sleep(_WARM_UP_PAUSE_S)


async def compare(
    client: httpx.AsyncClient, plain: str, drafted: str, max_tokens: int, console: Console
) -> list[tuple[Answer, Answer]]:
    """Ask both routes each of the prompts and show what they say; returns the pairs of answers."""
    pairs = []
    for number, prompt in enumerate(PROMPTS, start=1):
        console.rule(f"Prompt {number} of {len(PROMPTS)}")
        console.print(Text(prompt, style="bold"))
        answers = []
        for route, title in ((plain, "the target alone"), (drafted, "with drafts from the laptop")):
            console.print(Text(f"\n{route}: {title}", style="cyan"))
            answer = await ask(client, route, prompt, max_tokens, console)
            console.print(Text(f"{answer.tokens} tokens, {answer.speed:.1f} tokens/s", style="dim"))
            answers.append(answer)
        console.print(Text(difference(answers[0].text, answers[1].text), style="dim"))
        pairs.append((answers[0], answers[1]))
    return pairs


def difference(plain: str, drafted: str) -> str:
    """Whether two texts are equal, and if not, where they part."""
    if plain == drafted:
        return "The texts are equal."
    same = next(
        (i for i, (a, b) in enumerate(zip(plain, drafted, strict=False)) if a != b),
        min(len(plain), len(drafted)),
    )
    here, there = (repr(text[same : same + _EXCERPT]) for text in (plain, drafted))
    return (
        f"The texts are equal up to character {same}; alone {here}, with drafts {there}. "
        "Where two tokens are almost equally likely, evaluating several at once can tip the balance; "
        "both answers are the target's own."
    )


def summary(pairs: Sequence[tuple[Answer, Answer]]) -> Table:
    """The comparison as a table, one row per prompt and one for all."""
    table = Table(title="The same target, alone and with drafts")
    for heading in ("prompt", "alone", "with drafts", "speed-up", "accepted", "text"):
        table.add_column(heading, justify="left" if heading in ("prompt", "text") else "right")
    for number, (plain, drafted) in enumerate(pairs, start=1):
        same = "equal" if plain.text == drafted.text else "differs"
        table.add_row(str(number), *_figures([plain], [drafted]), same)
    equal = sum(plain.text == drafted.text for plain, drafted in pairs)
    figures = _figures([plain for plain, _ in pairs], [drafted for _, drafted in pairs])
    table.add_row("all", *figures, f"{equal} of {len(pairs)} equal", style="bold")
    return table


def _figures(plain: Sequence[Answer], drafted: Sequence[Answer]) -> tuple[str, str, str, str]:
    alone, together = _speed(plain), _speed(drafted)
    drafts, accepted = sum(answer.drafted for answer in drafted), sum(answer.accepted for answer in drafted)
    acceptance = f"{accepted} of {drafts} ({accepted / drafts:.0%})" if drafts else "no drafts"
    return f"{alone:.1f} tok/s", f"{together:.1f} tok/s", f"x{together / alone:.2f}", acceptance


def _speed(answers: Iterable[Answer]) -> float:
    counted = list(answers)
    return sum(answer.tokens for answer in counted) / sum(answer.seconds for answer in counted)
