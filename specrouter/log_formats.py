"""How log records look: a line for people, or a JSON object for programs."""

from __future__ import annotations

import json
import logging
import sys
import time
from datetime import UTC, datetime
from typing import Any

import click

from .request_log import Line, RequestRecord, as_json, visible

_WIDEST_COLUMN = 24

_COLOURS = {logging.WARNING: "yellow", logging.ERROR: "red", logging.CRITICAL: "red"}


class HumanFormatter(logging.Formatter):
    """A line for people, with colours; the handler takes them out where nobody sees them.

    Requests have columns, which grow with the names in the topology. Nothing that clients, servers or plugins said can
    break a line or reach the terminal as a control sequence. A prompt or traceback follows in indented lines.
    """

    def __init__(self) -> None:
        super().__init__()
        # What a request without model, server and decoding needs; `plain` comes soon enough.
        self._widths = [1, 3, 1, 5]

    def format(self, record: logging.LogRecord) -> str:
        """See the class."""
        moment = time.strftime("%H:%M:%S", time.localtime(record.created))
        request = _request_of(record)
        text = self._line(request) if request is not None else _message(record)
        lines = [f"{click.style(moment, dim=True)} {text}"]
        if request is not None and request.prompt is not None:
            lines.append(f"    prompt: {visible(request.prompt)}")
        if record.exc_info:
            lines += [f"    {visible(line)}" for line in self.formatException(record.exc_info).splitlines()]
        return "\n".join(lines)

    def _line(self, request: RequestRecord) -> str:
        line = Line(request)
        if request.route is not None:
            self._widths = [
                max(width, min(len(text), _WIDEST_COLUMN))
                for width, text in zip(self._widths, line.columns, strict=True)
            ]
        name, status, server, decoding = (
            text.ljust(width) for text, width in zip(line.columns, self._widths, strict=True)
        )
        columns = [
            click.style(name, bold=True),
            click.style(status, fg=_status_colour(request)),
            server,
            click.style(decoding, fg="cyan") if request.decoding not in (None, "plain") else decoding,
        ]
        details = [click.style(text, fg="yellow") if is_odd else text for text, is_odd in line.details()]
        return "  ".join((*columns, " ".join(details)))


class JsonFormatter(logging.Formatter):
    """One JSON object in one line, ASCII only: `time` (UTC), `level`, `logger`, `message`, perhaps `exception`.

    The record of a request has all fields of `RequestRecord` as well.
    """

    def format(self, record: logging.LogRecord) -> str:
        """See the class."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        request = _request_of(record)
        if request is not None:
            line |= as_json(request)
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


class StandardErrorHandler(logging.Handler):
    """Writes to standard error; without colours where it is not a terminal, or where `colours` is False."""

    def __init__(self, *, colours: bool) -> None:
        super().__init__()
        self._colours = None if colours else False

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record. Logging never fails what it reports on."""
        try:
            click.echo(self.format(record), file=sys.stderr, color=self._colours)
        except Exception:
            self.handleError(record)


def _request_of(record: logging.LogRecord) -> RequestRecord | None:
    request = getattr(record, "request", None)
    return request if isinstance(request, RequestRecord) else None


def _message(record: logging.LogRecord) -> str:
    text = visible(record.getMessage().rstrip())
    if record.levelno == logging.INFO:
        return text
    label = f"{record.levelname.lower()}: "
    colour = _COLOURS.get(record.levelno)
    return click.style(label, fg=colour, dim=colour is None) + text


def _status_colour(request: RequestRecord) -> str:
    if request.level >= logging.WARNING:
        return "red"
    return "yellow" if request.is_failed else "green"
