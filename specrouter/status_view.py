"""`specrouter status`: asks a running router how it is doing, and puts that into tables for people."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from . import running
from .config import load_topology
from .errors import SetupError
from .request_log import Line, RequestRecord, seconds, visible

PATH = "/specrouter/status"

_PATIENCE = 5.0
_REQUESTS_SHOWN = 10

_FIELDS = {entry.name for entry in fields(RequestRecord)}


@dataclass(frozen=True, slots=True)
class Address:
    """Where a router is asked, and with which key."""

    url: str
    key: str | None = field(default=None, repr=False)


def find_router(where: str, key: str | None) -> Address:
    """The router at a URL, or the one on this machine that serves a topology file.

    Without a `key`, that file's first one that opens all routes is taken. Raises SetupError, TopologyError.
    """
    if where.startswith(("http://", "https://")):
        return Address(where.rstrip("/").removesuffix("/v1"), key)
    file = Path(where)
    key = key or _key_of(file)
    found = [router.url for router in running.find(file)]
    if not found:
        listen = load_topology(file).topology.listen
        raise SetupError(
            f"no router that is known here serves {where} (start one with: specrouter serve {where}); a demo's or "
            f"a container's is asked by its URL, such as http://127.0.0.1:{listen.port}"
        )
    if len(found) > 1:
        raise SetupError(f"{len(found)} routers serve {where} here: give the URL of one ({', '.join(found)})")
    return Address(found[0], key)


def _key_of(file: Path) -> str | None:
    keys = load_topology(file).topology.listen.api_keys
    key = next((key for key in keys if key.routes is None), None)
    if keys and key is None:
        raise SetupError(f"each key in {file} opens some routes only (add one without `routes`)")
    return None if key is None else key.secret


def fetch(address: Address) -> dict[str, Any]:
    """What the router says of itself. Raises SetupError."""
    headers = {} if address.key is None else {"authorization": f"Bearer {address.key}"}
    try:
        # Without the environment's proxies: they would get the key.
        with httpx.Client(headers=headers, timeout=_PATIENCE, trust_env=False) as client:
            response = client.get(address.url + PATH)
    except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
        raise SetupError(f"no router answers at {address.url}: {visible(str(error))}") from error
    try:
        said = response.json()
    except ValueError:
        said = None
    if response.status_code in (401, 403) and isinstance(said, dict) and "error" in said:
        raise SetupError(f"{address.url}: {visible(str(said['error'].get('message')))} (give a key with --key)")
    if response.status_code != httpx.codes.OK or not isinstance(said, dict) or "routes" not in said:
        raise SetupError(f"what answers at {address.url} is no specrouter with a status ({response.status_code})")
    return said


class StatusView:
    """The status of a router in tables, asked anew each time it is called.

    A router that stops answering is said below what was known last. Raises SetupError when it has never answered.
    """

    def __init__(self, address: Address) -> None:
        self._address = address
        self._known: dict[str, Any] | None = None

    def __call__(self) -> RenderableType:
        try:
            self._known = fetch(self._address)
        except SetupError as error:
            if self._known is None:
                raise
            return Group(self._page(self._known), Text(str(error), style="red"))
        return self._page(self._known)

    def _page(self, status: Mapping[str, Any]) -> RenderableType:
        try:
            return _page(self._address, status)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise SetupError(
                f"{self._address.url} is not of this version of specrouter, show it with --json"
            ) from error


def _page(address: Address, status: Mapping[str, Any]) -> RenderableType:
    revision = status["topology"]["revision"]
    head = f"specrouter {status['version']} at {address.url}, up {_duration(status['uptime'])}, revision {revision}"
    parts = [_routes(status["routes"]), _servers(status["servers"])]
    requests = [*((True, entry) for entry in status["current"]), *((False, entry) for entry in status["recent"])]
    if requests:
        parts.append(_requests(requests[:_REQUESTS_SHOWN]))
    return Group(Text(visible(head)), *(part for table in parts for part in (Text(), table)))


def _routes(routes: list[Mapping[str, Any]]) -> Table:
    table = _table("route", "targets", "drafts", "running", "waiting", "accepted", "length", "speed", "first")
    for route in routes:
        lately = route["lately"]
        rate, length, first = lately["acceptance_rate"], lately["acceptance_length"], lately["first_token"]
        table.add_row(
            _text(route["name"]),
            Text("\n").join(_target(name, route["served_by"]) for name in route["targets"]),
            Text("\n").join(_drafts(route["draft"])),
            _count(route["running"]),
            _count(route["waiting"]),
            _text("-" if rate is None else f"{rate:.0%}"),
            _text("-" if length is None else f"{length:.2f}"),
            _text("\n".join(f"{name} {speed:.1f}/s" for name, speed in lately["speed"].items()) or "-"),
            _text("-" if first is None else seconds(first)),
        )
    return table


def _target(name: str, served_by: str | None) -> Text:
    return _text(name, "" if name == served_by else "dim")


def _drafts(draft: Mapping[str, Any] | None) -> Iterator[Text]:
    if draft is None:
        yield _text("-")
        return
    servers = f" from {', '.join(draft['servers'])}" if draft["servers"] else ""
    yield _text(draft["strategy"] + servers)
    if draft["obstacle"] is not None:
        yield _text(draft["obstacle"], "yellow")
    for pair in draft["pairs"]:
        if pair["obstacle"] is not None:
            yield _text(f"{pair['target']}: {pair['obstacle']}", "yellow")
        else:
            yield _text(f"{pair['target']}: {pair['verifier']}", "green")


_STYLES = {"up": "green", "down": "red", "loading": "yellow"}


def _servers(servers: list[Mapping[str, Any]]) -> Table:
    table = _table("server", "state", "since", "model", "slots", "running")
    for server in servers:
        state, reason = server["state"], server["reason"]
        table.add_row(
            _text(server["name"]),
            _text(state if reason in (state, "") else f"{state} ({reason})", _STYLES.get(state, "")),
            _text(_clock(server["since"])),
            # A server without an alias calls itself by the path of its file.
            _text(re.split(r"[/\\]", server["model"])[-1] if server["model"] else "-"),
            _text("-" if server["slots"] is None else str(server["slots"])),
            _count(server["running"]),
        )
    return table


def _requests(entries: list[tuple[bool, Mapping[str, Any]]]) -> Table:
    table = _table("request", "model", "status", "server", "decoding", "")
    for is_running, entry in entries:
        record = RequestRecord(**{key: value for key, value in entry.items() if key in _FIELDS})
        line, details = Line(record), _details(record, is_running=is_running)
        table.add_row(_text(_clock(entry["started"])), *map(_text, line.columns), details)
    return table


def _details(record: RequestRecord, *, is_running: bool) -> Text:
    if is_running:
        said = f", {record.confirmed} draft tokens came true" if record.confirmed else ""
        return _text(f"since {seconds(record.duration)}{said}", "cyan")
    return Text("  ").join(_text(part, "yellow" if odd else "") for part, odd in Line(record).details())


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _text(text: str, style: str = "") -> Text:
    """Text as it is: what servers and clients wrote can neither style itself nor move the cursor."""
    return Text("\n".join(visible(line) for line in text.split("\n")), style=style)


def _count(number: int) -> Text:
    return _text(str(number) if number else "-")


def _clock(moment: str) -> str:
    """A moment in local time: `14:03:55`, or with the day where it was another one."""
    then = datetime.fromisoformat(moment).astimezone()
    is_today = then.date() == datetime.now().astimezone().date()
    return f"{then:%H:%M:%S}" if is_today else f"{then:%Y-%m-%d %H:%M}"


def _duration(value: float) -> str:
    """`12 s`, `5 min`, `3 h 20 min`, `4 days`."""
    minutes = int(value // 60)
    if not minutes:
        return f"{value:.0f} s"
    hours, minutes = divmod(minutes, 60)
    if not hours:
        return f"{minutes} min"
    return f"{hours} h {minutes} min" if hours < 48 else f"{hours // 24} days"
