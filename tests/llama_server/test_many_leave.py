"""A hundred requests, eight at a time, of which a third leave somewhere: no slot of any server stays at work."""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

import httpx
import pytest
from llama_support import CHAT, ask, ask_streaming, busy_slots, chat, streaming, until

from specrouter.demo.processes import ManagedServer

NUMBER = 100


def one(router: httpx.Client, rng: random.Random) -> str:
    """One client; how it ended."""
    body = chat(f"Say {rng.randrange(1000)}.", model=rng.choice(("fast", "plain")), max_tokens=9)
    streams = rng.random() < 0.5
    if rng.random() > 1 / 3:
        answer = ask_streaming(router, CHAT, body) if streams else ask(router, CHAT, body)
        assert answer
        return "stayed"
    endless = {**body, "max_tokens": 2000, "ignore_eos": True}
    if streams:
        with streaming(router, CHAT, endless) as (_, events):
            assert list(islice(events, rng.randrange(1, 12)))
    else:
        with pytest.raises(httpx.ReadTimeout):
            router.post(CHAT, json=endless, timeout=httpx.Timeout(120, read=rng.uniform(0.001, 0.6)))
    return "left"


@pytest.mark.slow
def test_all_slots_are_idle_at_the_end(router: httpx.Client, target: ManagedServer, drafter: ManagedServer) -> None:
    with ThreadPoolExecutor(8) as threads:
        ends = list(threads.map(lambda seed: one(router, random.Random(seed)), range(NUMBER)))
    assert {"stayed", "left"} == set(ends)
    busy = {}

    def all_idle() -> bool:
        # A llama-server looks for the client of an unstreamed request only after a second without any result for
        # anybody, and an answer to `/slots` is one: who asks all the time keeps it from ever looking.
        time.sleep(2)
        busy.update({server.name: busy_slots(server) for server in (target, drafter)})
        return not any(busy.values())

    until(all_idle, seconds=30, why=lambda: busy)
    assert ask(router, CHAT, chat("Hi", max_tokens=8))["choices"]
