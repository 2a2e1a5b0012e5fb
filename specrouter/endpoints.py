"""HTTP in: read a request, find its route, answer it or say in OpenAI's shape why not."""

from __future__ import annotations

import hmac
import json
import logging
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import anyio
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from .errors import (
    BodyTooLarge,
    InvalidRequest,
    RequestError,
    ShuttingDown,
    Unauthorized,
    UnknownPath,
    UpstreamRejected,
)
from .openai_api import error_body, error_event, model_entry
from .proxy import ProxyRequest, Result, proxy
from .routing import Router
from .tasks import run_until

log = logging.getLogger("specrouter.requests")

Handler = Callable[[Router, Request, Send], Awaitable[None]]

# What changes a server for everybody is not reached through a model name.
_ADMINISTRATION = re.compile(r"(/v1)?/(slots|props|lora-adapters|models|metrics|health|tools|cors-proxy)(/|$)")

_PATH = re.compile(r"(/[A-Za-z0-9_-][A-Za-z0-9._-]*)+")


class Endpoint:
    """An ASGI application that calls a handler, turns its errors into answers, and ends it when the client leaves."""

    def __init__(self, router: Router, handler: Handler, *, needs_key: bool) -> None:
        self.router = router
        self.handler = handler
        self.needs_key = needs_key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def noting_send(message: Any) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            await send(message)

        request = Request(scope, receive)
        try:
            if self.needs_key:
                check_key(request, self.router.topology.listen.api_keys)
            await self.handler(self.router, request, noting_send)
        except ClientDisconnect:
            return
        except RequestError as error:
            if started:
                # The status is out: only a broken connection can still tell the client.
                raise
            await error_response(error)(scope, receive, send)


def error_response(error: RequestError) -> Response:
    """The answer that tells a client of an error; an upstream's own error body is passed on as it is."""
    headers = {} if error.retry_after is None else {"retry-after": str(error.retry_after)}
    if isinstance(error, UpstreamRejected) and error.body:
        return Response(error.body, error.status, headers, "application/json")
    return JSONResponse(error_body(error), error.status, headers)


def check_key(request: Request, keys: Sequence[str]) -> None:
    """Raise Unauthorized unless the request carries one of the keys, or none are needed."""
    if not keys:
        return
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    offered = token.strip() if scheme.lower() == "bearer" else request.headers.get("x-api-key", "")
    # Every key is compared, and in constant time: neither content nor position of the right one shows.
    matches = [hmac.compare_digest(offered.encode(), key.encode()) for key in keys]
    if not any(matches):
        said = "no API key" if not offered else "a wrong API key"
        raise Unauthorized(f"{said} was sent; send one as 'Authorization: Bearer KEY' or 'X-Api-Key: KEY'")


async def list_models(router: Router, request: Request, send: Send) -> None:
    """`GET /v1/models`: the routes. Answered from memory."""
    data = [_model(router, name) for name in router.routes]
    await JSONResponse({"object": "list", "data": data})(request.scope, request.receive, send)


async def show_model(router: Router, request: Request, send: Send) -> None:
    """`GET /v1/models/{model}`: one route, by name or alias."""
    route = router.resolve(request.path_params["model"])
    await JSONResponse(_model(router, route.config.name))(request.scope, request.receive, send)


async def show_health(_: Router, request: Request, send: Send) -> None:
    """`GET /health`: the router itself is up. What its servers do is in `specrouter check`."""
    await JSONResponse({"status": "ok"})(request.scope, request.receive, send)


async def forward(router: Router, request: Request, send: Send) -> None:
    """Any other path: a request that names a model is answered by that model's route."""
    path = request.scope["path"]
    if request.method != "POST" or not _PATH.fullmatch(path) or _ADMINISTRATION.match(path):
        raise UnknownPath(f"nothing is served at {request.method} {path}")
    content = await read_body(request, router.topology.listen.max_body)
    body = parse_body(content)
    model = body.get("model")
    if model is not None and not isinstance(model, str):
        raise InvalidRequest(f"`model` must be a string, not {json.dumps(model)[:60]}", param="model")
    route = router.resolve(model)
    proxied = ProxyRequest(
        method=request.method,
        path=path,
        query=request.scope["query_string"],
        headers=request.scope["headers"],
        content=content,
        body=body,
        model=model or route.config.name,
    )
    result = Result()
    started = time.monotonic()
    try:
        await run_until(lambda: _disconnected(request), lambda: proxy(proxied, route, send, result))
    except RequestError as error:
        result.status = result.status or error.status
        raise
    except anyio.get_cancelled_exc_class():
        # Only the end of the server cancels a request from outside; the task ends here anyway.
        with anyio.CancelScope(shield=True):
            await _end_for_shutdown(request, send, result)
    finally:
        _log(proxied, route.config.name, result, started)


async def _end_for_shutdown(request: Request, send: Send, result: Result) -> None:
    error = ShuttingDown("the router is being stopped")
    if result.status is None:
        await error_response(error)(request.scope, request.receive, send)
    elif result.is_stream and not result.is_complete:
        await send({"type": "http.response.body", "body": error_event(error), "more_body": False})


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def read_body(request: Request, limit: int) -> bytes:
    """The whole body. Raises BodyTooLarge as soon as it is known to be over `limit` bytes."""
    message = f"the body is larger than this router takes ({limit} bytes; `listen.max_body` in the topology)"
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > limit:
        raise BodyTooLarge(message)
    parts: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > limit:
            raise BodyTooLarge(message)
        parts.append(chunk)
    return b"".join(parts)


def parse_body(content: bytes) -> dict[str, Any]:
    """The JSON object in a body. Raises InvalidRequest that says what is wrong with it."""
    try:
        # Decoded here: json.loads takes UTF-16 as well, the servers do not.
        body = json.loads(content.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"the body is not UTF-8 (byte {error.start})") from error
    except RecursionError as error:
        raise InvalidRequest("the body is nested too deeply") from error
    except json.JSONDecodeError as error:
        raise InvalidRequest(f"the body is not JSON: {error}") from error
    except ValueError as error:
        raise InvalidRequest("a number in the body has too many digits") from error
    if not isinstance(body, dict):
        raise InvalidRequest(f"the body must be a JSON object, not {type(body).__name__}")
    return body


def _model(router: Router, name: str) -> dict[str, Any]:
    route = router.routes[name]
    entry = model_entry(name, int(router.started), route.candidates()[0].info)
    return {**entry, "aliases": list(route.config.aliases)}


def _log(request: ProxyRequest, route: str, result: Result, started: float) -> None:
    accompanied = result.accompanied
    counts = accompanied.counts if accompanied is not None else None
    log.info(
        "%s route=%s server=%s status=%s decoding=%r%s duration=%.2fs%s",
        request.path,
        route,
        result.server,
        result.status,
        str(result.decoding),
        "" if counts is None else f" drafted={counts.drafted} primed={counts.primed} confirmed={counts.confirmed}",
        time.monotonic() - started,
        "" if result.is_complete else " (incomplete)",
    )
    if accompanied is not None and accompanied.reason is not None:
        log.info("drafting for route %s ended early: %s", route, accompanied.reason)
