"""Asks what runs at each address: what it is, whether it can be used, how fast it is."""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, fields, replace
from typing import Any

import anyio

from specrouter.config import ServerConfig
from specrouter.errors import (
    UpstreamBroke,
    UpstreamError,
    UpstreamLoading,
    UpstreamRejected,
    UpstreamTimeout,
    UpstreamUnavailable,
)
from specrouter.measuring import question_alone, seconds_per_token
from specrouter.random_text import tried_again
from specrouter.request_log import cut, visible
from specrouter.types import ServerInfo, ServerState
from specrouter.upstream import LlamaServer

from .addresses import Address, Key
from .findings import Found, Kind, LeftOut
from .strangers import who_is_it

Doing = Callable[[str], None]
"""Is told what takes a while."""

_CONNECT_SECONDS = 5.0
_ASKING_SECONDS = 30.0
_LOADING_SECONDS = 120.0
_SMALL_SECONDS = 60.0
_TRIAL_SECONDS = 120.0

_TOKENS = 24

_HIGHEST = 2**63 - 1
"""No number that a server says of itself is higher, and higher ones cannot be computed with."""

_NUMBERS = ("n_vocab", "vocab_type", "n_ctx", "n_ctx_train", "n_params", "n_bytes", "slots")


@dataclass(frozen=True, slots=True)
class Discovery:
    """All addresses, in the order in which they were given: those that can be used, and the others."""

    found: Sequence[Found]
    left_out: Sequence[LeftOut]


class _LeftOutError(Exception):
    """An address cannot be used; the text says why."""


async def discover(
    addresses: Sequence[Address],
    *,
    key_for_all: Key | None = None,
    doing: Doing = lambda _: None,
) -> Discovery:
    """Ask all addresses what they are, then measure one after the other.

    `key_for_all` is for the servers that ask for a key and have none of their own. A server that loads its model is
    waited for.
    """
    results: dict[int, Found | LeftOut] = {}
    async with AsyncExitStack() as stack:
        asked: dict[int, tuple[Address, LlamaServer]] = {}

        async def ask(number: int) -> None:
            try:
                asked[number] = await _ask(addresses[number], stack, key_for_all, doing)
            except _LeftOutError as error:
                results[number] = LeftOut(addresses[number], str(error))

        doing(f"asking {_count(len(addresses), 'address', 'addresses')}")
        async with anyio.create_task_group() as tasks:
            for number in range(len(addresses)):
                tasks.start_soon(ask, number)
        places: dict[int, Collection[object]] = {}
        # One after the other: two on one machine would make each other slow.
        for number, (address, server) in sorted(asked.items()):
            here = await _places(address)
            # One address may have several servers behind it, by the name that they are called.
            alike = [other for other in places if asked[other][1].info == server.info]
            same = next((other for other in alike if set(here) & set(places[other])), None)
            if same is not None:
                results[number] = LeftOut(address, f"is the same server as {addresses[same].written}", duplicate=True)
                continue
            places[number] = here
            try:
                results[number] = await _examine(address, server, doing)
            except _LeftOutError as error:
                results[number] = LeftOut(address, str(error))
    in_order = [results[number] for number in range(len(addresses))]
    return Discovery(
        [result for result in in_order if isinstance(result, Found)],
        [result for result in in_order if isinstance(result, LeftOut)],
    )


async def _ask(
    address: Address,
    stack: AsyncExitStack,
    key_for_all: Key | None,
    doing: Doing,
) -> tuple[Address, LlamaServer]:
    """The server at an address, with what it says about itself, and the address with the key that it needs.

    Raises _LeftOutError.
    """
    server = _server(address, stack)
    try:
        try:
            info = await _describe(server, address, doing)
        except UpstreamRejected as error:
            if error.status not in (401, 403) or address.key is not None or key_for_all is None:
                raise
            address = replace(address, key=key_for_all)
            server = _server(address, stack)
            info = await _describe(server, address, doing)
    except UpstreamError as error:
        raise _LeftOutError(await _reason(server, address, error)) from error
    if info.slots is None:
        raise _LeftOutError(await who_is_it(server) or "is no llama-server: its /props does not say what it runs")
    if not _makes_sense(info):
        raise _LeftOutError("says things about itself that make no sense")
    server.set_state(ServerState.UP, "up", info)
    return address, server


def _server(address: Address, stack: AsyncExitStack) -> LlamaServer:
    config = ServerConfig(
        address.url,
        address.url,
        api_key=address.key.secret if address.key is not None else None,
        connect_timeout=_CONNECT_SECONDS,
    )
    server = LlamaServer(config)
    stack.push_async_callback(server.aclose)
    return server


async def _describe(server: LlamaServer, address: Address, doing: Doing) -> ServerInfo:
    """What it says, when it has loaded its model. Raises UpstreamError."""
    try:
        return await _described(server)
    except UpstreamLoading:
        doing(f"waiting for {visible(address.written)}, which is loading its model")
        await server.wait_while_loading(_LOADING_SECONDS)
        return await _described(server)


async def _described(server: LlamaServer) -> ServerInfo:
    # Each question has a limit for a pause, this one is for answers without an end.
    with anyio.move_on_after(_ASKING_SECONDS):
        info = await server.describe()
        if info.slots is not None:
            # What the router will ask to see whether it is up.
            await server.call("GET", "/health", timeout=_CONNECT_SECONDS)
        return info
    raise UpstreamTimeout(f"server {server.name!r} did not answer in time", server=server.name)


def _makes_sense(info: ServerInfo) -> bool:
    """Numbers are numbers and texts are texts."""
    for field in fields(info):
        value = getattr(info, field.name)
        if field.name in _NUMBERS:
            fits = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _HIGHEST
        else:
            fits = isinstance(value, tuple | str)
        if value is not None and not fits:
            return False
    return info.n_vocab is None or info.n_vocab > 0


async def _reason(server: LlamaServer, address: Address, error: UpstreamError) -> str:
    """Why a server cannot be used, in words for whoever gave its address."""
    match error:
        case UpstreamLoading():
            return "is still loading its model (try again when it has)"
        case UpstreamTimeout():
            return "does not answer in time (is it the right address, and is a firewall between?)"
        case UpstreamRejected(status=401 | 403):
            if address.key is not None:
                return f"does not take the key in {address.key.variable}"
            return (
                f"asks for a key (give it as --api-key-env NAME, or write "
                f"'{address.written.replace('://', '://${NAME}@', 1)}', NAME being the variable that holds it)"
            )
        case UpstreamBroke():
            return "breaks the connection off (does it speak https? is it a llama-server at all?)"
    causes = list(_causes(error))
    for cause in causes:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return (
                f"has a certificate that this machine does not trust: {cause.verify_message} (the router would not "
                "either: add its authority to those that the system trusts, or use http in a network that you trust)"
            )
        if isinstance(cause, ssl.SSLError):
            return "does not speak https (write http://)"
        if isinstance(cause, socket.gaierror):
            return f"there is no host called {visible(address.host)}"
    if "no connection" in str(error):
        return (
            "no connection (is it running? from other machines a llama-server is reached only if it was started with "
            "--host 0.0.0.0)"
        )
    status = error.status if isinstance(error, UpstreamRejected) else None
    what = f"answers {status}" if status is not None else "does not answer as one does"
    return await who_is_it(server) or f"is no llama-server: it {what}"


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """What an exception came from, and what that came from."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


async def _places(address: Address) -> Collection[object]:
    """The addresses and ports that a URL leads to. Two URLs for one of them are one server."""
    path = address.url.split("/", 3)[3:]
    hosts = {address.host.lower()}
    try:
        found = await anyio.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
        hosts = {str(entry[4][0]) for entry in found}
    except OSError:
        pass
    # A server that listens on this machine's IPv4 address is meant by its IPv6 one, too.
    local = {"this machine" if host.startswith("127.") or host == "::1" else host for host in hosts}
    return {(host, address.port, *path) for host in local}


async def _examine(address: Address, server: LlamaServer, doing: Doing) -> Found:
    """What a server that is up is there for, and how fast it is. Raises _LeftOutError."""
    if await _answers(server, "/v1/rerank", {"query": "a", "documents": ["b"]}):
        return Found(address, server.info, Kind.RERANKS)
    if await _answers(server, "/v1/embeddings", {"input": "a"}):
        return Found(address, server.info, Kind.EMBEDS)
    doing(f"measuring {visible(address.written)}")

    async def ask() -> Mapping[str, Any]:
        question = question_alone(server, _TOKENS)
        if server.info.n_vocab is None:
            question["prompt"] = "One, two, three, four, five,"
        return await server.complete(question, timeout=_TRIAL_SECONDS)

    try:
        answer = await tried_again(ask)
    except UpstreamTimeout:
        return Found(address, server.info)
    except UpstreamError as error:
        raise _LeftOutError(f"does not generate: {_shown(error)}") from error
    step = seconds_per_token(answer)
    return Found(address, server.info, speed=1 / step if step else None, spec_types=_spec_types(answer))


async def _answers(server: LlamaServer, path: str, question: Mapping[str, Any]) -> bool:
    """Whether it does what a path is for; a llama-server refuses what it was not started for."""
    # The time-out is for pauses, the other limit for answers without an end.
    with anyio.move_on_after(_SMALL_SECONDS), contextlib.suppress(UpstreamError):
        answer = await server.call("POST", path, question, timeout=_SMALL_SECONDS)
        return isinstance(answer, dict) and "error" not in answer
    return False


def _spec_types(answer: Mapping[str, Any]) -> frozenset[str] | None:
    """The kinds of drafting, of which a server shows the names."""
    settings = answer.get("generation_settings")
    said = settings.get("speculative.types") if isinstance(settings, dict) else None
    return frozenset(said.split(",")) - {"", "none"} if isinstance(said, str) else None


def _shown(error: UpstreamError) -> str:
    if isinstance(error, UpstreamRejected):
        return cut(visible(str(error).partition(": ")[2] or str(error)), 160)
    return "its answer makes no sense" if isinstance(error, UpstreamUnavailable) else "no answer"


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"
