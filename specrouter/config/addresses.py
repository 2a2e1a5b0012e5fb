"""Addresses in a topology: where the router listens, where servers are."""

from __future__ import annotations

import ipaddress
import re
import urllib.parse

_EXAMPLE = "like http://laptop:8080"


def url_problem(url: str, *, is_shown: bool) -> str | None:
    """What is wrong with a server's address. `is_shown`: a message may contain it."""
    try:
        parts = urllib.parse.urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return f"is not an address of a server ({_EXAMPLE}, with a port up to 65535)"
    if not url.isascii() or not url.isprintable() or " " in url or "\\" in url:
        return f"has characters that no URL has ({_EXAMPLE})"
    if parts.scheme not in ("http", "https"):
        is_address = is_shown and re.fullmatch(r"[\w.-]+:[0-9]+", url)
        return f"must begin with http:// or https:// ({f'write http://{url}' if is_address else _EXAMPLE})"
    if "@" in parts.netloc:
        return "must not contain a user or password (give a key as `api_key`)"
    if port == 0 or not (is_host_name(host) or ip_address(host)):
        return f"names no possible host and port ({_EXAMPLE})"
    if "?" in url or "#" in url:
        return f"must not have a query or fragment, `?` or `#` ({_EXAMPLE})"
    if re.search(r"/v1(/|$)", parts.path):
        root = url[: url.rindex("/v1")] if is_shown else "the address without /v1"
        return f"must be the server's root: paths like /v1 are added to it (write {root})"
    return None


def is_host_name(text: str) -> bool:
    """It has only characters that names of hosts have."""
    return re.fullmatch(r"[A-Za-z0-9._-]+", text) is not None


def ip_address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The address that a text is, None where it is none."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
