"""Server-sent events as llama-server writes them, split without altering a byte."""

from __future__ import annotations

DONE = b"[DONE]"


def encoded(data: bytes) -> bytes:
    """An event with this data, which has no line breaks."""
    return b"data: " + data + b"\n\n"


class EventSplitter:
    """Cuts a stream of byte chunks, however the network cut it, into whole events.

    An event comes back with its terminating blank line, so that joining all events gives the stream again.
    """

    def __init__(self) -> None:
        self._parts: list[bytes] = []  # of the event that is not complete yet
        self.pending = 0
        """Bytes of the event that is not complete yet."""

    def feed(self, chunk: bytes) -> list[bytes]:
        """The events that `chunk` completes."""
        if self._parts:
            # A long event comes in many chunks: they are joined once.
            unseen = self._parts[-1][-1:] + chunk
            if b"\n\n" not in unseen and b"\r" not in unseen:
                self._keep(chunk)
                return []
            chunk = self.flush() + chunk
        if b"\r" in chunk:
            return self._feed_with_returns(chunk)
        events = chunk.split(b"\n\n")
        self._keep(events.pop())
        return [event + b"\n\n" for event in events]

    def flush(self) -> bytes:
        """What is left when the stream ends in the middle of an event."""
        rest = b"".join(self._parts)
        self._parts.clear()
        self.pending = 0
        return rest

    def _keep(self, part: bytes) -> None:
        if part:
            self._parts.append(part)
            self.pending += len(part)

    def _feed_with_returns(self, data: bytes) -> list[bytes]:
        events = []
        lines: list[bytes] = []
        # A trailing CR may be half of a CRLF: leave it for the next chunk.
        held = b"\r" if data.endswith(b"\r") else b""
        for line in data[: len(data) - len(held)].splitlines(keepends=True):
            lines.append(line)
            if line in (b"\n", b"\r\n", b"\r"):
                events.append(b"".join(lines))
                lines = []
        self._keep(b"".join(lines) + held)
        return events


def payload(event: bytes) -> bytes | None:
    """The data of an event, or None for comments and events without data."""
    if event.startswith(b"data: ") and event.count(b"\n") <= 2:
        return event[6:].rstrip(b"\r\n")
    values = [line[5:].removeprefix(b" ") for line in event.splitlines() if line.startswith(b"data:")]
    return b"\n".join(values) if values else None
