"""Which tokens a target has said, worked out from its stream. Pure.

Where an endpoint reports token ids they are taken. Elsewhere the visible text is compared with the pieces of the
draft: a draft token is confirmed when the text has passed its piece. Being wrong here costs acceptance, never
correctness: the target's own tokens are what the client gets in any case.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .types import Channel, Delta, DraftToken

_LONGEST_SKIP = 24
"""Draft tokens that may be invisible in a row: template markup such as the head of a tool call."""


class Follower:
    """The confirmed tokens of one answer, and the draft that may come true next.

    `confirmed` holds prompt and answer, `pending` the draft behind it. `behind` are confirmed tokens that the
    running draft has not reached yet: its next tokens must repeat them. `is_lost` means that the running draft
    contradicts what was confirmed and has to be started again from `confirmed`; `generation` counts how often that
    happened. `hits` and `misses` are the draft tokens that came true and did not, until the caller clears them.
    """

    def __init__(self, prompt: Sequence[int]) -> None:
        self.confirmed = list(prompt)
        self.pending: list[DraftToken] = []
        self.behind: list[int] = []
        self.is_lost = False
        self.generation = 0
        self.hits: list[DraftToken] = []
        self.misses: list[DraftToken] = []
        self._shown = 0  # bytes of the first pending piece that are visible already
        self._channel = Channel.CONTENT

    def add_draft(self, token: DraftToken) -> bool:
        """Take the next token of the running draft. False when it contradicts what was confirmed."""
        if self.is_lost:
            return False
        if self.behind:
            if self.behind[0] != token.id:
                self._miss()
                return False
            self.behind.pop(0)
        else:
            self.pending.append(token)
        return True

    def restart(self) -> list[int]:
        """A new draft begins: the context it has to continue."""
        self.is_lost = False
        self.behind.clear()
        return self.confirmed + [token.id for token in self.pending]

    def take(self, delta: Delta) -> bytes:
        """Follow one delta. Returns text whose tokens are unknown; name them with `resolve`."""
        if delta.token_ids:
            unknown = self._cut()
            if unknown:
                # Text of a token half seen, then ids: cannot be told apart, the ids are what counts.
                self._miss()
            self.resolve(delta.token_ids)
            return b""
        if not delta.text:
            return b""
        changed = delta.channel is not self._channel
        self._channel = delta.channel
        return self._take_text(delta.text.encode(), may_skip=changed or delta.channel is Channel.TOOL_CALL)

    def resolve(self, ids: Iterable[int]) -> None:
        """These tokens were said."""
        for token_id in ids:
            if self.pending and self.pending[0].id == token_id:
                self._hit()
            elif self.pending:
                self._miss()
                self.confirmed.append(token_id)
            else:
                self.confirmed.append(token_id)
                if not self.is_lost:
                    self.behind.append(token_id)

    def _take_text(self, text: bytes, *, may_skip: bool) -> bytes:
        earlier = len(self.hits)
        while text and self.pending:
            piece = self.pending[0].piece[self._shown :]
            if piece and text.startswith(piece):
                self._hit()
                text = text[len(piece) :]
            elif piece.startswith(text):
                self._shown += len(text)
                return b""
            elif not self._shown and self._skip_invisible(text, anything=may_skip):
                continue
            else:
                unknown = self._cut() + text
                self._miss()
                return self._whole_characters(unknown, earlier)
        return self._whole_characters(text, earlier)

    def _whole_characters(self, text: bytes, earlier: int) -> bytes:
        """Take back hits since `earlier` that began a character whose rest is unknown."""
        while text and text[0] & 0xC0 == 0x80 and len(self.hits) > earlier:
            self.confirmed.pop()
            text = self.hits.pop().piece + text
        return text

    def _skip_invisible(self, text: bytes, *, anything: bool) -> bool:
        """Confirm draft tokens that the target's parser swallows, if the visible text goes on behind them."""
        justified = anything
        for count in range(1, min(_LONGEST_SKIP, len(self.pending) - 1) + 1):
            skipped = self.pending[count - 1].piece.strip()
            # Parsers swallow blanks beside markup; blanks alone are text, and a miss.
            justified = justified or _is_markup(skipped)
            if skipped and not justified:
                return False
            piece = self.pending[count].piece
            if justified and piece and (text.startswith(piece) or piece.startswith(text)):
                for _ in range(count):
                    self._hit()
                return True
        return False

    def _cut(self) -> bytes:
        """Give up on the piece half seen; returns its visible part."""
        shown = self.pending[0].piece[: self._shown] if self.pending else b""
        self._shown = 0
        return shown

    def _hit(self) -> None:
        token = self.pending.pop(0)
        self.confirmed.append(token.id)
        self.hits.append(token)
        self._shown = 0

    def _miss(self) -> None:
        if self.pending:
            self.misses.append(self.pending[0])
        self.pending.clear()
        self.behind.clear()
        self.is_lost = True
        self.generation += 1
        self._shown = 0


def _is_markup(piece: bytes) -> bool:
    return piece.startswith((b"<", b"[")) and piece.endswith((b">", b"]"))
