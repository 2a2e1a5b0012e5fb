"""The questions of a measurement: those that come with the package, by kind, or those of a file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from specrouter.errors import SetupError

KINDS = ("chat", "code", "rewriting", "translation", "long", "open")
"""Of the prompts that come with the package, in their order."""

OPEN_TEMPERATURE = 0.8
"""At which prompts of the kind `open` are asked; all others are asked greedily."""

_OWN = "own"


@dataclass(frozen=True, slots=True)
class Prompt:
    """A question. In a set, neighbours of one kind are alike in form and length, but not in content."""

    kind: str
    text: str
    temperature: float = 0.0


WARM_UP = (
    Prompt("chat", "Tell me in a few sentences how a lighthouse works and who looked after it in former times."),
    Prompt("chat", "Tell me in a few sentences how a windmill works and what it was used for in former times."),
)
"""Asked first, and left out of all medians: a machine's first answer is slow, and a router's first one untaught."""


def shipped() -> list[Prompt]:
    """The prompts that come with the package."""
    return _parsed(resources.files(__package__).joinpath("prompts.jsonl").read_text("utf-8"), "prompts.jsonl")


def read_prompts(path: Path) -> list[Prompt]:
    """The prompts of a file: a prompt per line, as it is or as a JSON object {"prompt", "kind", "temperature"}.

    Raises SetupError, which names the line.
    """
    try:
        text = path.read_text("utf-8")
    except OSError as error:
        raise SetupError(f"--prompts {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise SetupError(f"--prompts {path}: not UTF-8 (byte {error.start})") from error
    prompts = _parsed(text, f"--prompts {path}")
    if not prompts:
        raise SetupError(f"--prompts {path}: no prompts in it, a line each is expected")
    return prompts


def _parsed(text: str, source: str) -> list[Prompt]:
    lines = ((number, line.strip()) for number, line in enumerate(text.split("\n"), start=1))
    return [_prompt(line, f"{source}:{number}") for number, line in lines if line]


def _prompt(line: str, where: str) -> Prompt:
    if not line.startswith("{"):
        return Prompt(_OWN, line)
    try:
        given: dict[str, Any] = json.loads(line)
    except ValueError as error:
        raise SetupError(f"{where}: not JSON, though it begins with a brace: {error}") from error
    kind, text = given.get("kind", _OWN), given.get("prompt")
    temperature = given.get("temperature", OPEN_TEMPERATURE if kind == "open" else 0.0)
    if not isinstance(text, str) or not text:
        raise SetupError(f'{where}: "prompt" must be a text')
    if not isinstance(kind, str) or not kind:
        raise SetupError(f'{where}: "kind" must be a text')
    if isinstance(temperature, bool) or not isinstance(temperature, int | float) or temperature < 0:
        raise SetupError(f'{where}: "temperature" must be a number from 0 on, not {json.dumps(temperature)}')
    return Prompt(kind, text, float(temperature))


def chosen(
    prompts: Sequence[Prompt], kinds: Sequence[str] = (), limit: int | None = None, temperature: float | None = None
) -> list[Prompt]:
    """The prompts of these kinds (none: of all), at most `limit` of each, all at one temperature where it is given.

    Raises SetupError for a kind that no prompt has.
    """
    known = list(dict.fromkeys(prompt.kind for prompt in prompts))
    for kind in kinds:
        if kind not in known:
            raise SetupError(f"--kind {kind}: no prompt is of this kind; there are {', '.join(known)}")
    taken = [prompt for kind in known if not kinds or kind in kinds for prompt in _of(prompts, kind)[:limit]]
    return taken if temperature is None else [Prompt(p.kind, p.text, temperature) for p in taken]


def _of(prompts: Iterable[Prompt], kind: str) -> list[Prompt]:
    return [prompt for prompt in prompts if prompt.kind == kind]


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked of the plain route and of the measured one: the same prompt, or two that are alike."""

    plain: Prompt
    drafted: Prompt
    plain_first: bool

    @property
    def is_same(self) -> bool:
        """Whether the two answers can be compared."""
        return self.plain == self.drafted


def same_prompts(prompts: Sequence[Prompt]) -> list[Question]:
    """Every prompt is asked both ways, by turns plainly first and second."""
    return [Question(prompt, prompt, index % 2 == 0) for index, prompt in enumerate(prompts)]


def different_prompts(prompts: Sequence[Prompt]) -> list[Question]:
    """Every prompt is asked once: of two neighbours of a kind one plainly, the other drafted, by turns.

    An odd last one of a kind is left out.
    """
    questions: list[Question] = []
    for kind in dict.fromkeys(prompt.kind for prompt in prompts):
        alike = _of(prompts, kind)
        for one, other in zip(alike[::2], alike[1::2], strict=False):
            turn = len(questions)
            # The order changes with every question, who gets which prompt with every second one.
            plain, drafted = (one, other) if turn // 2 % 2 == 0 else (other, one)
            questions.append(Question(plain, drafted, turn % 2 == 0))
    return questions
