"""`origins.js`: which tokens were drafted, told from streams as real servers write them."""

from __future__ import annotations

from typing import Any

import pytest
from browser import Browser
from page_support import Site

Chunk = tuple[str, int | None, int | None, int | None]
"""Text, and of `timings`: `predicted_n`, `draft_n`, `draft_n_accepted`."""


def read(page: Browser, chunks: list[Chunk]) -> dict[str, Any]:
    """What the module makes of a stream."""
    script = """
      const [chunks, done] = arguments;
      import("./origins.js").then(({ Origins }) => {
        const origins = new Origins();
        const said = chunks.map(([text, predicted, drafted, accepted], at) => {
          const timings = predicted === null ? undefined : { predicted_n: predicted };
          if (drafted !== null) Object.assign(timings, { draft_n: drafted, draft_n_accepted: accepted });
          return origins.add(text, timings, at);
        });
        const { tokens, accepted, drafted, unsaid } = origins;
        const steps = origins.steps.map((step) => `${step.accepted}+${step.own}+${step.unknown}`);
        const letters = said.map((kinds) => kinds.map((kind) => kind[0]).join(""));
        done({ said: letters, tokens, accepted, drafted, unsaid, steps });
      });
    """
    found: dict[str, Any] = page.driver.execute_async_script(script, chunks)
    return found


PLAIN: list[Chunk] = [("", None, None, None), ("The", 1, None, None), (" sea", 2, None, None), ("", 2, None, None)]

TWO_STEPS: list[Chunk] = [
    ("A", 1, None, None), ("b", 2, 4, 2), ("c", 3, 4, 2), ("d", 4, 4, 2), ("e", 5, 8, 2),
    ("f", 6, 9, 3), ("g", 7, 9, 3), ("", 7, 9, 3),
]  # fmt: skip

LONG_CHARACTERS: list[Chunk] = [
    # As a real server sent it: characters of two and three tokens, and a limit that cuts one of them.
    ("🐙", 3, None, None), ("🐋", 6, 16, 0), (" 漢", 9, 32, 15), ("字", 10, 32, 15), ("か", 12, 32, 15),
    ("な", 14, 32, 15), ("交", 16, 32, 15), ("じ", 18, 32, 15), ("り", 20, 32, 15), ("文", 21, 32, 15),
    ("\n", 22, 32, 15), ("\n", 23, 32, 15), ("🐙", 26, 32, 15), ("🐋", 29, 44, 15),
    (" 漢", 32, 54, 25), ("字", 33, 54, 25), ("か", 35, 54, 25),
    ("な", 37, 54, 25), ("交", 39, 54, 25), ("", 40, 54, 25),
]  # fmt: skip

TAKEN_OVER: list[Chunk] = [
    ("A", 1, None, None),
    ("b", 2, 4, 1),
    ("c", 3, 4, 1),
    ("d", 4, None, None),
    ("", 4, None, None),
]


@pytest.mark.parametrize(
    ("chunks", "expected"),
    [
        (PLAIN, {"said": ["", "o", "o", ""], "accepted": 0, "steps": ["0+1+0", "0+1+0"], "unsaid": 0}),
        (TWO_STEPS, {"said": [*"oaaooao", ""], "accepted": 3, "drafted": 9, "unsaid": 0}),
        (TWO_STEPS, {"steps": ["0+1+0", "2+1+0", "0+1+0", "1+1+0"]}),
        (LONG_CHARACTERS, {"tokens": 40, "accepted": 25, "drafted": 54, "unsaid": 0}),
        ([("A", 1, None, None), ("b", 2, 8, 5), ("", 2, 8, 5)], {"said": ["o", "a", ""], "accepted": 5, "unsaid": 4}),
        (TAKEN_OVER, {"said": ["o", "a", "o", "o", ""], "accepted": 1, "drafted": 4, "unsaid": 0}),
        ([("A", None, None, None), ("b", None, None, None), ("", 3, 4, 2)], {"said": ["u", "u", "u"], "drafted": 4}),
    ],
)  # fmt: skip
def test_origins(chunks: list[Chunk], expected: dict[str, Any], page: Browser, site: Site) -> None:
    page.open(site.serve({"big": site.target}, {"chat": {"target": "big"}}))
    found = read(page, chunks)
    assert {key: found[key] for key in expected} == expected
