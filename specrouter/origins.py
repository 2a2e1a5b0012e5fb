"""Where a request comes from, as far as its head says: what a web page on another site must not be able to do."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from urllib.parse import urlsplit

from starlette.types import Scope

from .config.model import Listen
from .errors import HostNotAllowed, InvalidRequest, OriginNotAllowed, UnknownPath

_HOST = re.compile(r"(?P<name>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::(?P<port>[0-9]*))?")

_PRIVATE_DOMAINS = (".localhost", ".local", ".internal", ".home.arpa")
"""Nobody can register a name in these, so no stranger's page is called so."""

_DEFAULT_PORTS = {"http": "80", "https": "443"}


def check_request(scope: Scope, listen: Listen) -> None:
    """Look at path, Host and Origin before anything else of a request.

    Without `api_keys`, any page that a browser of this network shows could use the router: by a name of its own that
    it lets point here (DNS rebinding, told by Host), or with a plain cross-site request (told by Origin: browsers
    send it with every POST that a page causes, and GET changes nothing here). With `api_keys`
    such a page lacks the key, which a browser never adds by itself, so neither is looked at.

    Raises InvalidRequest, UnknownPath, HostNotAllowed, OriginNotAllowed.
    """
    hosts = _values(scope, b"host")
    if len(hosts) > 1 or (hosts in ([], [""]) and scope["http_version"] != "1.0"):
        raise InvalidRequest("a request must have one header Host")
    if scope["method"] == "POST" and b"%" in scope["raw_path"]:
        # No path of a llama-server needs one, and two readers may understand an escape in two ways.
        raise UnknownPath(f"nothing is served at POST {scope['raw_path'].decode('latin-1')}")
    if listen.api_keys:
        return
    host = hosts[0] if hosts else ""
    if host and not _is_ours(host, listen.allowed_hosts):
        raise HostNotAllowed(
            f"this router is not called {host!r}: add that name to `listen.allowed_hosts` in the topology, or use an "
            "IP address"
        )
    for origin in _values(scope, b"origin"):
        if not _is_own(origin, host) and not {origin, "*"} & set(listen.cors_origins):
            raise OriginNotAllowed(
                f"pages of {origin!r} may not use this router: add it to `listen.cors_origins` in the topology, "
                "or set `listen.api_keys`"
            )


def _values(scope: Scope, name: bytes) -> list[str]:
    return [value.decode("latin-1").strip() for key, value in scope["headers"] if key == name]


def _is_ours(host: str, allowed: Sequence[str]) -> bool:
    match = _HOST.fullmatch(host)
    if match is None:
        return False
    name = _normal(match["name"])
    if "." not in name or name.endswith(_PRIVATE_DOMAINS) or name in map(_normal, allowed):
        return True
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


def _normal(name: str) -> str:
    return name.lower().removesuffix(".")


def _is_own(origin: str, host: str) -> bool:
    """Whether a page has the address by which the router itself was called."""
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    port = _DEFAULT_PORTS.get(parts.scheme)
    called = _HOST.fullmatch(host)
    shown = _HOST.fullmatch(parts.netloc)
    return (
        port is not None
        and called is not None
        and shown is not None
        and _normal(called["name"]) == _normal(shown["name"])
        and (called["port"] or port) == (shown["port"] or port)
    )
