"""HTTP in: read a request, find its route, answer it or say in OpenAI's shape why not."""

from __future__ import annotations

import contextlib
import json
import logging
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any

import anyio
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from .accounting import Usage, usage_of
from .config import ApiKey
from .errors import (
    BodyTooLarge,
    InternalError,
    InvalidRequest,
    KeyNotAllowed,
    RequestError,
    ShuttingDown,
    UnknownPath,
    UpstreamRejected,
)
from .forms import is_form, read_form
from .openai_api import error_body, error_event, model_entry
from .origins import check_request
from .proxied import DRAFT_HEADER, ProxyRequest, Result
from .proxy import proxy
from .request_log import REQUEST_ID_HEADER, RequestRecord, cut, log_request, prompt_text, request_id
from .route import Route
from .routing import Router
from .tasks import run_until
from .traffic import Traffic

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Call:
    """A client's request on its way through the router.

    `key` is the client's, None where none is needed or known. `started` is when it came, by the monotonic clock,
    `moment` the same in UTC.
    """

    router: Router
    traffic: Traffic
    request: Request
    send: Send
    id: str
    key: ApiKey | None = None
    result: Result = field(default_factory=Result)
    started: float = field(default_factory=time.monotonic)
    moment: datetime = field(default_factory=lambda: datetime.now(UTC))


Handler = Callable[[Call], Awaitable[None]]

# What changes a server for everybody is not reached through a model name, and what is ours is no server's.
_ADMINISTRATION = re.compile(
    r"(/v1)?/(slots|props|lora-adapters|models|metrics|health|tools|cors-proxy|specrouter)(/|$)"
)

_LONGEST_MODEL = 512
"""Characters. Each name that was asked for is remembered for a while."""

_LONGEST_VALUE = 200

_MOST_VALUES = 2_000_000
"""Of a body, roughly. While Python makes objects of them, everybody's stream stands still."""

_PATH = re.compile(r"(/[A-Za-z0-9_-][A-Za-z0-9._-]*)+")


class AsciiResponse(JSONResponse):
    """JSON that can hold what a client said: also half a surrogate pair, for which UTF-8 has no bytes."""

    def render(self, content: Any) -> bytes:
        """The JSON text."""
        return json.dumps(content, separators=(",", ":")).encode()


class Endpoint:
    """An ASGI application that calls a handler, turns its errors into answers, and ends it when the client leaves."""

    def __init__(self, router: Router, traffic: Traffic, handler: Handler, *, needs_key: bool) -> None:
        self.router = router
        self.traffic = traffic
        self.handler = handler
        self.needs_key = needs_key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        identity = request_id(request.headers)

        async def noting_send(message: Any) -> None:
            if message["type"] == "http.response.start":
                call.result.status = message["status"]
                message["headers"] = [*message["headers"], (REQUEST_ID_HEADER.encode(), identity.encode())]
            await send(message)

        call = Call(self.router, self.traffic, request, noting_send, identity)
        snapshot = partial(_record, call)
        self.traffic.began(snapshot)
        try:
            check_request(scope, self.router.topology.listen)
            if self.needs_key:
                call.key = self.router.access.identify(request.headers)
            await self.handler(call)
        except ClientDisconnect:
            call.result.client_left = True
        except RequestError as error:
            if not await _told(call, error):
                # Only a broken connection can still tell the client.
                raise
        except Exception:
            log.exception("request %s", identity)
            ours = InternalError(f"an error in specrouter, see its log (request {identity})")
            if not await _told(call, ours):
                raise
        except anyio.get_cancelled_exc_class():
            # Only the end of the server cancels a request from outside; the task ends here anyway.
            with anyio.CancelScope(shield=True):
                await _told(call, ShuttingDown("the router is being stopped"))
        finally:
            log_request(self.traffic.ended(snapshot))


def error_response(error: RequestError) -> Response:
    """The answer that tells a client of an error; an upstream's own error body is passed on as it is."""
    headers = {} if error.retry_after is None else {"retry-after": str(error.retry_after)}
    if isinstance(error, UpstreamRejected) and error.body:
        return Response(error.body, error.status, headers, "application/json")
    return AsciiResponse(error_body(error), error.status, headers)


async def list_models(call: Call) -> None:
    """`GET /v1/models`: the routes that the client's key opens. Answered from memory."""
    data = [_model(call.router, route) for route in call.router.open_to(call.key).values()]
    await answer(call, AsciiResponse({"object": "list", "data": data}))


async def show_model(call: Call) -> None:
    """`GET /v1/models/{model}`: one route, by name or alias."""
    route = call.router.resolve(call.request.path_params["model"], call.key)
    await answer(call, AsciiResponse(_model(call.router, route)))


async def show_health(call: Call) -> None:
    """`GET /health`: the router itself is up. What its servers do is in `specrouter check`."""
    await answer(call, AsciiResponse({"status": "ok"}))


def require_open_key(call: Call) -> None:
    """Raises KeyNotAllowed for a key that opens some routes only."""
    if call.key is not None and call.key.routes is not None:
        raise KeyNotAllowed(
            f"the key {call.key.name!r} opens some routes only, and {call.request.scope['path']} is about all of them; "
            "use a key without `routes`"
        )


async def answer(call: Call, response: Response) -> None:
    """Send a whole answer that no target gave."""
    await response(call.request.scope, call.request.receive, call.send)


async def forward(call: Call) -> None:
    """Any other path: a request that names a model is answered by that model's route."""
    request, path = call.request, call.request.scope["path"]
    if request.method != "POST" or not _PATH.fullmatch(path) or _ADMINISTRATION.match(path):
        raise UnknownPath(f"nothing is served at {request.method} {path}")
    content = await read_body(request, call.router.topology.listen.max_body)
    encoding = request.headers.get("content-encoding", "identity")
    if encoding.lower() != "identity":
        raise InvalidRequest(f"a body with `Content-Encoding: {encoding[:40]}` is not taken: send it as it is")
    content_type = request.headers.get("content-type", "")
    form = read_form(content, content_type) if is_form(content_type) else None
    body = parse_body(content) if form is None else {}
    model = named_model(body) if form is None else named_model({"model": form.model})
    call.result.model = model
    if call.router.log_prompts:
        call.result.prompt = prompt_text(body)
    route = call.router.resolve(model, call.key)
    call.result.route = route.config.name
    proxied = ProxyRequest(
        method=request.method,
        path=path,
        query=request.scope["query_string"],
        headers=_with_id(request.scope["headers"], call.id),
        content=content,
        body=body,
        form=form,
        model=model or route.config.name,
        drafts=_wants_drafts(request),
    )
    finished = await run_until(lambda: disconnected(request), lambda: _forward(call, proxied, route))
    call.result.client_left = not (finished or call.result.is_complete)


def _wants_drafts(request: Request) -> bool:
    said = request.headers.getlist(DRAFT_HEADER)
    for value in said:
        if value != "none":
            raise InvalidRequest(f"{DRAFT_HEADER} must be 'none' or left out, not {value[:40]!r}")
    return not said


def _with_id(headers: Sequence[tuple[bytes, bytes]], identity: str) -> list[tuple[bytes, bytes]]:
    name = REQUEST_ID_HEADER.encode()
    return [*(header for header in headers if header[0] != name), (name, identity.encode())]


@contextlib.asynccontextmanager
async def admitted(call: Call, route: Route) -> AsyncIterator[None]:
    """A place among the requests that the limits of key and route let through at once. Raises TooManyRequests."""
    started = time.monotonic()
    traffic, name = call.traffic, route.config.name
    async with contextlib.AsyncExitStack() as stack:
        with traffic.counted(traffic.waiting, name):
            for gate in (call.router.access.gate(call.key), route.gate):
                if gate is not None:
                    await stack.enter_async_context(gate.passed())
        stack.enter_context(traffic.counted(traffic.running, name))
        call.result.queued = time.monotonic() - started
        yield


async def _forward(call: Call, proxied: ProxyRequest, route: Route) -> None:
    async with admitted(call, route):
        await proxy(proxied, route, call.send, call.result)


async def _told(call: Call, error: RequestError) -> bool:
    """Tell the client of an error, if what it has got so far leaves room for that."""
    result = call.result
    result.error = error.code or str(error.status)
    if result.status is None:
        await answer(call, error_response(error))
    elif result.is_stream and not result.is_complete:
        await call.send({"type": "http.response.body", "body": error_event(error), "more_body": False})
    else:
        return False
    return True


async def disconnected(request: Request) -> None:
    """Return when the client has left. Its body has to be read before."""
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
    """The JSON object in a body. Raises InvalidRequest that says what is wrong with it, BodyTooLarge."""
    if sum(content.count(mark) for mark in (b",", b"[", b"{")) > _MOST_VALUES:
        raise BodyTooLarge(f"the body holds more single values than this router reads ({_MOST_VALUES})")
    try:
        # Decoded here: json.loads takes UTF-16 as well, the servers do not.
        body = json.loads(content.decode("utf-8-sig"), parse_constant=_no_number)
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


def named_model(body: Mapping[str, Any]) -> str | None:
    """The `model` of a request, None where it has none. Raises InvalidRequest."""
    model = body.get("model")
    if model is not None and not isinstance(model, str):
        raise InvalidRequest(f"`model` must be a string, not {json.dumps(model)[:60]}", param="model")
    if model is not None and len(model) > _LONGEST_MODEL:
        raise InvalidRequest(
            f"`model` must have at most {_LONGEST_MODEL} characters, this one has {len(model)}", param="model"
        )
    return model


def _no_number(name: str) -> float:
    """What Python reads and JSON does not know. Raises InvalidRequest."""
    raise InvalidRequest(f"the body is not JSON: {name} is no number")


def _model(router: Router, route: Route) -> dict[str, Any]:
    entry = model_entry(route.config.name, int(router.started), route.candidates()[0].info)
    return {**entry, "aliases": list(route.config.aliases)}


def _record(call: Call) -> RequestRecord:
    """What is known of a request by now: when it has ended, all that is to be logged of it."""
    now = time.monotonic()
    result = call.result
    usage = usage_of(result.accounting)
    accompanied = result.accompanied
    counts = accompanied.counts if accompanied is not None else None
    first = result.first_byte
    return RequestRecord(
        request_id=call.id,
        started=call.moment,
        method=call.request.method,
        path=cut(call.request.scope["path"], _LONGEST_VALUE),
        status=result.status,
        duration=now - call.started,
        route=result.route,
        model=None if result.model is None else cut(result.model, _LONGEST_VALUE),
        server=result.server,
        api_key=call.key.name if call.key is not None else None,
        decoding=(result.decoding.verifier or "plain") if result.server is not None else None,
        reason=result.decoding.reason,
        error_code=result.error,
        is_stream=result.is_stream,
        # What is not a target's answer is sent as a whole, or not at all.
        is_complete=result.is_complete if first is not None else result.status is not None,
        client_left=result.client_left,
        takeovers=result.takeovers,
        queued=result.queued,
        first_token=first - call.started if first is not None and result.is_stream else None,
        prompt_tokens=usage.prompt,
        cached_tokens=usage.cached,
        tokens=usage.predicted,
        seconds_per_token=_seconds_per_token(result, usage, now),
        draft_n=usage.drafted,
        draft_n_accepted=usage.accepted,
        drafted=counts.drafted if counts is not None else None,
        primed=counts.primed if counts is not None else None,
        confirmed=counts.confirmed if counts is not None else None,
        drafts=counts.drafts if counts is not None else None,
        accepted_per_position=tuple(counts.accepted_per_position) if counts is not None else None,
        stood_down=counts.stood_down if counts is not None else None,
        ended_early=accompanied.reason if accompanied is not None else None,
        prompt=result.prompt,
    )


def _seconds_per_token(result: Result, usage: Usage, now: float) -> float | None:
    """The mean time between an answer's tokens: as the target measured it, else as the events of a stream came."""
    if usage.predicted is None or usage.predicted < 2:
        return None
    seconds = usage.predicted_seconds
    if seconds is None and result.is_stream and result.is_complete and result.first_byte is not None:
        seconds = now - result.first_byte
    return None if seconds is None else seconds / (usage.predicted - 1)
