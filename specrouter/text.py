"""The part of an answer's text that a client sees: nothing from a stop string on. Pure."""

from __future__ import annotations

from collections.abc import Sequence

PART_OF_A_CHARACTER = "\ufffd"
"""What llama-server shows for bytes that are no UTF-8: a character of several tokens, of which some are missing."""


class TextWriter:
    """Lets text through token by token, as llama-server does.

    It ends before the first of the stop strings, wherever tokens divide it; `stopped_by` is then that string. While the
    end of the text may become a stop string, all that was not shown yet is `held`.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self.stopped_by: str | None = None
        self.held = ""
        self._stops = [stop for stop in stops if stop]

    def push(self, text: str) -> str:
        """What becomes visible with the text of a further token."""
        text = self.held + text
        found = [(text.index(stop), order, stop) for order, stop in enumerate(self._stops) if stop in text]
        if found:
            position, _, self.stopped_by = min(found)
            self.held = ""
            return text[:position]
        if any(_may_become(text, stop) for stop in self._stops):
            self.held = text
            return ""
        self.held = ""
        return text

    def finish(self) -> str:
        """What was held only because it might have become a stop string."""
        held, self.held = self.held, ""
        return held


def _may_become(text: str, stop: str) -> bool:
    """Whether the end of the text is the beginning of the stop string."""
    return any(text.endswith(stop[:length]) for length in range(1, min(len(text), len(stop) - 1) + 1))
