"""A request as the log and the metrics see it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from specrouter.request_log import RequestRecord


def record(**changed: Any) -> RequestRecord:
    """A request that was drafted for and went well."""
    values: dict[str, Any] = {
        "request_id": "req-1",
        "started": datetime(2030, 5, 6, 7, 8, 9, 123456, UTC),
        "method": "POST",
        "path": "/v1/chat/completions",
        "status": 200,
        "duration": 4.1,
        "route": "chat",
        "model": "qwen-122b",
        "server": "big",
        "decoding": "inject",
        "is_stream": True,
        "first_token": 0.2149999,
        "prompt_tokens": 30,
        "cached_tokens": 20,
        "tokens": 212,
        "seconds_per_token": 0.01841,
        "draft_n": 90,
        "draft_n_accepted": 71,
        "drafted": 120,
        "primed": 300,
        "confirmed": 96,
        "drafts": 40,
        "accepted_per_position": (38, 33),
        "stood_down": 0,
    }
    return RequestRecord(**{**values, **changed})
