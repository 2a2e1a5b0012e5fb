"""What is counted of a request, under which names and labels."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import request_records
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families
from stepwise_support import ToyDrafter, ToySession, spoken, stepwise

from specrouter.config import load_topology
from specrouter.metrics import FAMILIES, POSITIONS, PREFIX, Metrics
from specrouter.reasons import REASONS, reason_class
from specrouter.request_log import RequestRecord
from specrouter.routing import Router
from specrouter.testing import ToyModel
from specrouter.traffic import REMEMBERED, REMEMBERED_OF_ROUTE, Traffic
from specrouter.types import DraftCounts


def record(**changed: Any) -> RequestRecord:
    """A request that was drafted for and went well, in figures that add up without rounding."""
    even = {"duration": 4.0, "first_token": 0.25, "queued": 0.5, "seconds_per_token": 0.0625}
    return request_records.record(**{**even, "model": "gpt", "stood_down": 2, **changed})


def router(folder: Path, routes: dict[str, Any]) -> Router:
    servers = {"big": {"url": "http://127.0.0.1:9"}, "old": {"url": "http://127.0.0.1:10"}}
    file = folder / "topology.yaml"
    file.write_text(json.dumps({"version": 1, "servers": servers, "routes": routes}), encoding="utf-8")
    return Router(load_topology(file))


ROUTES: dict[str, Any] = {
    "chat": {"target": ["big", "old"], "draft": "prompt_lookup"},
    "plain": {"target": "big"},
}


def text(metrics: Metrics, router: Router, accept: str = "", **changed: Any) -> str:
    options: dict[str, Any] = {"revision": 3, "running": {"chat": 2}, "waiting": {"chat": 1}, **changed}
    encode, _ = choose_encoder(accept)
    return encode(metrics.collected(router, **options)).decode()


def samples(families: Iterator[Metric]) -> dict[tuple[str, ...], float]:
    """(name, label values in the order of the labels' names) → value."""
    return {
        (sample.name, *(sample.labels[name] for name in sorted(sample.labels))): sample.value
        for family in families
        for sample in family.samples
    }


def counted(folder: Path, *records: RequestRecord) -> dict[tuple[str, ...], float]:
    metrics = Metrics()
    for found in records:
        metrics.add(found)
    return samples(text_string_to_metric_families(text(metrics, router(folder, ROUTES))))


INJECT = ("inject", "chat", "big")


def test_everything_of_a_drafted_answer(tmp_path: Path) -> None:
    found = counted(tmp_path, record(), record())
    expected = {
        ("prompt_tokens_total", *INJECT): 60,
        ("prompt_tokens_cached_total", *INJECT): 40,
        ("generation_tokens_total", *INJECT): 424,
        ("spec_decode_num_drafts_total", *INJECT): 80,
        ("spec_decode_num_draft_tokens_total", *INJECT): 180,
        ("spec_decode_num_accepted_tokens_total", *INJECT): 142,
        ("spec_decode_num_accepted_tokens_per_pos_total", "inject", "0", "chat", "big"): 76,
        ("spec_decode_num_accepted_tokens_per_pos_total", "inject", "1", "chat", "big"): 66,
        ("spec_decode_num_accepted_tokens_per_pos_total", "inject", "2", "chat", "big"): 0,
        ("drafted_tokens_total", *INJECT): 240,
        ("primed_tokens_total", *INJECT): 600,
        ("stand_downs_total", *INJECT): 4,
        ("requests_total", *INJECT, "2xx"): 2,
        ("time_to_first_token_seconds_sum", *INJECT): 0.5,
        ("time_to_first_token_seconds_count", *INJECT): 2,
        ("request_time_per_output_token_seconds_sum", *INJECT): 0.125,
        ("e2e_request_latency_seconds_sum", *INJECT): 8,
        ("request_queue_time_seconds_sum", *INJECT): 1,
    }
    assert {key: found[PREFIX + key[0], *key[1:]] for key in expected} == expected
    assert not [key for key in found if key[0] == f"{PREFIX}request_errors_total"]


ENDINGS = [
    ({"status": 429, "server": None, "error_code": "rate_limit_exceeded"}, "request_errors", "rate_limit_exceeded"),
    ({"status": 400}, "request_errors", "target"),
    ({"is_complete": False}, "request_errors", "incomplete"),
    ({"decoding": "plain", "reason": "only 3 tokens wanted"}, "fallbacks", "request"),
    ({"ended_early": "server 'laptop': the connection broke"}, "drafting_ended", "upstream"),
]


@pytest.mark.parametrize(("changed", "name", "label"), ENDINGS)
def test_endings(tmp_path: Path, changed: dict[str, Any], name: str, label: str) -> None:
    found = counted(tmp_path, record(**changed))
    counters = {"request_errors", "fallbacks", "drafting_ended", "clients_left", "takeovers"}
    ended = {key: value for key, value in found.items() if key[0] in {f"{PREFIX}{name}_total" for name in counters}}
    # Labels in the order of their names: `code` comes before `route`, and so does `reason`.
    server = "" if changed.get("server", "big") is None else "big"
    assert ended == {(f"{PREFIX}{name}_total", label, "chat", server): 1}


def test_a_client_that_left_is_no_error(tmp_path: Path) -> None:
    found = counted(tmp_path, record(status=None, is_complete=False, client_left=True, takeovers=2))
    assert found[f"{PREFIX}clients_left_total", "chat", "big"] == 1
    assert found[f"{PREFIX}takeovers_total", "chat", "big"] == 2
    assert found[f"{PREFIX}requests_total", *INJECT, "none"] == 1
    assert not [key for key in found if key[0] == f"{PREFIX}request_errors_total"]


def test_positions_beyond_those_that_are_counted(tmp_path: Path) -> None:
    found = counted(tmp_path, record(accepted_per_position=(1,) * (POSITIONS + 5)))
    positions = [key for key in found if key[0].endswith("per_pos_total")]
    assert len(positions) == POSITIONS
    assert {found[key] for key in positions} == {1}


def test_gauges_are_those_of_the_topology(tmp_path: Path) -> None:
    metrics = Metrics()
    metrics.add(record())
    served = router(tmp_path, ROUTES)
    before = samples(text_string_to_metric_families(text(metrics, served)))
    assert before[f"{PREFIX}num_requests_running", "chat"] == 2
    assert before[f"{PREFIX}num_requests_waiting", "chat"] == 1
    assert before[f"{PREFIX}num_requests_running", "plain"] == 0
    assert before[f"{PREFIX}drafting_available", "chat", "old"] == 0
    assert before[f"{PREFIX}server_state", "big", "unknown"] == 1
    assert before[f"{PREFIX}server_state", "big", "up"] == 0
    assert before[f"{PREFIX}topology_revision",] == 3
    less = router(tmp_path, {"plain": ROUTES["plain"]})
    after = samples(text_string_to_metric_families(text(metrics, less)))
    gauges = {family.exported for family in FAMILIES if family.kind == "gauge"}
    assert not [key for key in after if key[0] in gauges and "chat" in key]
    # Counts go on, a route may come back.
    assert after[f"{PREFIX}requests_total", *INJECT, "2xx"] == 1


def test_what_may_be_counted_is_there_from_the_start(tmp_path: Path) -> None:
    """A counter that first shows up with a value has no increase for Prometheus."""
    found = samples(text_string_to_metric_families(text(Metrics(), router(tmp_path, ROUTES))))
    for name in ("generation_tokens_total", "spec_decode_num_draft_tokens_total"):
        assert found[PREFIX + name, "plain", "chat", "old"] == 0
    assert found[f"{PREFIX}reloads_total", "refused"] == 0


def test_both_formats(tmp_path: Path) -> None:
    metrics, served = Metrics(), router(tmp_path, ROUTES)
    metrics.add(record())
    plain = text(metrics, served)
    new = text(metrics, served, accept="application/openmetrics-text; version=1.0.0; q=0.9, text/plain;q=0.5")
    assert new.endswith("# EOF\n")
    names = {family.exported for family in FAMILIES}
    for found in (
        samples(text_string_to_metric_families(plain)),
        samples(openmetrics.text_string_to_metric_families(new)),
    ):
        assert found[f"{PREFIX}generation_tokens_total", *INJECT] == 212
        ours = {key[0] for key in found if key[0].startswith(PREFIX)}
        bare = {name.removesuffix("_bucket").removesuffix("_sum").removesuffix("_count") for name in ours}
        assert bare <= names
        assert not [name for name in ours if name.endswith("_created")]


# -- labels are bounded ------------------------------------------------------------------------------------

WORDS = st.text(max_size=40)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Router:
    return router(tmp_path_factory.mktemp("topology"), ROUTES)


@settings(deadline=None, max_examples=50)
@given(
    model=WORDS,
    path=WORDS,
    reason=WORDS,
    ended_early=WORDS,
    request_id=WORDS,
    prompt=WORDS,
    status=st.integers(100, 999),
)
def test_no_label_has_what_a_client_wrote(served: Router, **changed: Any) -> None:
    traffic = Traffic()
    ended = record(decoding="plain", **changed)
    traffic.began(snapshot := lambda: ended)
    traffic.ended(snapshot)
    families = text_string_to_metric_families(text(traffic.metrics, served))
    allowed = {"chat", "plain", "big", "old", "inject", "target", "none", *REASONS, *(f"{n}xx" for n in range(1, 10))}
    values = {
        sample.labels[name]
        for family in families
        for sample in family.samples
        for name in ("route", "server", "decoding", "status", "reason", "code")
        if name in sample.labels
    }
    assert values <= allowed
    assert traffic.recent[0].prompt is None


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("an error in specrouter, see its log", "internal"),
        ("draft plugin 'mine' (mine.py file) raised ValueError: server 'big'", "plugin"),
        ("draft server laptop is down (server 'laptop': no connection)", "draft_server"),
        ("tokenizers differ: pieces: draft has 1, target has 2", "tokenizers"),
        ("inject: server big has one slot, the side requests need another", "target"),
        ("fanout: even with drafts that are all accepted, only x1.02 of the target's speed", "target"),
        ("fanout: server big was started with --dry-multiplier, which single tokens do not show", "target"),
        ("the RPC workers of big are away", "draft_server"),
        ("server 'big' answered 401: no", "upstream"),
        ("drafting did not pay lately", "stood_down"),
        ("nothing to draft", "nothing_to_draft"),
        ("took over within the answer", "took_over"),
        ("asked for without drafts", "request"),
        ("the moon is full", "other"),
    ],
)
def test_classes_of_reasons(reason: str, expected: str) -> None:
    assert reason_class(reason) == expected
    assert expected in REASONS


# -- what is remembered ------------------------------------------------------------------------------------


def test_a_bounded_number_of_requests_is_remembered() -> None:
    traffic = Traffic()
    for number in range(2 * REMEMBERED):
        ended = record(request_id=str(number), prompt="secret")
        traffic.began(snapshot := lambda ended=ended: ended)
        assert [found.request_id for found in traffic.current()] == [str(number)]
        traffic.ended(snapshot)
    assert traffic.current() == []
    assert len(traffic.recent) == REMEMBERED
    assert len(traffic.of_route("chat")) == REMEMBERED_OF_ROUTE
    assert traffic.of_route("chat")[-1].request_id == str(2 * REMEMBERED - 1)
    assert {found.prompt for found in traffic.recent} == {None}


def test_a_request_whose_record_cannot_be_made_runs_no_longer() -> None:
    def broken() -> RequestRecord:
        raise ZeroDivisionError

    traffic = Traffic()
    traffic.began(broken)
    with pytest.raises(ZeroDivisionError):
        traffic.ended(broken)
    assert traffic.current() == []


def test_what_was_answered_without_a_route_is_not_counted() -> None:
    traffic = Traffic()
    for ended in (record(route=None, server=None), record(route=None, server=None, error_code="invalid_api_key")):
        traffic.began(snapshot := lambda ended=ended: ended)
        traffic.ended(snapshot)
    assert [found.error_code for found in traffic.recent] == ["invalid_api_key"]


def test_verifications_by_position() -> None:
    counts = DraftCounts()
    for accepted in (2, 0, 3, 1):
        counts.add_verification(accepted)
    assert counts.drafts == 4
    assert counts.accepted_per_position == [3, 2, 1]


@pytest.mark.anyio
async def test_verifications_of_the_step_engine() -> None:
    model = ToyModel(" bako deli" * 20)
    session = ToySession(model)
    answer = stepwise(model, ToyDrafter(model, lambda position: position % 5 == 3), session=session)
    await spoken(answer)
    assert answer.counts.drafts == sum(bool(draft) for _, draft in session.rounds) > 0
    assert sum(answer.counts.accepted_per_position) == answer.totals.accepted > 0
    assert answer.counts.accepted_per_position == sorted(answer.counts.accepted_per_position, reverse=True)
