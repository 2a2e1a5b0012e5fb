"""What a request's log line says, to people and to programs, and what nobody can make it say."""

from __future__ import annotations

import io
import json
import logging
import sys
from dataclasses import fields, replace
from datetime import UTC, datetime
from typing import Any

import click
import pytest
from request_records import record

from specrouter import terminal
from specrouter.log_formats import HumanFormatter, JsonFormatter, StandardErrorHandler
from specrouter.request_log import RequestRecord, log_request, prompt_text, request_id


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.DEBUG, "specrouter.requests")
    return caplog


def human(logged: pytest.LogCaptureFixture, request: RequestRecord) -> str:
    """Its line without colours and time."""
    log_request(request)
    return click.unstyle(HumanFormatter().format(logged.records[-1])).partition(" ")[2]


def as_object(log_record: logging.LogRecord) -> dict[str, Any]:
    line = JsonFormatter().format(log_record)
    assert line.isascii()
    assert "\n" not in line
    parsed: dict[str, Any] = json.loads(line)
    return parsed


def plain_record(message: str, *args: object, level: int = logging.INFO, exc_info: Any = None) -> logging.LogRecord:
    return logging.LogRecord("specrouter.app", level, __file__, 1, message, args, exc_info)


def raised(message: str) -> Any:
    try:
        raise ValueError(message)
    except ValueError:
        return sys.exc_info()


# -- for people --------------------------------------------------------------------------------------------


def test_a_drafted_request(logged: pytest.LogCaptureFixture) -> None:
    assert human(logged, record()) == (
        "qwen-122b  200  big  inject  212 tokens in 4.1 s (51.7/s), first after 0.21 s, 71 of 90 drafts accepted"
    )


@pytest.mark.parametrize(
    ("changed", "end"),
    [
        ({"tokens": None, "draft_n": None, "drafted": None, "is_stream": False}, "inject  in 4.1 s"),
        (
            {"tokens": 1, "duration": 120.4, "draft_n": None, "drafted": None},
            "1 token in 120 s (0.0/s), first after 0.21 s",
        ),
        ({"queued": 1.5}, "first after 0.21 s, queued 1.5 s, 71 of 90 drafts accepted"),
        ({"draft_n": None, "draft_n_accepted": None}, ", no drafts accepted (drafted 120, primed 300, confirmed 96)"),
        ({"tokens": None, "draft_n": None}, "after 0.21 s, drafted 120, primed 300, confirmed 96"),
        ({"draft_n_accepted": 0}, ", 0 of 90 drafts accepted"),
        ({"ended_early": "nothing to draft"}, "accepted ! drafting ended early: nothing to draft"),
        ({"takeovers": 1}, "accepted ! took over from 1 target"),
        ({"takeovers": 2}, "accepted ! took over from 2 targets"),
        ({"is_complete": False, "client_left": True}, "accepted ! client left [req-1]"),
        ({"is_complete": False}, "accepted ! incomplete [req-1]"),
        (
            {"decoding": "plain", "reason": "tokenizers differ: 3 pieces", "draft_n": None, "drafted": None},
            "plain  212 tokens in 4.1 s (51.7/s), first after 0.21 s ! no drafting: tokenizers differ: 3 pieces",
        ),
    ],
)
def test_what_a_line_ends_with(logged: pytest.LogCaptureFixture, changed: dict[str, Any], end: str) -> None:
    assert human(logged, record(**changed)).endswith(end)


def refused(**changed: Any) -> RequestRecord:
    """A request that no route answered."""
    values: dict[str, Any] = {"request_id": "req-2", "started": datetime.now(UTC), "method": "GET", "status": 404}
    return RequestRecord(**{**values, "path": "/v1/none", "duration": 0.001, "error_code": "unknown_url", **changed})


def test_a_refused_request(logged: pytest.LogCaptureFixture) -> None:
    assert human(logged, refused()) == "GET /v1/none  404  -  -      in 0.00 s ! unknown_url [req-2]"


def test_columns_are_aligned(logged: pytest.LogCaptureFixture) -> None:
    formatter = HumanFormatter()
    for model in ("chat", "qwen-122b", "x", "n" * 50):
        log_request(record(model=model))
    lines = [click.unstyle(formatter.format(entry)) for entry in logged.records]
    assert lines[1].index("200") == lines[2].index("200")
    # Neither one long name nor what clients make up pushes all others aside for ever.
    log_request(record(model="z" * 30, route=None))
    log_request(record(model="y"))
    assert click.unstyle(formatter.format(logged.records[-1])).index("200") == 9 + 24 + 2


def test_other_records() -> None:
    formatter = HumanFormatter()
    lines = [
        click.unstyle(formatter.format(plain_record("serving %s", "topology.yaml"))),
        click.unstyle(formatter.format(plain_record("slow", level=logging.WARNING))),
        click.unstyle(formatter.format(plain_record("failed", level=logging.ERROR, exc_info=raised("one\ntwo")))),
    ]
    assert lines[0][9:] == "serving topology.yaml"
    assert lines[1][9:] == "warning: slow"
    first, *trace = lines[2].splitlines()
    assert first[9:] == "error: failed"
    assert trace[0] == "    Traceback (most recent call last):"
    assert trace[-2:] == ["    ValueError: one", "    two"]


# -- nothing is forged -------------------------------------------------------------------------------------

FORGED = "x\n12:00:00 chat  200\r\x1b[2K\x1b[31mred\x9b1m\u2028\u202egnp\x00\x7f"


@pytest.mark.parametrize(
    "field", ["model", "path", "server", "request_id", "reason", "ended_early", "error_code", "prompt"]
)
def test_no_value_forges_a_line(logged: pytest.LogCaptureFixture, field: str) -> None:
    changed = {"model": None, "is_complete": False, field: FORGED}
    log_request(record(**changed))
    for styled in (HumanFormatter().format(logged.records[-1]), logged.records[-1].getMessage()):
        line = click.unstyle(styled)
        if field == "prompt":
            line = line.replace("\n    prompt: ", "")
        assert line.isprintable()
    assert as_object(logged.records[-1])[field] == FORGED


def test_a_name_with_spaces_is_one_column(logged: pytest.LogCaptureFixture) -> None:
    assert human(logged, record(model="chat  200  big")).startswith("'chat  200  big'  200  big")
    assert human(logged, record(model="")).startswith("''  200  big")


def test_messages_and_tracebacks_are_shown_visibly() -> None:
    line = HumanFormatter().format(plain_record("%s", FORGED, exc_info=raised(FORGED)))
    assert "\x1b[31m" not in line
    lines = click.unstyle(line).splitlines()
    assert all(text.isprintable() for text in lines)
    assert all(text.startswith("    ") for text in lines[1:])


def test_long_values_are_cut(logged: pytest.LogCaptureFixture) -> None:
    line = human(logged, record(model="m" * 10_000, reason="r" * 10_000))
    assert len(line) < 500
    assert as_object(logged.records[-1])["model"] == "m" * 200 + "…"


# -- for programs ------------------------------------------------------------------------------------------


def test_a_request_as_json(logged: pytest.LogCaptureFixture) -> None:
    log_request(record())
    found = as_object(logged.records[-1])
    assert datetime.fromisoformat(found.pop("time")).utcoffset() is not None
    assert found.pop("message").startswith("qwen-122b  200  big")
    assert found == {
        "level": "info",
        "logger": "specrouter.requests",
        "request_id": "req-1",
        "started": "2030-05-06T07:08:09.123+00:00",
        "method": "POST",
        "path": "/v1/chat/completions",
        "status": 200,
        "duration": 4.1,
        "route": "chat",
        "model": "qwen-122b",
        "server": "big",
        "api_key": None,
        "decoding": "inject",
        "reason": None,
        "error_code": None,
        "is_stream": True,
        "is_complete": True,
        "client_left": False,
        "takeovers": 0,
        "queued": 0.0,
        "first_token": 0.215,
        "prompt_tokens": 30,
        "cached_tokens": 20,
        "tokens": 212,
        "draft_n": 90,
        "draft_n_accepted": 71,
        "drafted": 120,
        "primed": 300,
        "confirmed": 96,
        "seconds_per_token": 0.0184,
        "drafts": 40,
        "accepted_per_position": [38, 33],
        "stood_down": 0,
        "ended_early": None,
        "reason_class": None,
    }


def test_what_kind_of_thing_a_reason_is_about(logged: pytest.LogCaptureFixture) -> None:
    log_request(replace(record(), decoding="plain", reason="tokenizers differ: one has more"))
    found = as_object(logged.records[-1])
    assert (found["reason"], found["reason_class"]) == ("tokenizers differ: one has more", "tokenizers")


def test_all_requests_have_the_same_keys(logged: pytest.LogCaptureFixture) -> None:
    log_request(record())
    log_request(refused())
    one, other = (as_object(entry) for entry in logged.records)
    assert list(one) == list(other)
    names = [field.name for field in fields(RequestRecord) if field.name != "prompt"]
    assert list(one) == ["time", "level", "logger", "message", *names, "reason_class"]


def test_other_records_as_json() -> None:
    found = as_object(plain_record("failed: %s", "é\n", level=logging.ERROR, exc_info=raised("one\ntwo")))
    assert found["level"] == "error"
    assert found["logger"] == "specrouter.app"
    assert found["message"] == "failed: é\n"
    assert found["exception"].endswith("ValueError: one\ntwo")
    assert list(as_object(plain_record("fine"))) == ["time", "level", "logger", "message"]


# -- levels ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_record", "level"),
    [
        (record(), "INFO"),
        (record(status=404, error_code="model_not_found"), "INFO"),
        (refused(), "INFO"),
        (refused(status=200, error_code=None), "DEBUG"),
        (record(status=502, error_code="upstream_unavailable"), "WARNING"),
        (record(is_complete=False), "WARNING"),
        (record(is_complete=False, client_left=True), "INFO"),
    ],
)
def test_levels(logged: pytest.LogCaptureFixture, request_record: RequestRecord, level: str) -> None:
    log_request(request_record)
    assert logged.records[-1].levelname == level


# -- prompts -----------------------------------------------------------------------------------------------


def test_prompts(logged: pytest.LogCaptureFixture) -> None:
    prompt = prompt_text({"model": "chat", "user": "id", "messages": [{"role": "user", "content": "Guten Tag"}]})
    assert prompt == '[{"role": "user", "content": "Guten Tag"}]'
    assert human(logged, record(prompt=prompt)).endswith(f"accepted\n    prompt: {prompt}")
    assert as_object(logged.records[-1])["prompt"] == prompt
    # Other people's handlers show the message.
    assert "Guten" not in logged.records[-1].getMessage()


@pytest.mark.parametrize(
    ("body", "prompt"),
    [
        ({"prompt": "Once"}, '"Once"'),
        ({"prompt": [1, 2]}, "[1, 2]"),
        ({"input": ["one", "two"]}, '["one", "two"]'),
        ({"content": "text"}, '"text"'),
        ({"model": "chat"}, None),
        ({"prompt": "long" * 5000}, '"' + ("long" * 5000)[:3999] + "…"),
    ],
)
def test_what_a_prompt_is(body: dict[str, Any], prompt: str | None) -> None:
    assert prompt_text(body) == prompt


# -- ids ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sent", ["a", "01J0ABC", "3f0c-9d.e_1", "dGVzdA+/==", "trace:span", "x" * 128])
def test_sane_ids_are_kept(sent: str) -> None:
    assert request_id({"x-request-id": sent}) == sent


@pytest.mark.parametrize("sent", [None, "", " ", "two words", "line\nbreak", "end\n", "\x1b[2K", "é", '"', "x" * 129])
def test_other_ids_are_replaced(sent: str | None) -> None:
    headers = {} if sent is None else {"x-request-id": sent}
    made = {request_id(headers), request_id(headers)}
    assert len(made) == 2
    for one in made:
        assert int(one, 16)
        assert len(one) == 32


# -- standard error ----------------------------------------------------------------------------------------


class Stream(io.StringIO):
    """Standard error, of a terminal or not."""

    def __init__(self, *, terminal: bool) -> None:
        super().__init__()
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


@pytest.mark.parametrize(
    ("terminal_is_there", "log_format", "no_color", "look"),
    [
        (True, "auto", "", "colours"),
        (True, "auto", "1", "plain"),
        (True, "json", "", "json"),
        (False, "auto", "", "json"),
        (False, "human", "", "plain"),
        (True, "human", "", "colours"),
    ],
)
def test_formats(
    monkeypatch: pytest.MonkeyPatch,
    terminal_is_there: bool,
    log_format: str,
    no_color: str,
    look: str,
) -> None:
    stream = Stream(terminal=terminal_is_there)
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("NO_COLOR", no_color)
    terminal.log_handler(log_format).handle(plain_record("slow", level=logging.WARNING))
    line = stream.getvalue()
    if look == "json":
        assert json.loads(line)["message"] == "slow"
    else:
        assert line.endswith("slow\n")
        assert ("\x1b[" in line) is (look == "colours")


def test_a_record_that_cannot_be_written_fails_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    handler = StandardErrorHandler(colours=True)
    handler.setFormatter(JsonFormatter())
    handler.handle(plain_record("%d", "not a number"))
    assert "Logging error" in capsys.readouterr().err
