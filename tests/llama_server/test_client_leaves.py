"""A client that leaves stops the work on all servers: within two seconds, on a machine that has nothing else to do."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import pytest
from llama_support import CHAT, COMPLETION, busy_slots, chat, streaming, until

from specrouter.demo.processes import ManagedServer

LONG_ANSWER = {"max_tokens": 1000, "ignore_eos": True}


def leave_mid_stream(router: httpx.Client, target: ManagedServer) -> None:
    body = chat("Count the stars.", **LONG_ANSWER)
    with streaming(router, CHAT, body) as (_, events):
        for _ in range(20):
            next(events)
        assert busy_slots(target) > 0


def leave_unstreamed(router: httpx.Client, target: ManagedServer) -> None:
    with pytest.raises(httpx.ReadTimeout):
        router.post(CHAT, json=chat("Count the clouds.", **LONG_ANSWER), timeout=1)


def leave_during_prompt_evaluation(stream: bool) -> Callable[[httpx.Client, ManagedServer], None]:
    def leave(router: httpx.Client, target: ManagedServer) -> None:
        # A server finishes the evaluation of a prompt in any case; this one takes it about a second.
        prompt = " ".join(f"{number} bottles" for number in range(100 + stream, 170))
        body = {"model": "fast", "prompt": prompt, "stream": stream, "n_predict": 1000, "ignore_eos": True}
        with pytest.raises(httpx.ReadTimeout):
            router.post(COMPLETION, json=body, timeout=0.3)
        assert busy_slots(target) > 0

    return leave


@pytest.mark.parametrize(
    "leave",
    [
        pytest.param(leave_mid_stream, id="mid stream"),
        pytest.param(leave_unstreamed, id="unstreamed"),
        pytest.param(leave_during_prompt_evaluation(stream=True), id="prompt of a stream"),
        pytest.param(leave_during_prompt_evaluation(stream=False), id="prompt unstreamed"),
    ],
)
def test_all_slots_are_idle_soon(
    router: httpx.Client,
    target: ManagedServer,
    drafter: ManagedServer,
    leave: Callable[[httpx.Client, ManagedServer], None],
) -> None:
    leave(router, target)
    for server in (target, drafter):
        until(lambda server=server: busy_slots(server) == 0, seconds=15)  # type: ignore[misc]
