"""Drafting changes nothing: the same text as from the target's model alone, up to near ties."""

from __future__ import annotations

import logging

import httpx
import pytest
from llama_support import COMPLETION, Reference

log = logging.getLogger(__name__)

MAX_TOKENS = 48

PROMPTS = [
    "def fibonacci(n):\n    ",
    "#include <stdio.h>\n\nint main(void) {\n",
    "SELECT name, count(*) FROM orders\nWHERE",
    "<ul>\n  <li>apple</li>\n  <li>",
    '{"name": "Ada", "born": 1815, "works": [',
    "1. Boil the water.\n2. Put the pasta in.\n3.",
    "- Mercury\n- Venus\n- Earth\n-",
    "| city | country |\n| --- | --- |\n| Paris | France |\n|",
    "1, 1, 2, 3, 5, 8, 13,",
    "🍎 apple\n🍌 banana\n🍇",
    "👩‍👩‍👧 means family. 👨‍🚒 means",
    "日本の首都は",
    "中华人民共和国的首都是",
    "La capitale de la France est",
    "Die Hauptstadt von Österreich heißt",
    "Москва — столица",
    "Ελλάδα είναι",
    "<|im_start|>user\nTell me a story about a cat.<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>user\nWhat is the difference between TCP and UDP?<|im_end|>\n<|im_start|>assistant\n",
    "Once upon a time, in a village by the sea,",
]


@pytest.mark.slow
@pytest.mark.parametrize("prompt", PROMPTS)
def test_same_text_as_the_target_alone(router: httpx.Client, reference: Reference, prompt: str) -> None:
    body = {"model": "fast", "prompt": prompt, "temperature": 0, "n_predict": MAX_TOKENS}
    response = router.post(COMPLETION, json=body)
    assert response.headers["x-specrouter-decoding"] == "inject"
    gap = reference.check(body, response.json()["content"], max_tokens=MAX_TOKENS)
    if gap is not None:
        log.warning("near tie of %.4f nats after %r", gap, prompt)
