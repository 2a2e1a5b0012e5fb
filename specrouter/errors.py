"""Every error specrouter raises on purpose.

    SpecrouterError                 whatever we can explain to the person who caused it
    ├── TopologyError               the YAML topology cannot be used (carries all its problems)
    ├── PluginError                 a plugin cannot be loaded, or raised
    ├── SetupError                  a command cannot do its work here (no network, no binary, port taken)
    └── RequestError                a request is answered with an error; `status`, `type` and `code` say which
        ├── InvalidRequest          400: the body or its fields are wrong
        ├── Unauthorized            401: no key, or a wrong one
        ├── UnknownModel            404: no route has that name
        ├── UnknownPath             404: nothing is served there
        ├── BodyTooLarge            413: the body is over the limit
        ├── ShuttingDown            503: the router is being stopped
        ├── DraftRefused            422: the route insists on drafting and the pair does not fit
        └── UpstreamError           an upstream server did not do its part
            ├── UpstreamUnavailable 502: no connection, or it broke before or within an answer
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


class BodyTooLarge(RequestError):
    """The request body is larger than `listen.max_body`."""

    status = 413
    type = "invalid_request_error"
    code = "request_too_large"


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


class UpstreamError(RequestError):
    """An upstream server did not do its part; `server` is its name in the topology."""

    status = 502
    code = "upstream_error"

    def __init__(self, message: str, *, server: str) -> None:
        super().__init__(message)
        self.server = server


class UpstreamUnavailable(UpstreamError):
    """The connection failed, or broke before the answer was complete."""

    status = 502
    code = "upstream_unavailable"


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
