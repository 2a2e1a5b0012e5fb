"""Routes with stepwise verification: the target's own answers, whatever is drafted and whoever dies."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import anyio
import httpx
import pytest
from http_support import ANSWER, Held, StartFake, StartRouter, is_being_tried_out, until

from specrouter.checking import examine
from specrouter.config import load_topology
from specrouter.drafting import close_drafter
from specrouter.interfaces import Drafter
from specrouter.testing import Exchange, FakeServer, NgramPool, ToyModel, hang, reset, respond_with
from specrouter.types import DraftToken

pytestmark = pytest.mark.anyio

CHAT = "/v1/chat/completions"
PATHS = [CHAT, "/v1/completions", "/completion"]

SAYS = ANSWER + " 漢字 👩‍👩‍👧 end."

FANOUT = {"use": "fanout", "options": {"stand_down": False}}
REMOTE = {"use": "remote", "options": {"server": "laptop"}}

VARYING = {"id", "created", "timings", "cached_tokens", "id_slot", "tokens_cached"}
"""What differs between two answers of one server."""


def body_for(path: str, **fields: Any) -> dict[str, Any]:
    prompt: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]} if path == CHAT else {"prompt": "hi"}
    return {"model": "fast", **prompt, "temperature": 0, **fields}


def routes_for(*targets: str, verify: object = FANOUT, draft: object = REMOTE) -> dict[str, Any]:
    return {
        "fast": {"target": list(targets or ("big",)), "draft": draft, "verify": verify},
        "plain": {"target": (targets or ("big",))[0]},
    }


async def decoding(client: httpx.AsyncClient, **fields: Any) -> str:
    response = await client.post("/completion", json=body_for("/completion", n_predict=8, **fields))
    return response.headers.get("x-specrouter-decoding", "")


async def until_decoding(client: httpx.AsyncClient, wanted: str) -> None:
    found = ""
    with anyio.move_on_after(40):
        while await is_being_tried_out(client) or not (found := await decoding(client)).startswith(wanted):
            await anyio.sleep(0.1)
        return
    pytest.fail(f"{wanted!r} expected, the last answer said {found!r}")


class Fan:
    """A target without a pool, a drafter, and a client of a router whose route `fast` verifies stepwise."""

    def __init__(self, target: FakeServer, drafter: FakeServer, client: httpx.AsyncClient) -> None:
        self.target = target
        self.drafter = drafter
        self.client = client

    async def post(self, path: str, **fields: Any) -> httpx.Response:
        return await self.client.post(path, json=body_for(path, **fields))


@pytest.fixture
async def fan(fake: StartFake, router: StartRouter) -> Fan:
    target, drafter = await fake(SAYS), await fake(SAYS)
    client = await router({"big": target, "laptop": drafter}, routes_for())
    await until_decoding(client, "fanout")
    return Fan(target, drafter, client)


def events(response: httpx.Response) -> list[Any]:
    data = [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: ")]
    return [json.loads(item) if item != "[DONE]" else item for item in data]


def shape(value: object) -> object:
    """A value without what differs between two answers."""
    if isinstance(value, dict):
        return {key: shape(item) for key, item in value.items() if key not in VARYING}
    return [shape(item) for item in value] if isinstance(value, list) else value


UNKNOWN_TO_FAKES = {"draft_n", "draft_n_accepted"}


def members(value: object) -> object:
    """The keys of all objects in a value, as far as fakes have them."""
    if isinstance(value, dict):
        return {key: members(item) for key, item in value.items() if key not in UNKNOWN_TO_FAKES}
    return [members(item) for item in value] if isinstance(value, list) else None


# -- the target's own answers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("fields", [{"max_tokens": 12}, {}, {"stop": [" tuda"]}], ids=["limit", "end", "stop"])
@pytest.mark.parametrize("path", PATHS)
async def test_unstreamed(fan: Fan, path: str, fields: dict[str, Any]) -> None:
    drafted, plain = [await fan.post(path, model=model, **fields) for model in ("fast", "plain")]
    assert drafted.headers["x-specrouter-decoding"] == "fanout"
    assert drafted.headers["content-type"] == plain.headers["content-type"]
    assert members(drafted.json()) == members(plain.json())
    ours, theirs = drafted.json(), plain.json()
    if "max_tokens" not in fields:
        # The fake does not count the token that ends its text, and shows stop strings.
        for answer in (ours, theirs):
            for key in ("usage", "tokens_predicted", "generation_settings", "stop_type", "stopping_word"):
                answer.pop(key, None)
    text = json.dumps(shape(theirs)).replace(" tuda", "") if "stop" in fields else json.dumps(shape(theirs))
    assert json.dumps(shape({**ours, "model": "plain"})) == text


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("usage", [False, True])
async def test_streamed(fan: Fan, path: str, usage: bool) -> None:
    fields = {"max_tokens": 22, "stream": True, **({"stream_options": {"include_usage": True}} if usage else {})}
    drafted, plain = [events(await fan.post(path, model=model, **fields)) for model in ("fast", "plain")]
    for event in drafted:
        if "model" in event:
            event["model"] = "plain"
    assert [shape(event) for event in drafted] == [shape(event) for event in plain]
    assert [members(event) for event in drafted] == [members(event) for event in plain]


async def test_what_was_drafted_is_in_the_answer(fan: Fan) -> None:
    fan.target.step_seconds = 0.1
    timings = (await fan.post(CHAT, max_tokens=18)).json()["timings"]
    assert 0 < timings["draft_n_accepted"] <= timings["draft_n"]
    assert timings["predicted_n"] == 18


@pytest.mark.parametrize("mistakes", [range(0, 99, 2), range(99), range(5, 99)])
async def test_bad_drafts_change_nothing(fan: Fan, mistakes: range) -> None:
    fan.target.step_seconds = 0.02
    fan.drafter.model = ToyModel(SAYS, mistakes=mistakes)
    response = await fan.post(CHAT)
    assert response.headers["x-specrouter-decoding"] == "fanout"
    assert response.json()["choices"][0]["message"]["content"] == SAYS


async def test_a_prompt_of_token_ids(fan: Fan) -> None:
    response = await fan.post("/completion", prompt=[256, 300, 301], max_tokens=8)
    assert response.headers["x-specrouter-decoding"] == "fanout"
    assert response.json()["content"] == "".join(f" {word}" for word in ANSWER.split()[:8])
    asked = [request.json["prompt"] for request in fan.target.received("/completion")]
    # No second BOS.
    assert [256, 300, 301] in asked


# -- what is not covered -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"grammar": "root ::= [a-z]+"}, "fanout does not cover the field grammar"),
        ({"json_schema": {}}, "fanout does not cover the field json_schema"),
        ({"response_format": {"type": "json_object"}}, "fanout does not cover the field response_format"),
        ({"tools": [{"type": "function"}]}, "fanout does not cover the field tools"),
        ({"mirostat": 2}, "fanout does not cover the field mirostat"),
        ({"samplers": ["top_k", "adaptive_p"]}, "fanout does not cover the sampler adaptive_p"),
        ({"samplers": "kta"}, "fanout does not cover the sampler adaptive_p"),
        ({"cache_prompt": False}, "fanout does not cover the field cache_prompt"),
        ({"lora": []}, "fanout does not cover the field lora"),
        ({"id_slot": 1}, "fanout does not cover the field id_slot"),
        ({"invented": 1}, "fanout does not cover the field invented"),
        ({"stop": {"x": 1}}, "a stop that is no text"),
        ({"n": 2}, "several answers wanted"),
        ({"logprobs": True}, "token probabilities wanted"),
        ({"max_tokens": 3}, "only 3 tokens wanted"),
        ({"return_tokens": True}, "return_tokens without stream"),
    ],
)
async def test_what_is_left_to_the_target(fan: Fan, fields: dict[str, Any], reason: str) -> None:
    response = await fan.post(CHAT, **{"max_tokens": 8, **fields})
    assert response.headers["x-specrouter-decoding"] == f"plain; reason={reason}"


async def test_the_first_token_does_not_wait_for_the_prompt_s_text(fan: Fan) -> None:
    before = len(fan.target.requests)
    response = await fan.post("/completion", n_predict=8)
    assert response.json()["prompt"] == "<s>hi"
    paths = [request.path for request in fan.target.requests[before:]]
    prompts = [request.json["tokens"] for request in fan.target.requests[before:] if request.path == "/detokenize"]
    assert paths.index("/completion") < paths.index("/detokenize")
    assert prompts[-1] == [256, *fan.target.model.vocabulary.tokenize("hi")]


async def test_a_target_that_refuses_to_say_parts_of_characters(fake: StartFake, router: StartRouter) -> None:
    """What it drew would be drawn again, and such characters would come up too rarely."""
    target = await fake(SAYS)

    async def whole(exchange: Exchange) -> None:
        body = exchange.request.json
        forced = [token for token, _ in body.get("logit_bias") or ()]
        refuses = body.get("n_predict") == 1 and any(token < 256 for token in forced)
        await (respond_with({"error": {"code": 500}}, 500) if refuses else target.unscripted(exchange))(exchange)

    target.replies["/completion"] = whole
    client = await router({"big": target, "laptop": await fake(SAYS)}, routes_for())
    await until_decoding(client, "fanout")
    reason = "plain; reason=fanout does not cover sampling on a server that refuses to say a part of a character"
    assert await decoding(client, temperature=0.7) == reason
    assert await decoding(client, temperature=None, seed=7) == reason


async def test_a_path_on_which_the_target_refuses_is_no_obstacle_to_the_others(
    fake: StartFake, router: StartRouter
) -> None:
    target = await fake(SAYS)
    target.replies[CHAT] = respond_with({"error": {"code": 400, "message": "no such roles"}}, 400)
    client = await router({"big": target, "laptop": await fake(SAYS)}, routes_for())
    await until_decoding(client, "fanout")
    del target.replies[CHAT]
    response = await client.post(CHAT, json=body_for(CHAT))
    assert response.headers["x-specrouter-decoding"] == f"plain; reason=server big refused a simple request to {CHAT}"


async def test_a_drafter_that_does_not_let_go_holds_nobody_up() -> None:
    class Holding(Drafter):
        async def draft(self, context: Sequence[int], max_tokens: int) -> AsyncGenerator[DraftToken]:
            yield DraftToken(1, b"")

        async def aclose(self) -> None:
            await anyio.sleep_forever()

    with anyio.fail_after(10):
        await close_drafter(Holding())


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [], "tool_choice": "auto", "response_format": {"type": "text"}, "grammar": "", "mirostat": 0},
        {"temperature": 0.7, "top_p": 0.9, "min_p": 0.1, "seed": 7, "logit_bias": {"300": -1}, "user": "me"},
        {"cache_prompt": True, "json_schema": None, "n": 1, "logprobs": False, "stop": "x", "max_tokens": 8.0},
    ],
)
async def test_what_says_nothing_or_can_be_passed_on(fan: Fan, fields: dict[str, Any]) -> None:
    fields = {"max_tokens": 8, **fields}
    fan.target.replies["/completion"] = without_bias = _Unbiased(fan.target)
    response = await fan.post(CHAT, **fields)
    assert response.headers["x-specrouter-decoding"] == "fanout"
    passed_on = [key for key in ("temperature", "top_p", "min_p", "logit_bias") if key in fields]
    assert without_bias.bodies
    for body in without_bias.bodies:
        assert {key: body[key] for key in passed_on} == {key: fields[key] for key in passed_on}
        assert body["cache_prompt"] is True


class _Unbiased:
    """Notes bodies; the fake takes every bias for a token it is forced to say."""

    def __init__(self, server: FakeServer) -> None:
        self.server = server
        self.bodies: list[dict[str, Any]] = []

    async def __call__(self, exchange: Exchange) -> None:
        body = exchange.request.json
        self.bodies.append(body)
        exchange.request.body = json.dumps({key: value for key, value in body.items() if key != "logit_bias"}).encode()
        await self.server.unscripted(exchange)(exchange)


async def test_with_a_seed_every_position_has_its_own(fan: Fan) -> None:
    fan.target.step_seconds = 0.05
    before = len(fan.target.received("/completion"))
    response = await fan.post(CHAT, temperature=1, seed=7, max_tokens=12)
    assert response.headers["x-specrouter-decoding"] == "fanout"
    asked = [request.json for request in fan.target.received("/completion")[before:]]
    seeds = {(len(body["prompt"]), body["seed"]) for body in asked}
    assert all(isinstance(body["prompt"][0], int) for body in asked)
    assert len({seed for _, seed in seeds}) == len({length for length, _ in seeds}) == len(seeds)


async def test_models_that_reason(fake: StartFake, router: StartRouter) -> None:
    target = await fake(SAYS)
    target.chat_template = "{% if enable_thinking %}<think>{% endif %}"
    client = await router({"big": target, "laptop": await fake(SAYS)}, routes_for())
    await until_decoding(client, "fanout")
    response = await client.post(CHAT, json=body_for(CHAT, max_tokens=8))
    reason = "plain; reason=fanout does not cover chats with models that reason"
    assert response.headers["x-specrouter-decoding"] == reason


async def test_an_empty_prompt(fan: Fan) -> None:
    for prompt in ("", []):
        fan.target.replies["/tokenize"] = respond_with({"tokens": []})
        response = await fan.post("/completion", prompt=prompt, max_tokens=8)
        assert response.headers["x-specrouter-decoding"] == "plain; reason=an empty prompt"


# -- what fails ----------------------------------------------------------------------------------------------------


async def test_the_target_s_own_words_for_what_is_wrong(fan: Fan) -> None:
    """Nothing was said yet: it gets the request as it is."""
    error = {"error": {"code": 400, "message": "temperature must be a number", "type": "invalid_request_error"}}

    async def strict(exchange: Exchange) -> None:
        body = exchange.request.json
        reply = respond_with(error, 400) if body.get("temperature") == "hot" else fan.target.unscripted(exchange)
        await reply(exchange)

    fan.target.replies[CHAT] = fan.target.replies["/completion"] = strict
    for stream in (False, True):
        response = await fan.post(CHAT, temperature="hot", stream=stream)
        assert (response.status_code, response.json()) == (400, error)
        assert "temperature must be a number" in response.headers["x-specrouter-decoding"]


async def test_a_target_that_loads_its_model_is_waited_for(fan: Fan) -> None:
    fan.target.loading = True
    answers: list[httpx.Response] = []

    async def ask() -> None:
        answers.append(await fan.post(CHAT, max_tokens=8))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask)
        asked = len(fan.target.received("/health"))
        await until(lambda: len(fan.target.received("/health")) > asked + 1, seconds=10)
        fan.target.loading = False
    assert answers[0].status_code == 200
    assert answers[0].json()["usage"]["completion_tokens"] == 8


@pytest.mark.parametrize("stream", [False, True])
async def test_a_target_that_dies_before_it_says_anything(fake: StartFake, router: StartRouter, stream: bool) -> None:
    first, second = await fake(SAYS), await fake(SAYS)
    servers = {"big": first, "other": second, "laptop": await fake(SAYS)}
    client = await router(servers, routes_for("big", "other"))
    await until_decoding(client, "fanout")
    first.replies["/completion"] = reset
    response = await client.post("/completion", json=body_for("/completion", stream=stream))
    text = "".join(event["content"] for event in events(response)) if stream else response.json()["content"]
    assert text == SAYS


@pytest.mark.parametrize("stream", [False, True])
async def test_a_target_that_dies_within_its_answer(fan: Fan, stream: bool) -> None:
    rounds = 0

    async def dying(exchange: Exchange) -> None:
        nonlocal rounds
        rounds += 1
        reply = reset if rounds > 2 else fan.target.unscripted(exchange)
        await reply(exchange)

    fan.target.replies["/completion"] = dying
    response = await fan.post(CHAT, stream=stream)
    if stream:
        assert response.headers["x-specrouter-decoding"] == "fanout"
        said = events(response)
        assert said[-1]["error"]["code"] == "upstream_unavailable"
        assert "[DONE]" not in said
    else:
        assert response.status_code == 502


@pytest.mark.parametrize(("limit", "said"), [("first_byte_timeout", 0), ("idle_timeout", 1)])
async def test_a_target_that_hangs(fake: StartFake, router: StartRouter, limit: str, said: int) -> None:
    target = await fake(SAYS)
    servers = {"big": {"url": target.url, limit: 1}, "laptop": await fake(SAYS)}
    client = await router(servers, routes_for())
    await until_decoding(client, "fanout")
    rounds = 0

    async def hanging(exchange: Exchange) -> None:
        nonlocal rounds
        rounds += 1
        reply = hang if rounds > said else target.unscripted(exchange)
        await reply(exchange)

    target.replies["/completion"] = hanging
    response = await client.post(CHAT, json=body_for(CHAT, stream=True))
    error = events(response)[-1]["error"] if said else response.json()["error"]
    assert error["code"] == "upstream_timeout"


async def test_a_client_that_leaves(fan: Fan) -> None:
    held = anyio.Event()

    async def holding(exchange: Exchange) -> None:
        if len(exchange.request.json["prompt"]) > 1 and held.is_set():
            await anyio.sleep_forever()
        held.set()
        await fan.target.unscripted(exchange)(exchange)

    fan.target.replies["/completion"] = holding
    async with fan.client.stream("POST", CHAT, json=body_for(CHAT, stream=True)) as response:
        # Kept: with the iterator, the client would leave.
        lines = response.aiter_lines()
        await anext(lines)
        await until(lambda: fan.target.running == 1, seconds=10)
    await until(lambda: fan.target.running == fan.drafter.running == 0, seconds=10)


@pytest.mark.parametrize("reply", [reset, hang, respond_with({"what": 1}), respond_with({"error": {}}, 500)])
async def test_a_drafter_that_fails(fan: Fan, reply: Any) -> None:
    fan.drafter.replies["/completion"] = reply
    for stream in (False, True):
        response = await fan.post(CHAT, stream=stream)
        assert response.headers["x-specrouter-decoding"] == "fanout"
        if stream:
            deltas = [event["choices"][0]["delta"] for event in events(response)[:-1] if event["choices"]]
            assert "".join(delta.get("content") or "" for delta in deltas) == SAYS
        else:
            assert response.json()["choices"][0]["message"]["content"] == SAYS


async def test_a_drafter_that_dies_within_an_answer(fan: Fan) -> None:
    fan.target.step_seconds = 0.05
    held = Held(fan.drafter)
    answers: list[httpx.Response] = []

    async def ask() -> None:
        answers.append(await fan.post(CHAT))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask)
        await held.reached.wait()
        fan.drafter.stop()
    assert answers[0].json()["choices"][0]["message"]["content"] == SAYS


# -- which verifier ------------------------------------------------------------------------------------------------


async def test_auto_takes_injection_first(fake: StartFake, router: StartRouter) -> None:
    target = await fake(SAYS, pool=NgramPool())
    client = await router({"big": target, "laptop": await fake(SAYS)}, routes_for(verify="auto"))
    await until_decoding(client, "inject")


async def test_auto_takes_fanout_where_it_can_pay(fake: StartFake, router: StartRouter) -> None:
    target = await fake(SAYS)
    target.step_seconds = 0.1
    client = await router({"big": target, "laptop": await fake(SAYS)}, routes_for(verify="auto"))
    await until_decoding(client, "fanout")


async def test_auto_takes_nothing_that_cannot_pay(fake: StartFake, router: StartRouter) -> None:
    target = await fake(SAYS)
    target.step_seconds = target.batch_seconds = 0.05
    client = await router({"big": target, "laptop": await fake(SAYS)}, routes_for(verify="auto"))
    await until_decoding(client, "plain; reason=inject: server big has no n-gram pool")
    reason = await decoding(client)
    assert "; fanout: even with drafts that are all accepted, only x" in reason


async def report(tmp_path: Any, target: FakeServer, drafter: FakeServer) -> Any:
    file = tmp_path / "checked.yaml"
    servers = {"big": {"url": target.url}, "laptop": {"url": drafter.url}}
    file.write_text(json.dumps({"version": 1, "servers": servers, "routes": routes_for()}), encoding="utf-8")
    found = await examine(load_topology(file))
    return found.routes[0].pairs[0]


async def test_what_check_says(fake: StartFake, tmp_path: Any) -> None:
    pair = await report(tmp_path, await fake(SAYS), await fake(SAYS))
    assert (pair.obstacle, pair.verifier) == (None, "fanout")
    assert set(pair.details) == {"longest_draft", "plain_ms", "longest_round_ms", "best_speed"}
    assert pair.details["longest_draft"] == 3


async def test_one_error_is_no_verdict(fake: StartFake, tmp_path: Any) -> None:
    """Some builds answer with an error where random text makes them end within a character."""
    target = await fake(SAYS)

    async def once(exchange: Exchange) -> None:
        del target.replies["/completion"]
        await respond_with({"error": {"message": "no such output", "code": 500}}, 500)(exchange)

    target.replies["/completion"] = once
    pair = await report(tmp_path, target, await fake(SAYS))
    assert (pair.obstacle, pair.verifier) == (None, "fanout")


async def test_slots_that_forget(fake: StartFake, tmp_path: Any) -> None:
    target = await fake(SAYS)
    target.forgetful = True
    pair = await report(tmp_path, target, await fake(SAYS))
    assert pair.obstacle == "fanout: server big forgets in its slots what it has evaluated"
    assert pair.advice == (
        "start it with -np 4 (slots share the context: make -c four times as large) or --no-cache-idle-slots"
    )


async def test_one_slot(fake: StartFake, tmp_path: Any) -> None:
    pair = await report(tmp_path, await fake(SAYS, slots=1), await fake(SAYS))
    assert pair.obstacle == "fanout: server big has one slot, every position of a draft needs one"
    assert pair.advice == "start it with -np 4 (slots share the context: make -c four times as large)"


@pytest.mark.parametrize(
    ("settings", "obstacle"),
    [
        ({"mirostat": 2}, "samples with mirostat by default"),
        ({"samplers": ["adaptive_p"]}, "samples with the sampler adaptive_p by default"),
        ({"n_predict": 100}, "was started with -n, which single tokens do not show"),
        ({"stop": ["User:"]}, "was started with -r, which single tokens do not show"),
        ({"grammar": "root ::= x"}, "was started with --grammar, which single tokens do not show"),
    ],
)
async def test_settings_of_the_server_s_own(
    fake: StartFake, tmp_path: Any, settings: dict[str, Any], obstacle: str
) -> None:
    target = await fake(SAYS)

    async def own(exchange: Exchange) -> None:
        body = exchange.request.json
        added = {key: value for key, value in settings.items() if key not in body}
        answered = {"content": "", "stop": True, "stop_type": "limit", "timings": {"predicted_ms": 7.0}}
        answered |= {"generation_settings": {"n_predict": -1, "stop": [], **added}}
        await exchange.start_stream()
        await exchange.send_event(answered)
        await exchange.end_stream()

    target.replies["/completion"] = own
    pair = await report(tmp_path, target, await fake(SAYS))
    assert pair.obstacle == f"fanout: server big {obstacle}"
