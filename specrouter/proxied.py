"""A request on its way to a target: what is sent of it and returned, and how it went."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .engine import Accompanied
from .forms import Form
from .llama_api import wants_stream
from .types import Decoding

DECODING_HEADER = b"x-specrouter-decoding"

DRAFT_HEADER = "x-specrouter-draft"
"""With the value `none`: the client wants an answer without drafts."""

_HOP_BY_HOP = {
    b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te", b"trailer",
    b"transfer-encoding", b"upgrade",
}  # fmt: skip

# Ours to say (keys, framing, CORS), or harmful upstream: with X-Conversation-Id a generation outlives its client.
NOT_SENT = _HOP_BY_HOP | {
    b"host", b"content-length", b"content-type", b"authorization", b"x-api-key", b"cookie", b"accept-encoding",
    b"expect", b"origin", b"referer", b"x-conversation-id", DRAFT_HEADER.encode(),
}  # fmt: skip
NOT_RETURNED = _HOP_BY_HOP | {
    b"content-length",
    b"server",
    b"date",
    b"set-cookie",
    b"vary",
    b"x-request-id",
    DECODING_HEADER,
}


@dataclass(frozen=True, slots=True)
class ProxyRequest:
    """A client's request for a route. `headers` have lower-case names.

    `body` is the parsed form of JSON `content`; it is empty where that is a `form`. Without `drafts`, the client
    wants none.
    """

    method: str
    path: str
    query: bytes
    headers: Sequence[tuple[bytes, bytes]]
    content: bytes
    body: Mapping[str, Any]
    model: str
    form: Form | None = None
    drafts: bool = True

    @property
    def streams(self) -> bool:
        """Whether the client wants a stream."""
        return wants_stream(self.body)


@dataclass(slots=True)
class Result:
    """How a request went, for the log and the metrics.

    `model` is what the client asked for, `prompt` what it wrote, where that is to be logged. Times are in seconds:
    `queued` in line for a place, `first_byte` by the monotonic clock. `takeovers` counts the targets that were tried in
    vain. `accounting` is the last data of the answer that may say what it cost.
    """

    model: str | None = None
    prompt: str | None = field(default=None, repr=False)
    route: str | None = None
    server: str | None = None
    decoding: Decoding = field(default_factory=Decoding)
    status: int | None = None
    error: str | None = None
    accompanied: Accompanied | None = None
    queued: float = 0.0
    takeovers: int = 0
    first_byte: float | None = None
    accounting: bytes = b""
    is_stream: bool = False
    is_complete: bool = False
    client_left: bool = False
