"""Recognises what is no llama-server but may well stand at an address that somebody took for one."""

from __future__ import annotations

import contextlib
from typing import Any

import anyio

from specrouter.errors import UpstreamError
from specrouter.upstream import LlamaServer

_SECONDS = 5.0

_OWNERS = {
    "specrouter": "is a specrouter itself (give the addresses of the llama-servers behind it)",
    "vllm": "is a vLLM server (specrouter works with llama-servers)",
    "sglang": "is an SGLang server (specrouter works with llama-servers)",
    "library": "is Ollama (specrouter works with llama-servers: start llama-server with the same GGUF file)",
}
"""What `owned_by` in a list of models says, in words for people."""


async def who_is_it(server: LlamaServer) -> str | None:
    """What answers there, None where it is nothing that we know."""
    models = await _asked(server, "/v1/models")
    entries = models.get("data") if isinstance(models, dict) else None
    if isinstance(entries, list):
        owners = {str(entry.get("owned_by")) for entry in entries if isinstance(entry, dict)}
        for owner, words in _OWNERS.items():
            if owner in owners:
                return words
    props = await _asked(server, "/props")
    if isinstance(props, dict) and props.get("role") == "router":
        return "is a llama-server that starts others (give the address of a llama-server with one model, started by -m)"
    version = await _asked(server, "/api/version")
    if isinstance(version, dict) and "version" in version:
        return _OWNERS["library"]
    return None


async def _asked(server: LlamaServer, path: str) -> Any:
    """The answer to a small question, None where there is none."""
    # The time-out is for pauses, the other limit for answers without an end.
    with anyio.move_on_after(2 * _SECONDS), contextlib.suppress(UpstreamError):
        return await server.call("GET", path, timeout=_SECONDS)
    return None
