"""What a server's answers of one token say."""

from __future__ import annotations

from typing import Any

import pytest

from specrouter.config import ServerConfig
from specrouter.errors import UpstreamUnavailable
from specrouter.next_token import next_tokens
from specrouter.upstream import LlamaServer

pytestmark = pytest.mark.anyio


class Answering(LlamaServer):
    """Answers every question with `answer` and notes it."""

    def __init__(self, answer: object) -> None:
        super().__init__(ServerConfig("big", "http://127.0.0.1:1"))
        self.answer = answer
        self.asked: list[Any] = []

    async def call(self, method: str, path: str, body: object = None, *, timeout: float | None = None) -> Any:
        self.asked.append(body)
        return self.answer


def answer(token: int, content: str, **members: Any) -> dict[str, Any]:
    timings = {"prompt_n": 2, "cache_n": 7}
    return {"index": 0, "content": content, "tokens": [token], "stop_type": "limit", "timings": timings, **members}


def entry(token: int, piece: bytes, share: float) -> dict[str, Any]:
    return {"id": token, "bytes": list(piece), "prob": share}


async def test_several_prompts_are_answered_in_any_order() -> None:
    server = Answering([{**answer(7, "x"), "index": 1}, {**answer(5, " y", stop_type="eos"), "index": 0}])
    first, second = await next_tokens(server, [[1], [1, 2]], {"temperature": 0})
    assert (first.token, first.ends, first.pieces, first.evaluated, first.cached) == (5, True, {5: b" y"}, 2, 7)
    assert (second.token, second.ends, second.distribution) == (7, False, None)
    assert server.asked[0]["prompt"] == [[1], [1, 2]]
    assert server.asked[0]["n_predict"] == 1


async def test_a_part_of_a_character_has_no_piece() -> None:
    server = Answering(answer(5, " \ufffd"))
    [chosen] = await next_tokens(server, [[1]], {})
    assert chosen.pieces == {}
    assert server.asked[0]["prompt"] == [1]


async def test_a_server_that_goes_on_to_the_end_of_a_character() -> None:
    [chosen] = await next_tokens(Answering({**answer(5, "漢"), "tokens": [5, 6, 7]}), [[1]], {})
    assert (chosen.token, chosen.pieces) == (5, {})


@pytest.mark.parametrize(
    ("other", "distribution"),
    [
        (b"z", {5: 0.75, 6: 0.25}),
        # If a part of a character had been chosen, none would be shown: it must not be used then either.
        (b"\xe6", None),
        (b" \xf0\x9f", None),
    ],
)
async def test_distributions(other: bytes, distribution: dict[int, float] | None) -> None:
    top = [entry(5, b"y", 0.75), entry(6, other, 0.25)]
    server = Answering(answer(5, "y", completion_probabilities=[{**top[0], "top_probs": top}]))
    [chosen] = await next_tokens(server, [[1]], {}, top=9)
    assert chosen.distribution == distribution
    assert chosen.pieces == {5: b"y", 6: other}
    assert (server.asked[0]["n_probs"], server.asked[0]["post_sampling_probs"]) == (9, True)


@pytest.mark.parametrize(
    "nonsense",
    [[], "x", {}, {"tokens": [], "content": ""}, {"tokens": ["x"], "content": ""}, [answer(5, "y")] * 2, None],
)
async def test_nonsense(nonsense: object) -> None:
    with pytest.raises(UpstreamUnavailable, match="server 'big': an answer makes no sense"):
        await next_tokens(Answering(nonsense), [[1]], {})
