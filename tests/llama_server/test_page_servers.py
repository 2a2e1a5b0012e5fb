"""The playground of the page, in a real browser, before real servers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from browser import MISSING, Browser, browser

pytestmark = pytest.mark.skipif(MISSING is not None, reason=str(MISSING))


@pytest.fixture(scope="module")
def page() -> Iterator[Browser]:
    with browser() as started:
        yield started


def run(page: Browser, prompt: str, tokens: int) -> None:
    for selector, text in (("#prompt", prompt), ("#max-tokens", str(tokens))):
        page.run("document.querySelector(arguments[0]).value = arguments[1]", selector, text)
    page.find("#run").click()
    page.until(lambda: page.find("#results").get_attribute("data-done") == "yes")


def recent(router: httpx.Client) -> tuple[dict[str, Any], dict[str, Any]]:
    """The records of the last run: drafted, and alone."""
    alone, drafted = router.get("/specrouter/status").json()["recent"][:2]
    return drafted, alone


@pytest.mark.usefixtures("drafts_pay")
def test_drafts_are_accepted(page: Browser, router: httpx.Client) -> None:
    """More than one run: drafting may stand down on a slow machine, for a while."""
    page.open(f"{router.base_url}/specrouter/")
    page.until(lambda: page.find("#connection").get_attribute("class") == "connection live")
    for _ in range(6):
        run(page, "Count from 1 to 30 in words.", 64)
        if recent(router)[0]["draft_n_accepted"]:
            break
    accepted = sum(int(str(mark.get_attribute("data-accepted"))) for mark in page.all(".side .token"))
    assert accepted > 0


@pytest.mark.parametrize(
    ("prompt", "tokens"),
    [
        ("Count from 1 to 30 in words.", 64),
        # It ends within a step, or within a character.
        ("Count from 1 to 30 in words.", 37),
        ("Repeat exactly: 🐙🦑🐋 漢字かな交じり文 🐙🦑🐋 漢字かな交じり文", 51),
    ],
)
def test_marked_tokens_are_those_that_were_accepted(
    prompt: str, tokens: int, page: Browser, router: httpx.Client
) -> None:
    page.open(f"{router.base_url}/specrouter/")
    page.until(lambda: page.find("#connection").get_attribute("class") == "connection live")
    run(page, prompt, tokens)
    assert page.all(".problem") == []
    drafted, plain = recent(router)
    assert (drafted["decoding"], plain["decoding"]) == ("inject", "plain")
    for side, record in zip(page.all(".side"), (drafted, plain), strict=True):
        marks = side.find_elements("css selector", ".token")
        assert sum(int(str(mark.get_attribute("data-tokens"))) for mark in marks) == record["tokens"]
        accepted = sum(int(str(mark.get_attribute("data-accepted"))) for mark in marks)
        # A step that reaches the end of the answer may have accepted tokens behind it, which are not said.
        unsaid = int(str(side.get_attribute("data-unsaid")))
        assert accepted + unsaid == (record["draft_n_accepted"] or 0)
        assert not unsaid or record["tokens"] < tokens
    assert "did not forget" not in page.text("#notes")
