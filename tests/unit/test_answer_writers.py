"""Answers that the router writes have the form of the target's own: specimens of two builds of llama-server."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from specrouter.answers import Ending, Finish, Specimen, Totals, as_json, timings
from specrouter.formats import FORMATS

CHAT, TEXT, COMPLETION = PATHS = ("/v1/chat/completions", "/v1/completions", "/completion")

SPECIMENS = {
    file.stem: {path: Specimen(**found) for path, found in json.loads(file.read_text(encoding="utf-8")).items()}
    for file in sorted((Path(__file__).parent / "specimens").glob("*.json"))
}

ASKED = {"max_tokens": 3, "temperature": 0, "logit_bias": {}, "ignore_eos": True}
LIMIT = Ending(Finish.LIMIT)
VARYING = {"id", "created", "model", "id_slot"}


def shape(value: Any) -> Any:
    """A value without what differs between two answers; of timings, the keys."""
    if isinstance(value, dict):
        return {
            key: sorted(item) if key == "timings" else shape(item) for key, item in value.items() if key not in VARYING
        }
    return [shape(item) for item in value] if isinstance(value, list) else value


def totals_of(path: str, event: Mapping[str, Any]) -> Totals:
    """What a specimen says of its own cost."""
    cached = event["timings"]["cache_n"]
    if path == COMPLETION:
        return Totals(prompt=event["tokens_evaluated"], cached=cached, predicted=event["tokens_predicted"])
    found = event.get("usage") or {"prompt_tokens": 0, "completion_tokens": 3}
    return Totals(prompt=found["prompt_tokens"], cached=cached, predicted=found["completion_tokens"])


def texts_of(path: str, event: Mapping[str, Any]) -> str:
    """The text that an event of a stream adds."""
    if path == COMPLETION:
        return str(event["content"])
    choice = event["choices"][0] if event["choices"] else {}
    return str((choice.get("delta") or choice).get("content" if path == CHAT else "text") or "")


@pytest.mark.parametrize("build", SPECIMENS)
@pytest.mark.parametrize("path", PATHS)
def test_an_unstreamed_specimen_written_again(build: str, path: str) -> None:
    specimen = SPECIMENS[build][path]
    whole = specimen.whole
    texts = [texts_of(path, event) for event in specimen.stream]
    writer = FORMATS[path].writer(specimen, ASKED, "fast", str(whole.get("prompt")))
    written = writer.whole("".join(texts), LIMIT, totals_of(path, whole))
    assert shape(written) == shape(whole)
    assert written["model"] == "fast"


@pytest.mark.parametrize("build", SPECIMENS)
@pytest.mark.parametrize("usage", [False, True])
@pytest.mark.parametrize("path", PATHS)
def test_a_streamed_specimen_written_again(build: str, path: str, usage: bool) -> None:
    specimen = SPECIMENS[build][path]
    events = specimen.stream_with_usage if usage else specimen.stream
    body = {**ASKED, "stream": True, **({"stream_options": {"include_usage": True}} if usage else {})}
    writer = FORMATS[path].writer(specimen, body, "fast", str(events[-1].get("prompt")))
    written = writer.begin()
    totals = totals_of(path, events[-1])
    for event in events:
        text = texts_of(path, event)
        if text:
            said = Totals(prompt=totals.prompt, predicted=event.get("tokens_predicted", 0))
            written += writer.text(text, (event.get("tokens") or [1])[0], said)
    written += writer.end(LIMIT, totals)
    assert [shape(event) for event in written] == [shape(event) for event in events]
    assert len({event["id"] for event in written if "id" in event}) <= 1


@pytest.mark.parametrize("build", SPECIMENS)
@pytest.mark.parametrize(
    ("ending", "reason"), [(Ending(Finish.END), "stop"), (Ending(Finish.STOP, "x"), "stop"), (LIMIT, "length")]
)
def test_why_it_is_over(build: str, ending: Ending, reason: str) -> None:
    for path in (CHAT, TEXT):
        writer = FORMATS[path].writer(SPECIMENS[build][path], ASKED, "fast", "")
        assert writer.whole("text", ending, Totals())["choices"][0]["finish_reason"] == reason
        assert writer.end(ending, Totals())[-1]["choices"][0]["finish_reason"] == reason
        assert writer.ends_with_done
    writer = FORMATS[COMPLETION].writer(SPECIMENS[build][COMPLETION], ASKED, "fast", "One,")
    written = writer.whole("two\n", ending, Totals(prompt=4, predicted=5))
    assert (written["stop_type"], written["stopping_word"]) == (ending.why.value, ending.stopped_by)
    assert (written["has_new_line"], written["prompt"], written["tokens_cached"]) == (True, "One,", 8)
    assert writer.end(Ending(Finish.LIMIT, truncated=True), Totals())[0]["truncated"] is True
    assert not writer.ends_with_done


@pytest.mark.parametrize("build", SPECIMENS)
def test_settings_are_shown_as_the_target_does(build: str) -> None:
    body = {"temperature": 0.7, "top_k": 5, "stop": "x", "logit_bias": {"12": -3, "13": False}, "n_predict": 9}
    specimen = SPECIMENS[build][COMPLETION]
    settings = FORMATS[COMPLETION].writer(specimen, body, "fast", "").whole("", LIMIT, Totals())["generation_settings"]
    assert settings.keys() == specimen.whole["generation_settings"].keys()
    assert settings["temperature"] == 0.699999988079071
    assert (settings["top_k"], settings["stop"], settings["ignore_eos"]) == (5, ["x"], False)
    assert (settings["n_predict"], settings["max_tokens"], settings["stream"]) == (9, 9, False)
    assert settings["logit_bias"] == [{"bias": -3.0, "token": 12}, {"bias": None, "token": 13}]


@pytest.mark.parametrize("build", SPECIMENS)
def test_tokens_that_show_nothing_yet(build: str) -> None:
    """They have an event of their own, but not in chats."""
    for path in PATHS:
        written = FORMATS[path].writer(SPECIMENS[build][path], ASKED, "fast", "").text("", 7, Totals(predicted=2))
        assert [texts_of(path, event) for event in written] == ([] if path == CHAT else [""])
    assert (written[0]["tokens"], written[0]["tokens_predicted"]) == ([7], 2)
    for path in PATHS:
        assert FORMATS[path].writer(SPECIMENS[build][path], ASKED, "fast", "").text("", None, Totals()) == []


def test_timings() -> None:
    """As llama-server reckons: the first token belongs to the prompt."""
    specimen = SPECIMENS["native"][CHAT].whole["timings"]
    totals = Totals(10, cached=4, predicted=5, drafted=8, accepted=3, prompt_seconds=0.3, predicted_seconds=2.0)
    found = timings(specimen, totals)
    assert found.keys() == specimen.keys() | {"draft_n", "draft_n_accepted"}
    assert (found["cache_n"], found["prompt_n"], found["predicted_n"]) == (4, 6, 5)
    assert (found["prompt_per_token_ms"], found["predicted_per_token_ms"]) == (50.0, 500.0)
    assert (found["predicted_per_second"], found["draft_n"], found["draft_n_accepted"]) == (2.0, 8, 3)
    assert timings(specimen, Totals(1, predicted=1)).keys() == specimen.keys()


def test_half_a_surrogate_pair_does_not_break_an_answer() -> None:
    assert as_json({"content": "漢\ud83d"}) == '{"content":"漢?"}'.encode()


@pytest.mark.parametrize("build", SPECIMENS)
@pytest.mark.parametrize("path", PATHS)
def test_timings_with_every_token(build: str, path: str) -> None:
    """As the target adds them: what a step has accepted is counted with its first token."""
    specimen = SPECIMENS[build][path]
    totals = Totals(prompt=4, predicted=3, drafted=5, accepted=2)
    for wanted in (True, False):
        writer = FORMATS[path].writer(specimen, {**ASKED, "timings_per_token": wanted}, "fast", "")
        (event,) = writer.text(" x", 7, totals)
        assert event.get("timings") == (timings(specimen.stream[-1]["timings"], totals) if wanted else None)
    shown = timings(specimen.stream[-1]["timings"], totals)
    assert [shown[key] for key in ("predicted_n", "draft_n", "draft_n_accepted")] == [3, 5, 2]
