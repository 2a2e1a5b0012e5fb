"""The page at `/specrouter/`: its files, served from memory. They hold no data; the page asks for that with a key."""

from __future__ import annotations

import hashlib
import mimetypes
from dataclasses import dataclass
from importlib import resources

from starlette.responses import RedirectResponse, Response

from specrouter.endpoints import Call, answer
from specrouter.errors import UnknownPath

INDEX = "index.html"

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

_HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    # Kept, and asked about each time: a new release must not meet half of an old page.
    "cache-control": "no-cache",
}


@dataclass(frozen=True, slots=True)
class _File:
    content: bytes
    media_type: str
    etag: str


def _read() -> dict[str, _File]:
    types = {**mimetypes.types_map, ".js": "text/javascript", ".svg": "image/svg+xml"}
    found = {}
    for entry in resources.files(__package__).joinpath("files").iterdir():
        content = entry.read_bytes()
        media_type = types["." + entry.name.rpartition(".")[2]]
        found[entry.name] = _File(content, media_type, f'"{hashlib.sha256(content).hexdigest()[:32]}"')
    return found


FILES = _read()
"""By name. Whatever else a path asks for is not there, so no path leads anywhere."""


async def show_page(call: Call) -> None:
    """`GET /specrouter/` and the files of the page. Raises UnknownPath."""
    request = call.request
    file = FILES.get(request.path_params.get("name") or INDEX)
    if file is None:
        raise UnknownPath(f"nothing is served at {request.method} {request.scope['path']}")
    headers = {**_HEADERS, "etag": file.etag}
    known = {tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")}
    if known & {file.etag, "*"}:
        await answer(call, Response(status_code=304, headers=headers))
    else:
        await answer(call, Response(file.content, headers=headers, media_type=file.media_type))


async def show_the_way(call: Call) -> None:
    """`GET /` and `GET /specrouter`: to the page. Relative, so that a proxy may serve the router below a path."""
    await answer(call, RedirectResponse("specrouter/"))
