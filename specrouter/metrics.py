"""What the requests of a router's process added up to, and how things stand, as Prometheus reads it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Histogram, Metric, ProcessCollector
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from . import __version__
from .reasons import reason_class
from .request_log import RequestRecord
from .routing import Router
from .types import ServerState

PREFIX = "specrouter_"

_ROUTE = ("route",)
_TARGET = ("route", "server")
_ANSWER = ("route", "server", "decoding")

POSITIONS = 16
"""Positions of a draft that are counted, from the first on."""

_PER_POSITION = "spec_decode_num_accepted_tokens_per_pos"

_MOMENTS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_TOKEN_TIMES = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2)
_ANSWER_TIMES = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


@dataclass(frozen=True, slots=True)
class Family:
    """A metric. `name` is without the prefix, and without the `_total` that a counter is exported with."""

    name: str
    kind: str
    labels: tuple[str, ...]
    help: str
    buckets: tuple[float, ...] = ()

    @property
    def exported(self) -> str:
        """The name that queries begin with."""
        return f"{PREFIX}{self.name}{'_total' if self.kind == 'counter' else ''}"


# Counted per answer: (family, the attribute of a RequestRecord that is added up).
_COUNTED = (
    (Family("prompt_tokens", "counter", _ANSWER, "Prompt tokens of answers, as targets report them."), "prompt_tokens"),
    (
        Family("prompt_tokens_cached", "counter", _ANSWER, "Of those, the ones that a target had in its cache."),
        "cached_tokens",
    ),
    (Family("generation_tokens", "counter", _ANSWER, "Tokens of answers, as targets report them."), "tokens"),
    (
        Family("spec_decode_num_drafts", "counter", _ANSWER, "Verifications of a draft, as companions see them."),
        "drafts",
    ),
    (
        Family("spec_decode_num_draft_tokens", "counter", _ANSWER, "Draft tokens that targets verified."),
        "draft_n",
    ),
    (
        Family("spec_decode_num_accepted_tokens", "counter", _ANSWER, "Of those, the ones that targets accepted."),
        "draft_n_accepted",
    ),
    (
        Family("drafted_tokens", "counter", _ANSWER, "Tokens that drafters drafted, verified or not."),
        "drafted",
    ),
    (
        Family("primed_tokens", "counter", _ANSWER, "Prompt tokens that targets evaluated in side requests."),
        "primed",
    ),
    (Family("stand_downs", "counter", _ANSWER, "How often drafting stopped because it did not pay."), "stood_down"),
)

# Measured per answer: (family, the attribute of a RequestRecord that is observed).
_MEASURED = (
    (
        Family(
            "time_to_first_token_seconds",
            "histogram",
            _ANSWER,
            "From a request to the first event of its streamed answer.",
            _MOMENTS,
        ),
        "first_token",
    ),
    (
        Family(
            "request_time_per_output_token_seconds",
            "histogram",
            _ANSWER,
            "Mean time between the tokens of an answer; one value for each answer.",
            _TOKEN_TIMES,
        ),
        "seconds_per_token",
    ),
    (
        Family(
            "e2e_request_latency_seconds",
            "histogram",
            _ANSWER,
            "From a request to the end of its answer.",
            _ANSWER_TIMES,
        ),
        "duration",
    ),
    (
        Family("request_queue_time_seconds", "histogram", _ANSWER, "Time in line for a place.", _MOMENTS),
        "queued",
    ),
)

_OTHERS = (
    Family("requests", "counter", (*_ANSWER, "status"), "Requests that have ended, by class of their status."),
    Family("request_errors", "counter", (*_TARGET, "code"), "Requests that ended otherwise than asked for."),
    Family("clients_left", "counter", _TARGET, "Requests whose client left before the end."),
    Family("takeovers", "counter", _TARGET, "Targets that were tried in vain before this one."),
    Family("fallbacks", "counter", (*_TARGET, "reason"), "Answers without drafts where drafting is declared."),
    Family("drafting_ended", "counter", (*_TARGET, "reason"), "Answers whose drafting ended before they did."),
    Family(
        _PER_POSITION,
        "counter",
        (*_ANSWER, "position"),
        "Drafts whose token at this position (0 to 15) was accepted, as companions see them.",
    ),
    Family("reloads", "counter", ("result",), "Reloads of the topology, `taken` or `refused`."),
)

_GAUGES = (
    Family("num_requests_running", "gauge", _ROUTE, "Requests being answered now."),
    Family("num_requests_waiting", "gauge", _ROUTE, "Requests in line for a place now."),
    Family("drafting_available", "gauge", _TARGET, "1 where drafts for this target can be verified, else 0."),
    Family("server_state", "gauge", ("server", "state"), "1 for the state that a server is in, 0 for the others."),
    Family("server_requests_running", "gauge", ("server",), "Clients' requests that a server is answering now."),
    Family("server_slots", "gauge", ("server",), "Requests that a server decodes at once, where it says so."),
    Family("topology_revision", "gauge", (), "Topologies that were served, the one of now included."),
    Family("build_info", "gauge", ("version",), "1, with the version of specrouter."),
)

FAMILIES = (*(family for family, _ in (*_COUNTED, *_MEASURED)), *_OTHERS, *_GAUGES)

# -- counting ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Answer:
    """What is counted for one route, target and decoding: by attributes of the record, and by position in a draft."""

    counters: Sequence[tuple[str, Counter]]
    histograms: Sequence[tuple[str, Histogram]]
    positions: Sequence[Counter]


class Metrics:
    """The counts of a process, in a registry of their own. They go on over reloads.

    Labels are names from the topology and words of ours, never what a client wrote.
    """

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        counters = [*(family for family, _ in _COUNTED), *_OTHERS]
        self._counters = {
            family.name: Counter(PREFIX + family.name, family.help, family.labels, registry=self._registry)
            for family in counters
        }
        self._histograms = {
            family.name: Histogram(
                PREFIX + family.name, family.help, family.labels, registry=self._registry, buckets=family.buckets
            )
            for family, _ in _MEASURED
        }
        # To look a child up by its labels costs more than to count.
        self._answers: dict[tuple[str, ...], _Answer] = {}
        self._children: dict[tuple[str, tuple[str, ...]], Counter] = {}
        for result in ("taken", "refused"):
            self._child("reloads", result)

    def add(self, record: RequestRecord) -> None:
        """Count a request that has ended. Takes some 20 µs."""
        target = (record.route or "", record.server or "")
        labels = (*target, record.decoding or "")
        status = "none" if record.status is None else f"{record.status // 100}xx"
        self._child("requests", *labels, status).inc()
        for name, label in _endings(record):
            self._child(name, *target, label).inc()
        if record.client_left:
            self._child("clients_left", *target).inc()
        if record.server is None:
            return
        if record.takeovers:
            self._child("takeovers", *target).inc(record.takeovers)
        answer = self._answers.get(labels) or self._begin(labels)
        for attribute, counter in answer.counters:
            if amount := getattr(record, attribute):
                counter.inc(amount)
        for attribute, histogram in answer.histograms:
            if (seconds := getattr(record, attribute)) is not None:
                histogram.observe(seconds)
        for position, accepted in zip(answer.positions, record.accepted_per_position or (), strict=False):
            position.inc(accepted)

    def reloaded(self, *, taken: bool) -> None:
        """Count a reload."""
        self._child("reloads", "taken" if taken else "refused").inc()

    def _child(self, name: str, *labels: str) -> Counter:
        child = self._children.get((name, labels))
        if child is None:
            child = self._children[name, labels] = self._counters[name].labels(*labels)
        return child

    def _begin(self, labels: tuple[str, ...]) -> _Answer:
        """All that is counted for a route, a target and a decoding, from 0 on."""
        answer = self._answers[labels] = _Answer(
            [(attribute, self._counters[family.name].labels(*labels)) for family, attribute in _COUNTED],
            [(attribute, self._histograms[family.name].labels(*labels)) for family, attribute in _MEASURED],
            [self._counters[_PER_POSITION].labels(*labels, str(position)) for position in range(POSITIONS)]
            if labels[-1] != "plain"
            else [],
        )
        return answer

    def collected(
        self, router: Router, revision: int, running: Mapping[str, int], waiting: Mapping[str, int]
    ) -> Collector:
        """All metrics of this moment, to be encoded in any thread. `running` and `waiting` count requests by route."""
        # What first shows up with a value has no increase for Prometheus.
        for labels in _answers(router):
            if labels not in self._answers:
                self._begin(labels)
        return _Everything(self._registry, tuple(_gauges(router, revision, running, waiting)))


class _Everything(Collector):
    """A registry and some more families, without the times at which counters were made: nobody asks for those."""

    def __init__(self, registry: CollectorRegistry, more: Iterable[Metric]) -> None:
        self._registry = registry
        self._more = more

    def collect(self) -> Iterator[Metric]:
        for metric in (*self._registry.collect(), *self._more):
            metric.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
            yield metric


def _endings(record: RequestRecord) -> Iterator[tuple[str, str]]:
    """The counters of what was not as it should be, with the label that says what."""
    if record.error_code is not None:
        yield "request_errors", record.error_code
    elif (record.status or 0) >= 400:
        yield "request_errors", "target"
    elif not (record.is_complete or record.client_left):
        yield "request_errors", "incomplete"
    if record.reason is not None:
        yield "fallbacks", reason_class(record.reason)
    if record.ended_early is not None:
        yield "drafting_ended", reason_class(record.ended_early)


def _answers(router: Router) -> Iterator[tuple[str, ...]]:
    """The labels that answers of this topology have, as far as is known."""
    for name, route in router.routes.items():
        for target in route.targets:
            yield name, target.name, "plain"
        for pair in route.pairs.values():
            if pair.decoded_by is not None:
                yield name, pair.target.name, pair.decoded_by


def _gauges(
    router: Router, revision: int, running: Mapping[str, int], waiting: Mapping[str, int]
) -> Iterator[GaugeMetricFamily]:
    """How things stand. Only of what the topology of now has."""
    families = {
        family.name: GaugeMetricFamily(PREFIX + family.name, family.help, labels=family.labels) for family in _GAUGES
    }
    for name, route in router.routes.items():
        families["num_requests_running"].add_metric([name], running.get(name, 0))
        families["num_requests_waiting"].add_metric([name], waiting.get(name, 0))
        for pair in route.pairs.values():
            families["drafting_available"].add_metric([name, pair.target.name], pair.obstacle is None)
    for name, server in router.servers.items():
        for state in ServerState:
            families["server_state"].add_metric([name, state.value], server.state is state)
        families["server_requests_running"].add_metric([name], server.in_flight)
        if server.info.slots is not None:
            families["server_slots"].add_metric([name], server.info.slots)
    families["topology_revision"].add_metric([], revision)
    families["build_info"].add_metric([__version__], 1)
    yield from families.values()
