"""Every error specrouter raises on purpose.

    SpecrouterError                 whatever we can explain to the person who caused it
    ├── TopologyError               the YAML topology cannot be used (carries all its problems)
    ├── PluginError                 a plugin cannot be loaded, or raised
    ├── SetupError                  a command cannot do its work here (no network, no binary, port taken)
    ├── IncompleteDistribution      an acceptance policy cannot decide with the distributions it was given
    └── RequestError                a request is answered with an error; `status`, `type` and `code` say which
        ├── InvalidRequest          400: the body or its fields are wrong
        ├── Unauthorized            401: no key, or a wrong one
        ├── KeyNotAllowed           403: the key does not open that
        ├── HostNotAllowed          403: the router does not go by that name
        ├── OriginNotAllowed        403: a page of another site
        ├── UnknownModel            404: no route has that name
        ├── UnknownPath             404: nothing is served there
        ├── RequestTooSlow          408: the rest of the request did not come in time
        ├── BodyTooLarge            413: the body is over the limit
        ├── HeadersTooLarge         431: the request's head is over the limit
        ├── TooManyRequests         429: no place, and no room or time to wait for one
        ├── ShuttingDown            503: the router is being stopped
        ├── InternalError           500: a fault of specrouter itself; the log has the traceback
        ├── DraftRefused            422: the route insists on drafting and the pair does not fit
        └── UpstreamError           an upstream server did not do its part
            ├── UpstreamUnavailable 502: no connection, or the answer makes no sense
            │   └── UpstreamBroke   502: the connection broke before or within the answer
            ├── UpstreamLoading     503: the server is still loading its model
            ├── UpstreamTimeout     504: the server was too slow to connect or answer
            └── UpstreamRejected    an answer other than 200; `status` is the server's own

`status` is the HTTP status, `type` and `code` are the fields of OpenAI's error object.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar


class SpecrouterError(Exception):
    """Base of all errors that are explained to a person; `str(error)` is the explanation."""


class TopologyError(SpecrouterError):
    """A topology that cannot be used.

    `problems` holds one printable line per problem, each `file:line:column: path: message`.
    """

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


class PluginError(SpecrouterError):
    """A plugin that cannot be loaded or that raised; the message names plugin and distribution."""


class SetupError(SpecrouterError):
    """A command cannot do its work on this machine; the message says what to do about it."""


class IncompleteDistribution(SpecrouterError):
    """An acceptance policy was not given complete distributions: none at all, or probabilities that do not sum to 1."""


class RequestError(SpecrouterError):
    """A request that is answered with an error in OpenAI's shape."""

    status: int = 500
    type: ClassVar[str] = "server_error"
    code: ClassVar[str | None] = None
    param: str | None = None
    retry_after: int | None = None


class InvalidRequest(RequestError):
    """The body, or a field of it (`param`), is not what the endpoint takes."""

    status = 400
    type = "invalid_request_error"

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class Unauthorized(RequestError):
    """No API key, or one that the topology does not list."""

    status = 401
    type = "invalid_request_error"
    code = "invalid_api_key"


class KeyNotAllowed(RequestError):
    """The API key opens some routes only, and what was asked for is about all of them."""

    status = 403
    type = "invalid_request_error"
    code = "key_not_allowed"


class HostNotAllowed(RequestError):
    """The request's Host is no name of this router, as far as it knows."""

    status = 403
    type = "invalid_request_error"
    code = "host_not_allowed"


class OriginNotAllowed(RequestError):
    """The request comes from a web page that is not the router's and not in `listen.cors_origins`."""

    status = 403
    type = "invalid_request_error"
    code = "origin_not_allowed"


class UnknownModel(RequestError):
    """No route has the requested name or alias."""

    status = 404
    type = "invalid_request_error"
    code = "model_not_found"
    param = "model"


class UnknownPath(RequestError):
    """Nothing is served at that path with that method."""

    status = 404
    type = "invalid_request_error"
    code = "unknown_url"


class RequestTooSlow(RequestError):
    """The client paused for `listen.client_timeout` before its request was complete."""

    status = 408
    type = "invalid_request_error"
    code = "request_timeout"


class HeadersTooLarge(RequestError):
    """Request line and headers are larger than `listen.max_headers`."""

    status = 431
    type = "invalid_request_error"
    code = "headers_too_large"


class BodyTooLarge(RequestError):
    """The request body is larger than `listen.max_body`, or holds too many values."""

    status = 413
    type = "invalid_request_error"
    code = "request_too_large"


class TooManyRequests(RequestError):
    """As many requests as `limits` allow are being answered, and no more may wait, or not longer."""

    status = 429
    type = "rate_limit_error"
    code = "rate_limit_exceeded"


class DraftRefused(RequestError):
    """`on_tokenizer_mismatch: refuse`, and drafter and target do not share a vocabulary."""

    status = 422
    type = "invalid_request_error"
    code = "tokenizer_mismatch"


class ShuttingDown(RequestError):
    """The router is being stopped and did not wait longer for the answer."""

    status = 503
    type = "unavailable_error"
    code = "shutting_down"


class InternalError(RequestError):
    """A fault of specrouter itself. The log has its traceback, under the id of the request."""

    code = "internal_error"


class UpstreamError(RequestError):
    """An upstream server did not do its part; `server` is its name in the topology."""

    status = 502
    code = "upstream_error"

    def __init__(self, message: str, *, server: str) -> None:
        super().__init__(message)
        self.server = server


class UpstreamUnavailable(UpstreamError):
    """There is no connection, or the answer makes no sense."""

    status = 502
    code = "upstream_unavailable"


class UpstreamBroke(UpstreamUnavailable):
    """The connection broke before the answer was complete: the server may have died of the request."""


class UpstreamLoading(UpstreamError):
    """The server is up but still loading its model."""

    status = 503
    type = "unavailable_error"
    code = "upstream_loading"
    retry_after = 5


class UpstreamTimeout(UpstreamError):
    """The server took longer than a configured time-out."""

    status = 504
    code = "upstream_timeout"


class UpstreamRejected(UpstreamError):
    """The server answered with an error status; `body` is its own answer."""

    code = "upstream_rejected"

    def __init__(self, message: str, *, server: str, status: int, body: bytes = b"") -> None:
        super().__init__(message, server=server)
        self.status = status
        self.body = body
