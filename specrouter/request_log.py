"""One log record per request: what it was, who answered it, how it was decoded, how it ended. And the request's id."""

from __future__ import annotations

import json
import logging
import re
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any

from .reasons import reason_class

log = logging.getLogger("specrouter.requests")

REQUEST_ID_HEADER = "x-request-id"

# Uuids, ULIDs and base64 fit. Nothing else is worth a line of somebody's log, or a header for the target.
_SANE_ID = re.compile(r"[A-Za-z0-9._:=+/-]{1,128}")

_LONGEST_VALUE = 200
_LONGEST_PROMPT = 4000
"""Characters. A model's name is as long as the client likes, and a prompt longer than anybody reads."""

_WORTH_SAYING_SECONDS = 0.05


def request_id(headers: Mapping[str, str]) -> str:
    """The id under which a request is known to client, router and target: the client's own, else a new one.

    The client's `x-request-id` counts when it is 1 to 128 letters, digits and `._:=+/-`. The names in `headers` are in
    lower case, or case does not matter there.
    """
    sent = headers.get(REQUEST_ID_HEADER, "")
    return sent if _SANE_ID.fullmatch(sent) else uuid.uuid4().hex


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    """All that is logged of a request. Times are in seconds; None is what is not known or did not happen.

    `started` is in UTC. `model` is what the client asked for, `api_key` the name of its key (never the key), `server`
    the one that answered. `decoding` is a verifier's name or `plain`; `reason` is why it is plain though drafting is
    declared. `first_token` and `duration` count from `started`, `queued` is the part spent waiting for its turn;
    `seconds_per_token` is the mean time between the answer's tokens.

    `draft_n` and `draft_n_accepted` are the target's own figures. `drafted`, `primed`, `confirmed`, `drafts`,
    `accepted_per_position` and `stood_down` are the companion's (see `DraftCounts`), `ended_early` is why it stopped
    before the answer did. `takeovers` is the number of targets that were tried before `server`. `prompt` is set only
    where prompts are to be logged.
    """

    request_id: str
    started: datetime
    method: str
    path: str
    status: int | None
    duration: float
    route: str | None = None
    model: str | None = None
    server: str | None = None
    api_key: str | None = None
    decoding: str | None = None
    reason: str | None = None
    error_code: str | None = None
    is_stream: bool = False
    is_complete: bool = True
    client_left: bool = False
    takeovers: int = 0
    queued: float = 0.0
    first_token: float | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    tokens: int | None = None
    seconds_per_token: float | None = None
    draft_n: int | None = None
    draft_n_accepted: int | None = None
    drafted: int | None = None
    primed: int | None = None
    confirmed: int | None = None
    drafts: int | None = None
    accepted_per_position: tuple[int, ...] | None = None
    stood_down: int | None = None
    ended_early: str | None = None
    prompt: str | None = field(default=None, repr=False)

    @property
    def level(self) -> int:
        """How much it matters: faults are warnings, what was answered without a server is for debugging."""
        if (self.status or 0) >= 500 or not (self.is_complete or self.client_left):
            return logging.WARNING
        return logging.DEBUG if self.is_internal else logging.INFO

    @property
    def is_internal(self) -> bool:
        """It was answered without a route, and went well."""
        return self.route is None and self.error_code is None

    @property
    def is_failed(self) -> bool:
        """The client did not get what it asked for."""
        return self.error_code is not None or (self.status or 0) >= 400 or not self.is_complete


def log_request(record: RequestRecord) -> None:
    """Write a record to the logger `specrouter.requests`.

    The log record has it as `request`. For handlers that do not know that, the message is the line for people; a prompt
    is not in it.
    """
    log.log(record.level, "%s", Line(record), extra={"request": record})


def prompt_text(body: Mapping[str, Any]) -> str | None:
    """The part of a request's body that its user wrote, as JSON and not too long; None where there is none."""
    said = next((body[key] for key in ("messages", "prompt", "input", "content") if key in body), None)
    return None if said is None else cut(json.dumps(said, ensure_ascii=False), _LONGEST_PROMPT)


def as_json(record: RequestRecord) -> dict[str, Any]:
    """A record for programs. Always the same keys; `prompt` is there only where it is set."""
    values = {entry.name: getattr(record, entry.name) for entry in fields(record)}
    values["started"] = record.started.isoformat(timespec="milliseconds")
    for key, value in values.items():
        if isinstance(value, float):
            values[key] = round(value, 4)
        elif isinstance(value, str) and key != "prompt":
            values[key] = cut(value, _LONGEST_VALUE)
    if record.prompt is None:
        del values["prompt"]
    return {**values, "reason_class": None if record.reason is None else reason_class(record.reason)}


def cut(text: str, length: int) -> str:
    """The text, shortened with an ellipsis where it is longer than `length` characters."""
    return text if len(text) <= length else f"{text[:length]}…"


def visible(text: str) -> str:
    """The text with all that is not printable escaped: line breaks, terminal sequences, marks that turn the direction.

    What others wrote can then neither forge a line nor move the cursor.
    """
    return text if text.isprintable() else "".join(c if c.isprintable() else _escaped(c) for c in text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


class Line:
    """A record in the words of people: `columns` to align, then `figures`, then what is not as it should be."""

    def __init__(self, record: RequestRecord) -> None:
        name = record.model if record.model is not None else f"{record.method} {record.path}"
        status = "-" if record.status is None else str(record.status)
        server = "-" if record.server is None else visible(record.server)
        self.columns = (_quoted(name, is_model=record.model is not None), status, server, record.decoding or "-")
        self.figures = tuple(_figures(record))
        self.oddities = tuple(visible(cut(oddity, _LONGEST_VALUE)) for oddity in _oddities(record))
        # Long, so only where somebody will look for it.
        self.request_id = visible(record.request_id) if record.is_failed else None

    def details(self) -> Iterator[tuple[str, bool]]:
        """What follows the columns, part by part, and whether the part is about something odd."""
        if self.figures:
            yield ", ".join(self.figures), False
        for oddity in self.oddities:
            yield f"! {oddity}", True
        if self.request_id is not None:
            yield f"[{self.request_id}]", False

    def __str__(self) -> str:
        return "  ".join((*self.columns, " ".join(text for text, _ in self.details())))


def _quoted(name: str, *, is_model: bool) -> str:
    """A name in one column. A model's name with spaces in it could pass for several columns."""
    shown = visible(cut(name, 40))
    return f"'{shown}'" if is_model and (" " in shown or not shown) else shown


def _figures(record: RequestRecord) -> Iterator[str]:
    took = seconds(record.duration)
    if record.tokens:
        speed = f" ({record.tokens / record.duration:.1f}/s)" if record.duration > 0 else ""
        yield f"{record.tokens} {'token' if record.tokens == 1 else 'tokens'} in {took}{speed}"
    else:
        yield f"in {took}"
    if record.first_token is not None and record.is_stream:
        yield f"first after {seconds(record.first_token)}"
    if record.queued >= _WORTH_SAYING_SECONDS:
        yield f"queued {seconds(record.queued)}"
    if record.draft_n:
        yield f"{record.draft_n_accepted or 0} of {record.draft_n} drafts accepted"
    elif record.drafted is not None:
        companion = f"drafted {record.drafted}, primed {record.primed}, confirmed {record.confirmed}"
        # An answer without an end does not say what was accepted.
        yield companion if record.tokens is None else f"no drafts accepted ({companion})"


def _oddities(record: RequestRecord) -> Iterator[str]:
    if record.error_code is not None:
        yield record.error_code
    elif (record.status or 0) >= 400:
        yield "the target's own error"
    if record.reason is not None:
        yield f"no drafting: {record.reason}"
    if record.ended_early is not None:
        yield f"drafting ended early: {record.ended_early}"
    if record.takeovers:
        yield f"took over from {record.takeovers} {'target' if record.takeovers == 1 else 'targets'}"
    if record.client_left:
        yield "client left"
    elif not record.is_complete:
        yield "incomplete"


def seconds(value: float) -> str:
    """A duration as people say it: `0.21 s`, `4.1 s`, `312 s`."""
    digits = 2 if value < 1 else 1 if value < 100 else 0
    return f"{value:.{digits}f} s"
