"""Ways in which a llama-server can fail, as answers of a fake."""

from __future__ import annotations

from collections.abc import Mapping

from specrouter.testing.fake_http import Exchange, Reply, reset, respond_with
from specrouter.testing.fake_server import LOADING


async def _breaks_off(exchange: Exchange) -> None:
    await exchange.start_stream()
    await exchange.send_event({"content": " bada", "tokens": [264], "tokens_predicted": 1, "stop": False})
    exchange.end_connection()


async def _says_nothing(exchange: Exchange) -> None:
    await exchange.start_stream()
    await exchange.end_stream()


FAULTS: Mapping[str, Reply] = {
    "resets the connection": reset,
    "loads its model": respond_with(LOADING, 503),
    "answers 500": respond_with({"error": {"code": 500, "message": "out of memory", "type": "server_error"}}, 500),
    "answers with HTML": respond_with(b"<html>hello</html>", headers={"Content-Type": "text/html"}),
    "answers with an empty object": respond_with({}),
    "breaks off its answer": _breaks_off,
    "says nothing": _says_nothing,
}
"""What a server does → the reply to every request."""
