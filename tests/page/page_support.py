"""What the tests of the page say again and again."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import httpx
from anyio.from_thread import BlockingPortal

from specrouter.testing import FakeServer

ANSWER = (
    "".join(f" {first}{second}" for first in ("ba", "ko", "mi", "tu", "ze", "ra") for second in ("da", "fo", "li")) * 2
)
"""36 words, each of them one token."""


@dataclass
class Site:
    """A target that verifies drafts and a draft server that is always right, and what to do with them.

    `serve` starts the router and returns the address of its page; `end` stops it.
    """

    portal: BlockingPortal
    target: FakeServer
    drafter: FakeServer
    fake: Callable[..., FakeServer]
    serve: Callable[..., str]
    end: Callable[[], None]

    def serve_pair(self, **listen: Any) -> str:
        """A route that drafts, and a plain one."""
        draft = {"use": "remote", "options": {"server": "laptop"}}
        routes = {"chat": {"target": "big", "draft": draft, "verify": "inject"}, "chat-plain": {"target": "big"}}
        return self.serve({"big": self.target, "laptop": self.drafter}, routes, **listen)

    def stop(self, server: FakeServer) -> None:
        """Let a server die."""
        self.portal.call(server.stop)


def status_of(url: str, key: str | None = None) -> dict[str, Any]:
    """What the router says of itself."""
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    response = httpx.get(f"{url}status", headers=headers, trust_env=False, timeout=20)
    response.raise_for_status()
    found: dict[str, Any] = response.json()
    return found


def until_drafting(url: str) -> None:
    """Wait until the first route drafts."""
    give_up = time.monotonic() + 60
    while (draft := first_draft(status_of(url)))["obstacle"] or draft["pairs"][0]["obstacle"]:
        assert time.monotonic() < give_up, draft
        time.sleep(0.05)


def first_draft(status: Mapping[str, Any]) -> dict[str, Any]:
    """What is said of the drafts of the first route."""
    draft: dict[str, Any] = status["routes"][0]["draft"]
    return draft
