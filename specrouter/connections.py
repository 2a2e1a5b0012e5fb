"""The HTTP client with which the router speaks to one server."""

from __future__ import annotations

import ssl
from http.cookiejar import CookieJar, DefaultCookiePolicy

import httpx

from .config.model import ServerConfig
from .sockets import keepalive_options

# llama-server closes an idle connection after 5 s; ours must be the side that lets go first.
_KEEPALIVE_SECONDS = 4.0


def make_client(config: ServerConfig, *, kept: int = 64) -> httpx.AsyncClient:
    """A client that adds the server's key to each request, and nothing else that the request does not have.

    `kept` is how many idle connections it keeps for other requests.
    """
    transport = httpx.AsyncHTTPTransport(
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=kept, keepalive_expiry=_KEEPALIVE_SECONDS),
        trust_env=False,
        # Making a context reads the certificate store: half a second for ten servers that do not use it.
        verify=ssl.create_default_context() if config.url.startswith("https:") else False,
        socket_options=keepalive_options(),
    )
    client = httpx.AsyncClient(
        base_url=config.url,
        transport=transport,
        headers={"authorization": f"Bearer {config.api_key}"} if config.api_key else {},
        timeout=httpx.Timeout(None, connect=config.connect_timeout),
        # One client's cookies must not travel with another's requests.
        cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
        follow_redirects=False,
        trust_env=False,
    )
    # What httpx adds by itself would reach the server as if the client had sent it.
    for header in ("user-agent", "accept", "accept-encoding"):
        del client.headers[header]
    client.headers["accept-encoding"] = "identity"
    return client
