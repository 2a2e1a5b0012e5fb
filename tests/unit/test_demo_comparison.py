"""What the demo measures and says."""

from __future__ import annotations

import asyncio
import json

import httpx
import pytest
from rich.console import Console

from specrouter.demo.comparison import (
    PROMPTS,
    WARM_UP_PROMPT,
    Answer,
    ask,
    compare,
    difference,
    summary,
    warm_up,
)
from specrouter.errors import SetupError


def stream(text: str, **timings: int) -> bytes:
    events = [{"choices": [{"delta": {"role": "assistant", "content": None}}]}]
    events += [{"choices": [{"delta": {"content": word}}]} for word in text.split(" ")]
    events += [{"choices": [], "usage": {"completion_tokens": 5}, "timings": {"predicted_n": 5, **timings}}]
    lines = "".join(f"data: {json.dumps(event)}\n\n" for event in events)
    return (": a comment\n\n" + lines + "data: [DONE]\n\n").encode()


def client(handler) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.MockTransport(handler), base_url="http://router")


def router(request: httpx.Request) -> httpx.Response:
    if json.loads(request.content)["model"] == "demo":
        return httpx.Response(
            200,
            content=stream("a [b]", draft_n=8, draft_n_accepted=6),
            headers={"x-specrouter-decoding": "inject"},
        )
    return httpx.Response(200, content=stream("a [b]"), headers={"x-specrouter-decoding": "plain; draft none"})


def test_answer_is_read_and_shown_as_it_is():
    console = Console(record=True, width=80, file=None, quiet=False)
    answer = asyncio.run(ask(client(router), "demo", "Hello", 8, console))
    assert (answer.text, answer.tokens, answer.drafted, answer.accepted) == ("a[b]", 5, 8, 6)
    assert answer.decoding == "inject"
    assert console.export_text() == "a[b]\n"


@pytest.mark.parametrize(
    ("response", "problem"),
    [
        (httpx.Response(502, content=b"no target"), "the route demo answered 502: no target"),
        (
            httpx.Response(200, content=b'data: {"error": {"message": "gone"}}\n\n'),
            "ended its answer with an error: .*gone",
        ),
    ],
)
def test_answer_that_is_an_error(response, problem):
    with pytest.raises(SetupError, match=problem):
        asyncio.run(ask(client(lambda _: response), "demo", "Hello", 8, None))


def test_connection_that_breaks():
    def broken(_):
        raise httpx.ReadError("reset")

    with pytest.raises(SetupError, match=r"the answer of the route demo broke off: ReadError"):
        asyncio.run(ask(client(broken), "demo", "Hello", 8, None))


def test_warm_up_ends_when_drafts_are_injected():
    decodings = iter(["plain; not tried yet", "inject; remote"])
    prompts = []

    def handler(request):
        prompts.append(json.loads(request.content)["messages"][0]["content"])
        return httpx.Response(200, content=stream("a"), headers={"x-specrouter-decoding": next(decodings)})

    assert asyncio.run(warm_up(client(handler), "demo", wait=30)) == "inject; remote"
    assert prompts == [WARM_UP_PROMPT] * 2
    assert WARM_UP_PROMPT not in PROMPTS


def test_warm_up_gives_up_with_the_last_reason():
    def handler(_):
        return httpx.Response(200, content=stream("a"), headers={"x-specrouter-decoding": "plain; flags are missing"})

    assert asyncio.run(warm_up(client(handler), "demo", wait=0)) == "plain; flags are missing"


def test_comparison_asks_both_routes_every_prompt():
    console = Console(record=True, width=80)
    pairs = asyncio.run(compare(client(router), "demo-plain", "demo", 8, console))
    assert [(plain.drafted, drafted.drafted) for plain, drafted in pairs] == [(0, 8)] * len(PROMPTS)
    assert console.export_text().count("The texts are equal.") == len(PROMPTS)


def test_difference_says_where_texts_part():
    assert difference("same", "same") == "The texts are equal."
    assert difference("the cat", "the dog").startswith(
        "The texts are equal up to character 4; alone 'cat', with drafts 'dog'."
    )
    assert difference("the", "the dog").startswith(
        "The texts are equal up to character 3; alone '', with drafts ' dog'."
    )


def test_summary_has_speeds_acceptance_and_equality():
    plain, same = Answer("x", 10, 2.0, 0, 0, "plain"), Answer("x", 10, 1.0, 8, 6, "inject")
    other = Answer("y", 10, 1.0, 0, 0, "plain")
    console = Console(record=True, width=120)
    console.print(summary([(plain, same), (plain, other)]))
    rows = [
        [cell.strip() for cell in line.split("│")[1:-1]] for line in console.export_text().splitlines() if "│" in line
    ]
    assert rows == [
        ["1", "5.0 tok/s", "10.0 tok/s", "x2.00", "6 of 8 (75%)", "equal"],
        ["2", "5.0 tok/s", "10.0 tok/s", "x2.00", "no drafts", "differs"],
        ["all", "5.0 tok/s", "10.0 tok/s", "x2.00", "6 of 8 (75%)", "1 of 2 equal"],
    ]
