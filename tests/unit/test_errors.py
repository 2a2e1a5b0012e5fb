"""The tree in the docstring is the tree of the classes, and no foreign error of a server call gets through."""

from __future__ import annotations

import inspect
import re

import httpx
import pytest

from specrouter import errors
from specrouter.config import ServerConfig
from specrouter.errors import RequestError, SpecrouterError, UpstreamError, UpstreamRejected, UpstreamTimeout
from specrouter.upstream import LlamaServer

CLASSES = [cls for _, cls in inspect.getmembers(errors, inspect.isclass) if issubclass(cls, SpecrouterError)]


def documented() -> dict[str, str | None]:
    """Class → the class above it, as the docstring draws them."""
    assert errors.__doc__ is not None
    above: dict[str, str | None] = {}
    path: list[tuple[int, str]] = []
    for line in errors.__doc__.splitlines():
        found = re.match(r"    ([│ ]*(?:[├└]── )?)([A-Z]\w+)\s", line)
        if found is None:
            continue
        depth, name = len(found[1]) // 4, found[2]
        path = [entry for entry in path if entry[0] < depth]
        above[name] = path[-1][1] if path else None
        path.append((depth, name))
    return above


def test_the_tree() -> None:
    actual = {cls.__name__: cls.__bases__[0].__name__ for cls in CLASSES if cls is not SpecrouterError}
    assert documented() == {"SpecrouterError": None, **actual}


@pytest.mark.parametrize("cls", [cls for cls in CLASSES if issubclass(cls, RequestError)])
def test_statuses_are_those_of_the_docstring(cls: type[RequestError]) -> None:
    assert errors.__doc__ is not None
    said = re.search(rf"── {cls.__name__} +(\d{{3}})", errors.__doc__)
    if said is not None:
        assert cls.status == int(said[1])
    assert 400 <= cls.status <= 599


HTTPX_ERRORS = [cls for _, cls in inspect.getmembers(httpx, inspect.isclass) if issubclass(cls, httpx.TransportError)]


@pytest.mark.parametrize("cls", HTTPX_ERRORS)
@pytest.mark.anyio
async def test_every_error_of_the_client_is_mapped(cls: type[httpx.TransportError]) -> None:
    async def fail(request: httpx.Request) -> httpx.Response:
        raise cls("secret details of the connection")

    server = LlamaServer(ServerConfig("big", "http://127.0.0.1:9"))
    await server.aclose()
    connections = server._connections
    connections._client = connections._unkept = httpx.AsyncClient(
        transport=httpx.MockTransport(fail), base_url="http://127.0.0.1:9"
    )
    with pytest.raises(UpstreamError, match="server 'big'") as caught:
        await server.call("GET", "/health")
    assert isinstance(caught.value, UpstreamTimeout) == issubclass(cls, httpx.TimeoutException)
    assert "secret" not in str(caught.value)
    with pytest.raises(UpstreamError, match="server 'big'"):
        async with server.open("GET", "/health"):
            pass
    await server.aclose()


def test_the_list_is_not_empty() -> None:
    assert len(HTTPX_ERRORS) >= 15


@pytest.mark.anyio
@pytest.mark.parametrize("path", ["/v1/models?" + "a" * 70_000, "/v1/models?\x01"])
async def test_addresses_that_are_none(path: str) -> None:
    server = LlamaServer(ServerConfig("big", "http://127.0.0.1:9"))
    with pytest.raises(UpstreamRejected, match="HTTP does not allow its address") as caught:
        async with server.open("GET", path):
            pass
    assert caught.value.status == 400
    await server.aclose()


@pytest.mark.anyio
async def test_what_else_the_client_could_raise_cannot_happen() -> None:
    """No decoding and no redirects."""
    server = LlamaServer(ServerConfig("big", "http://127.0.0.1:9"))
    client = server._connections._client
    assert client.follow_redirects is False
    assert client.headers["accept-encoding"] == "identity"
    await server.aclose()
