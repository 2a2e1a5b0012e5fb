"""How a router and everything behind it is doing, as plain data: `/metrics` and `/specrouter/status`."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from statistics import median
from typing import Any

import anyio.to_thread
from prometheus_client.exposition import choose_encoder
from starlette.responses import Response

from . import __version__
from .config import server_options
from .endpoints import AsciiResponse, Call, Handler, require_open_key
from .errors import PluginError
from .pairing import Pair
from .plugins import guard
from .request_log import RequestRecord, as_json
from .route import Route
from .routing import Router
from .running import Status
from .service import Service
from .traffic import Traffic
from .upstream import LlamaServer


def show_metrics(service: Service) -> Handler:
    """`GET /metrics`: what Prometheus collects."""

    async def show(call: Call) -> None:
        require_open_key(call)
        traffic = service.traffic
        collected = traffic.metrics.collected(service.router, service.status.revision, traffic.running, traffic.waiting)
        encode, content_type = choose_encoder(call.request.headers.get("accept", ""))
        # Thousands of lines take long enough to be seen in somebody's stream.
        content = await anyio.to_thread.run_sync(encode, collected)
        # As a header: Starlette would add a second charset.
        await _answer(call, Response(content, headers={"content-type": content_type}))

    return show


def show_status(service: Service) -> Handler:
    """`GET /specrouter/status`: the topology as it is doing now, and the last requests."""

    async def show(call: Call) -> None:
        require_open_key(call)
        await _answer(call, AsciiResponse(status_of(service.router, service.traffic, service.status)))

    return show


async def _answer(call: Call, response: Response) -> None:
    response.headers["cache-control"] = "no-store"
    await response(call.request.scope, call.request.receive, call.send)


def status_of(router: Router, traffic: Traffic, status: Status) -> dict[str, Any]:
    """What `/specrouter/status` shows. Names, figures and reasons; no key, no address, no prompt and no answer.

    Times are in UTC, durations in seconds.
    """
    last = status.outcome
    return {
        "version": __version__,
        "time": _moment(time.time()),
        "started": _moment(router.started),
        "uptime": round(time.time() - router.started, 1),
        "topology": {
            "revision": status.revision,
            "reloads": status.ended,
            # What is wrong with a file is for those who can read the file.
            "last_reload": None if last is None else {"changed": last.changed, "problems": len(last.problems)},
        },
        "routes": [_route(route, traffic) for route in router.routes.values()],
        "servers": [_server(server) for server in router.servers.values()],
        "current": [as_json(record) for record in traffic.current()],
        "recent": [as_json(record) for record in reversed(traffic.recent)],
    }


def _route(route: Route, traffic: Traffic) -> dict[str, Any]:
    name = route.config.name
    server = route.server_of_now()
    return {
        "name": name,
        "aliases": list(route.config.aliases),
        "targets": list(route.config.targets),
        "balance": route.config.balance,
        "served_by": None if server is None else server.name,
        "draft": _draft(route) if route.drafts else None,
        "running": traffic.running[name],
        "waiting": traffic.waiting[name],
        "lately": lately(traffic.of_route(name)),
    }


def _draft(route: Route) -> dict[str, Any]:
    info, options = route.strategy.info, route.config.draft.options
    # The one behind nested strategies is known to the pairs only.
    asked = [pair.draft_server.name for pair in route.pairs.values() if pair.draft_server is not None]
    return {
        "strategy": info.name,
        "servers": list(dict.fromkeys([*server_options(info.cls.options_schema, options), *asked])),
        "workers": _workers(route),
        "obstacle": _strategy_obstacle(route),
        "pairs": [_pair(pair) for pair in route.pairs.values()],
    }


def _workers(route: Route) -> dict[str, Any] | None:
    try:
        with guard(route.strategy.info):
            workers = route.strategy.plugin.workers()
    except PluginError:
        # What is wrong with it is said by its obstacle, too, or in the log.
        return None
    if workers is None:
        return None
    return {"number": len(workers.addresses), "state": workers.state.value, "reason": workers.state_reason}


def _strategy_obstacle(route: Route) -> str | None:
    try:
        with guard(route.strategy.info):
            return route.strategy.plugin.available()
    except PluginError as error:
        return str(error)


def _pair(pair: Pair) -> dict[str, Any]:
    return {
        "target": pair.target.name,
        "verifier": None if pair.obstacle is not None else pair.decoded_by,
        "obstacle": pair.obstacle,
        "crosses_as_text": pair.crosses_as_text is not None,
    }


def _server(server: LlamaServer) -> dict[str, Any]:
    return {
        "name": server.name,
        "state": server.state.value,
        "reason": server.state_reason,
        "since": _moment(server.state_since),
        "model": server.info.model,
        "build": server.info.build,
        "context": server.info.n_ctx,
        "slots": server.info.slots,
        "running": server.in_flight,
    }


def lately(records: Sequence[RequestRecord]) -> dict[str, Any]:
    """How a route did in its last requests; None where nothing is known.

    `acceptance_rate` is accepted / drafted tokens, `acceptance_length` 1 + accepted tokens / verifications, `speed` the
    tokens per second of an answer once it has begun, by how it was decoded. `first_token` is a median.
    """
    drafted = [record for record in records if record.draft_n]
    verified = [record for record in drafted if record.drafts]
    first = [record.first_token for record in records if record.first_token is not None]
    return {
        "requests": len(records),
        "failed": sum(record.is_failed and not record.client_left for record in records),
        "acceptance_rate": _ratio(_sum(drafted, "draft_n_accepted"), _sum(drafted, "draft_n")),
        "acceptance_length": _ratio(
            _sum(verified, "drafts") + _sum(verified, "draft_n_accepted"), _sum(verified, "drafts")
        ),
        "first_token": round(median(first), 3) if first else None,
        "speed": _speeds(records),
    }


def _speeds(records: Iterable[RequestRecord]) -> Mapping[str, float]:
    times: dict[str, list[tuple[int, float]]] = {}
    for record in records:
        if record.seconds_per_token and record.tokens and record.decoding is not None:
            steps = record.tokens - 1
            times.setdefault(record.decoding, []).append((steps, steps * record.seconds_per_token))
    return {
        decoding: round(sum(steps for steps, _ in found) / sum(seconds for _, seconds in found), 2)
        for decoding, found in sorted(times.items())
    }


def _sum(records: Iterable[RequestRecord], attribute: str) -> int:
    return sum(getattr(record, attribute) or 0 for record in records)


def _ratio(part: int, whole: int) -> float | None:
    return round(part / whole, 3) if whole else None


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
