"""The plugin of the how-to, loaded from the how-to's topology, drafts for a request."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import anyio
import httpx
import pages
import pytest

from specrouter.app import serve_in_background
from specrouter.testing import FakeServer, NgramPool, Rule, RuleBroken, ToyModel

PAGE = pages.ROOT / "docs" / "how-to" / "write-a-draft-plugin.md"
SYLLABLES = ("ba", "ko", "mi", "tu", "ze", "ra", "de", "li")
ANSWER = "".join(f" {first}{second}" for first in SYLLABLES for second in SYLLABLES)
HEADER = "x-specrouter-decoding"
CHAT = "/v1/chat/completions"


@pytest.mark.anyio
async def test_the_plugin_drafts(tmp_path: Path) -> None:
    pages.write_python_files(PAGE, tmp_path)
    (block,) = pages.topologies(PAGE)
    async with FakeServer(ToyModel(ANSWER), pool=NgramPool()) as target, FakeServer(ToyModel(ANSWER)) as drafter:
        target.step_seconds = 0.005
        topology = tmp_path / "topology.yaml"
        text = replaced(block.text, {"http://127.0.0.1:8081": target.url, "http://127.0.0.1:8082": drafter.url})
        topology.write_text(text, encoding="utf-8")
        async with serve_in_background(topology) as url, httpx.AsyncClient(base_url=url, timeout=20) as client:
            question = {"messages": [{"role": "user", "content": "Quote it."}], "temperature": 0}
            with anyio.fail_after(60):
                while (await client.post(CHAT, json={**question, "max_tokens": 8})).headers[HEADER] != "inject":
                    # The trial waits while the target answers.
                    await anyio.sleep(0.5)
            answer = (await client.post(CHAT, json=question)).json()
    assert answer["choices"][0]["message"]["content"] == ANSWER
    assert answer["timings"]["draft_n_accepted"] > 0
    assert primed_with_the_answer(target)


def test_the_plugin_passes_its_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page's own test, all of it; and a strategy that is never sure enough does not."""
    pages.write_python_files(PAGE, tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (code,) = [block.text for block in pages.blocks(PAGE, "python") if "Conformance" in block.text]
    names: dict[str, Any] = {}
    exec(code, names)
    kit = names["TestSure"]
    tests = [name for name in dir(kit) if name.startswith("test_")]
    assert len(tests) > 10
    for name in tests:
        getattr(kit(), name)()
    monkeypatch.setattr(kit, "options", {**kit.options, "least": 1.0})
    with pytest.raises(RuleBroken) as caught:
        kit().test_drafts_are_tokens_of_the_target()
    assert caught.value.rule is Rule.DRAFTS
    sys.modules.pop("sure_drafts")


def replaced(text: str, changes: dict[str, str]) -> str:
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    return text


def primed_with_the_answer(target: FakeServer) -> bool:
    """Whether a prime carried words of the answer; those of the trying out are random tokens."""
    said = target.model.tokens
    prompts = [request.json["prompt"] for request in target.received("/completion")]
    return any(prompt[-3:] == said[at : at + 3] for prompt in prompts for at in range(len(said)))
