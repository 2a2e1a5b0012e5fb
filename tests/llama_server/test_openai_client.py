"""The `openai` package, unmodified, through a drafting route."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import openai
import pytest
from llama_support import StartRouter, chat, drafting, until_decoding

from specrouter.demo.processes import ManagedServer

KEY = "sesame"


@pytest.fixture(scope="module")
def locked_router(start_router: StartRouter, target: ManagedServer, drafter: ManagedServer) -> httpx.Client:
    """A router that wants a key."""
    client = start_router({"big": target, "laptop": drafter}, {"fast": drafting(aliases=["gpt"])}, api_keys=[KEY])
    client.headers["authorization"] = f"Bearer {KEY}"
    until_decoding(client, "inject")
    return client


@pytest.fixture
def base_url(locked_router: httpx.Client) -> str:
    """What users give to the package."""
    return f"{locked_router.base_url}/v1"


@pytest.fixture
def client(base_url: str) -> Iterator[openai.OpenAI]:
    """The package's client with the right key."""
    with openai.OpenAI(base_url=base_url, api_key=KEY, max_retries=0) as client:
        yield client


MESSAGES = chat("Name three rivers.")["messages"]


def test_stream_adds_up_to_the_whole_answer(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model="fast", messages=MESSAGES, temperature=0, max_tokens=32)
    said, finish_reasons, usages = "", [], []
    with client.chat.completions.create(
        model="fast",
        messages=MESSAGES,
        temperature=0,
        max_tokens=32,
        stream=True,
        stream_options={"include_usage": True},
    ) as stream:
        for chunk in stream:
            assert chunk.model == "fast"
            usages += [chunk.usage] if chunk.usage else []
            for choice in chunk.choices:
                said += choice.delta.content or ""
                finish_reasons += [choice.finish_reason] if choice.finish_reason else []
    assert whole.model == "fast"
    assert whole.usage is not None
    assert said == whole.choices[0].message.content
    assert finish_reasons == [whole.choices[0].finish_reason] == ["length"]
    assert [usage.completion_tokens for usage in usages] == [whole.usage.completion_tokens] == [32]


def test_decoding_is_told_in_a_header(client: openai.OpenAI) -> None:
    response = client.chat.completions.with_raw_response.create(model="gpt", messages=MESSAGES, max_tokens=16)
    assert response.headers["x-specrouter-decoding"] == "inject"
    assert response.parse().model == "gpt"


@pytest.mark.anyio
async def test_asynchronous_client(base_url: str) -> None:
    async with openai.AsyncOpenAI(base_url=base_url, api_key=KEY, max_retries=0) as client:
        whole = await client.chat.completions.create(model="fast", messages=MESSAGES, temperature=0, max_tokens=32)
        said = ""
        async with await client.chat.completions.create(
            model="fast", messages=MESSAGES, temperature=0, max_tokens=32, stream=True
        ) as stream:
            async for chunk in stream:
                said += chunk.choices[0].delta.content or ""
    assert said == whole.choices[0].message.content


def test_text_completions(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="fast", prompt="One, two,", temperature=0, max_tokens=16)
    assert answer.choices[0].text
    with client.completions.create(
        model="fast", prompt="One, two,", temperature=0, max_tokens=16, stream=True
    ) as stream:
        assert "".join(chunk.choices[0].text for chunk in stream) == answer.choices[0].text


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["fast"]
    assert client.models.retrieve("gpt").id == "fast"


def test_unknown_model(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="fast") as caught:
        client.chat.completions.create(model="slow", messages=MESSAGES)
    assert caught.value.code == "model_not_found"


def test_wrong_key(base_url: str) -> None:
    with (
        openai.OpenAI(base_url=base_url, api_key="wrong", max_retries=0) as client,
        pytest.raises(openai.AuthenticationError),
    ):
        client.chat.completions.create(model="fast", messages=MESSAGES)


def test_what_the_target_refuses(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model="fast", messages=[{"role": "user", "content": "word " * 9000}])


def test_what_the_target_refuses_of_a_stream(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(
            model="fast", messages=[{"role": "user", "content": "word " * 9000}], stream=True
        )
