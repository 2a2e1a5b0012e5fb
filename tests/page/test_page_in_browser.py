"""The page in a real browser, before a router with fake servers."""

from __future__ import annotations

from typing import Any

import httpx
from browser import Browser
from page_support import ANSWER, Site, status_of, until_drafting
from selenium.webdriver import ActionChains, Keys

from specrouter.testing import ToyModel, respond_with

CHAT = "/v1/chat/completions"
MARKUP = "<img src=x onerror=\"document.title='owned'\">"


def is_live(page: Browser) -> bool:
    return page.find("#connection").get_attribute("class") == "connection live"


def run_playground(page: Browser) -> None:
    page.find("#prompt").send_keys(Keys.CONTROL, Keys.ENTER)
    page.until(lambda: page.find("#results").get_attribute("data-done") == "yes")


# -- what it shows -----------------------------------------------------------------------------------------


def test_a_topology_with_a_server_down(page: Browser, site: Site) -> None:
    url = site.serve_pair()
    until_drafting(url)
    page.open(url)
    page.until(lambda: page.all(".node.drafting"))
    assert page.all(".node.down") == []
    assert page.text("#obstacles") == ""
    assert page.text(".badge") == "inject"
    site.stop(site.drafter)
    page.until(lambda: page.all(".node.down"))
    (down,) = page.all(".node.down")
    assert down.get_attribute("data-node") == "server laptop"
    assert "DOWN" in page.text(".node.down .detail")
    assert "down: laptop" in str(page.find("svg.topology").get_attribute("aria-label"))
    assert page.all(".edge.draft.broken")
    page.until(lambda: "draft server laptop is down" in page.text("#obstacles"))
    assert page.text("#obstacles strong") == "chat"
    assert "does not draft" in page.text("[data-route=chat] .state")
    # The same for those who do not see the picture.
    rows = page.run("return [...document.querySelectorAll('#topology-table tr')].map((row) => row.textContent)")
    assert [row for row in rows if row.startswith("laptopdown")]


def test_rpc_workers_and_lookups_are_nodes(page: Browser, site: Site) -> None:
    rpc = {"use": "rpc", "options": {"server": "big", "workers": ["127.0.0.1:9"]}}
    routes = {"fast": {"target": "other", "draft": rpc}, "known": {"target": "other", "draft": "prompt_lookup"}}
    page.open(site.serve({"big": site.target, "other": site.drafter}, routes))
    page.until(lambda: page.all('[data-node="workers fast"]'))
    assert "1 RPC worker" in page.text('[data-node="workers fast"]')
    assert "prompt_lookup" in page.text('[data-node="strategy known"]')


def test_requests_and_figures(page: Browser, site: Site) -> None:
    url = site.serve_pair()
    until_drafting(url)
    router = url.removesuffix("/specrouter/")
    body = {"messages": [{"role": "user", "content": "hi"}], "cache_prompt": False}
    for model, answers in (("chat", 200), ("chat-plain", 200), (MARKUP, 404)):
        response = httpx.post(router + CHAT, json={**body, "model": model}, trust_env=False, timeout=30)
        assert response.status_code == answers
    page.open(url)
    page.until(lambda: len(page.all("#request-table tbody tr")) == 3)
    rows = [row.text for row in page.all("#request-table tbody tr")]
    # A model's name as the client wrote it.
    assert MARKUP in rows[0]
    assert "model_not_found" in rows[0]
    assert "plain" in rows[1]
    assert "inject" in rows[2]
    assert page.all("#request-table img") == []
    figures = page.text("[data-route=chat] .figures")
    accepted = status_of(url)["routes"][0]["lately"]["acceptance_rate"]
    assert f"accepted{accepted:.0%}" in figures
    assert len(page.all("[data-route=chat] .dot")) == 2


def test_a_router_that_is_gone(page: Browser, site: Site) -> None:
    page.open(site.serve_pair())
    page.until(lambda: is_live(page))
    site.end()
    page.until(lambda: "cannot be reached" in page.text("#connection"))
    assert page.find("body").get_attribute("class") == "stale"


def test_it_pauses_while_nobody_looks(page: Browser, site: Site) -> None:
    page.open(site.serve_pair())
    page.until(lambda: is_live(page))
    hide = "Object.defineProperty(document, 'hidden', {configurable: true, get: () => arguments[0]});"
    page.run(
        f"const hidden = arguments[0]; {hide.replace('arguments[0]', 'hidden')}"
        "document.dispatchEvent(new Event('visibilitychange'));",
        True,
    )
    assert "Paused" in page.text("#connection")
    page.run(
        "const hidden = arguments[0];"
        + hide.replace("arguments[0]", "hidden")
        + "document.dispatchEvent(new Event('visibilitychange'));",
        False,
    )
    page.until(lambda: is_live(page))


def test_a_draft_server_that_is_a_target_too(page: Browser, site: Site) -> None:
    """Both are in one column, and what goes from one to the other is seen as a whole."""
    draft = {"use": "remote", "options": {"server": "laptop"}}
    routes = {"chat": {"target": "big", "draft": draft}, "small": {"target": "laptop"}}
    page.open(site.serve({"big": site.target, "laptop": site.drafter}, routes))
    page.until(lambda: page.all(".edge.draft"))
    right, width = page.run(
        "const box = document.querySelector('.edge.draft').getBBox();"
        "return [box.x + box.width, document.querySelector('svg.topology').width.baseVal.value];"
    )
    assert right <= width


def test_long_names_leave_room_for_the_rest(page: Browser, site: Site) -> None:
    """On a phone, and where text is twice as big."""
    name = "qwen-" + "with-everything-" * 6 + "instruct"
    url = site.serve({"big": site.target}, {name: {"target": "big", "aliases": ["a" * 80]}})
    asked = {"model": "n" * 500, "messages": []}
    httpx.post(url.removesuffix("/specrouter/") + CHAT, json=asked, trust_env=False, timeout=30)
    page.open(url)
    page.until(lambda: page.all("#request-table tbody tr"))
    scroll = "const one = document.querySelector(arguments[0]); return [one.scrollWidth, one.clientWidth]"
    wide, seen = page.run(scroll, "#request-table")
    assert wide <= seen
    for width in (640, 320):
        page.look(width=width)
        page.until(lambda width=width: page.run("return innerWidth") == width)
        wide, seen = page.run(scroll, "html")
        assert wide <= seen
        over = page.run(
            "return [...document.querySelectorAll('.route, .ask, .route *, .ask *')]"
            ".filter((one) => one.getBoundingClientRect().right > innerWidth).map((one) => one.outerHTML)"
        )
        assert over == []


ALTERED = """
  const [changes] = arguments;
  const real = window.fetch;
  window.fetch = async (path, options) => {
    const response = await real(path, options);
    return path === "status" ? new Response(JSON.stringify({ ...(await response.json()), ...changes })) : response;
  };
"""


def test_a_router_of_another_version(page: Browser, site: Site) -> None:
    """A page that stays open meets what comes after it."""
    page.open(site.serve_pair())
    page.until(lambda: is_live(page))
    page.run(ALTERED, {"version": "99"})
    page.until(lambda: "reload it" in page.text("#connection"))
    assert "version 99" in page.text("#connection")
    page.run(ALTERED, {"routes": None})
    page.until(lambda: "This page cannot show what the router says" in page.text("#connection"))
    assert any("TypeError" in complaint for complaint in page.errors())
    page.driver.refresh()
    page.until(lambda: is_live(page))


def test_requests_with_one_id(page: Browser, site: Site) -> None:
    """Clients choose ids, and each choice is good enough for all of them."""
    url = site.serve_pair()
    page.open(url)
    page.until(lambda: is_live(page))
    for number in range(1, 4):
        body = {"model": "chat-plain", "messages": [{"role": "user", "content": "hi"}]}
        router = url.removesuffix("/specrouter/")
        headers = {"x-request-id": "mine"}
        assert httpx.post(router + CHAT, json=body, headers=headers, trust_env=False, timeout=30).status_code == 200
        page.until(lambda number=number: len(page.all("#request-table tbody tr")) == number)
    page.until(lambda: len(page.all("[data-route=chat-plain] .dot")) == 3)


# -- the playground ----------------------------------------------------------------------------------------


def test_tokens_are_marked_by_origin(page: Browser, site: Site) -> None:
    url = site.serve_pair()
    until_drafting(url)
    page.open(url)
    page.until(lambda: is_live(page))
    run_playground(page)
    drafted, alone = page.all(".side")
    assert [element.get_attribute("aria-label") for element in (drafted, alone)] == ["With drafts", "The target alone"]
    for side in (drafted, alone):
        said = side.find_element("css selector", ".said")
        assert said.get_attribute("textContent") == ANSWER
    newest, before = status_of(url)["recent"][:2]
    assert (before["decoding"], newest["decoding"]) == ("inject", "plain")
    assert newest["reason"] == "asked for without drafts"
    assert before["draft_n_accepted"] > 0
    for side, record in ((drafted, before), (alone, newest)):
        tokens = side.find_elements("css selector", ".token")
        assert sum(int(str(one.get_attribute("data-accepted"))) for one in tokens) == (record["draft_n_accepted"] or 0)
        assert sum(int(str(one.get_attribute("data-tokens"))) for one in tokens) == record["tokens"]
        assert len(side.find_elements("css selector", ".timeline .cell")) == record["tokens"]
    accepted = f"{before['draft_n_accepted']} · {newest['draft_n_accepted'] or 0}"
    assert page.text("[data-count=accepted]") == accepted
    assert page.text("#verdict strong")[0] == "\u00d7"
    assert "Done." in page.text("#progress")
    assert "big did not forget" in page.text("#notes")
    # Both are asked for the same, of a target that has not evaluated the prompt.
    for request in site.target.received(CHAT)[-2:]:
        assert request.json["cache_prompt"] is False
        assert request.json["messages"] == [{"role": "user", "content": page.find("#prompt").get_attribute("value")}]


def test_answers_that_the_router_writes_are_marked(page: Browser, site: Site) -> None:
    target = site.fake()
    target.step_seconds = 0.02
    draft = {"use": "remote", "options": {"server": "laptop"}}
    fanout = {"use": "fanout", "options": {"stand_down": False}}
    routes = {"chat": {"target": "big", "draft": draft, "verify": fanout}}
    url = site.serve({"big": target, "laptop": site.drafter}, routes)
    until_drafting(url)
    page.open(url)
    page.until(lambda: is_live(page))
    run_playground(page)
    assert page.text(".side .state") == "fanout"
    assert page.text(".said") == ANSWER
    written = next(record for record in status_of(url)["recent"] if record["decoding"] == "fanout")
    assert written["draft_n_accepted"] > 0
    marks = page.all(".side:first-child .token.accepted")
    assert len(marks) == written["draft_n_accepted"]
    assert "finds the prompt evaluated" in page.text("#notes")


def test_an_answer_is_text(page: Browser, site: Site) -> None:
    site.target.model = ToyModel(f" bada{MARKUP} kofo")
    page.open(site.serve_pair())
    page.until(lambda: is_live(page))
    run_playground(page)
    assert page.text(".said") == f" bada{MARKUP} kofo"
    assert page.all(".said img") == []
    assert page.driver.title == "specrouter"


def test_names_that_servers_have(page: Browser, site: Site) -> None:
    target = site.fake(name=MARKUP)
    page.open(site.serve({"big": target}, {"chat": {"target": "big"}}))
    page.until(lambda: MARKUP in page.text("#topology-table"))
    assert page.all("#live img") == []
    assert page.driver.title == "specrouter"


def test_stop_frees_the_target(page: Browser, site: Site) -> None:
    url = site.serve_pair()
    site.target.step_seconds = 0.1
    page.open(url)
    page.until(lambda: is_live(page))
    page.find("#run").click()
    page.until(lambda: page.all(".said .token"))
    page.find("#stop").click()
    page.until(lambda: page.text("#progress") == "Stopped.")
    page.until(lambda: site.target.received(CHAT)[-1].left)
    page.until(lambda: site.target.running == 0)
    assert page.find("#run").is_enabled()


def test_an_answer_that_is_given_up_frees_the_target(page: Browser, site: Site) -> None:
    page.open(site.serve_pair())
    page.until(lambda: is_live(page))
    site.target.step_seconds = 0.1
    page.run(
        "const parse = JSON.parse;"
        "JSON.parse = (text) => {"
        "  if (text.includes('predicted_n')) throw new Error('nonsense');"
        "  return parse(text);"
        "};"
    )
    run_playground(page)
    assert "nonsense" in page.text(".problem")
    page.until(lambda: site.target.received(CHAT)[-1].left)


def test_one_answer_needs_no_forgetting(page: Browser, site: Site) -> None:
    """It would cost others what the pool has learned."""
    page.open(site.serve({"big": site.target}, {"chat": {"target": "big"}}))
    page.until(lambda: is_live(page))
    run_playground(page)
    assert page.text(".said") == ANSWER
    assert site.target.received("/completion") == []


def test_a_server_that_cannot_be_made_to_forget(page: Browser, site: Site) -> None:
    url = site.serve_pair()
    until_drafting(url)
    site.target.replies["/detokenize"] = respond_with({"error": {"code": 500, "message": "out of order"}}, 500)
    page.open(url)
    page.until(lambda: is_live(page))
    run_playground(page)
    assert "could not be tried whether the target forgets what it has said: out of order" in page.text("#notes")
    assert [said.get_attribute("textContent") for said in page.all(".said")] == [ANSWER, ANSWER]


def test_an_error_is_told(page: Browser, site: Site) -> None:
    page.open(site.serve_pair())
    page.until(lambda: is_live(page))
    site.stop(site.target)
    run_playground(page)
    assert "server 'big'" in page.text(".problem")


def test_with_the_keyboard_alone(page: Browser, site: Site) -> None:
    page.open(site.serve_pair())
    page.until(lambda: is_live(page))

    def press(*keys: str) -> Any:
        ActionChains(page.driver).send_keys(*keys).perform()
        return page.run("return document.activeElement.id || document.activeElement.textContent.trim()")

    assert press(Keys.TAB) == "Skip to the content"
    reached = [press(Keys.TAB) for _ in range(14)]
    wanted = ["Topology", "As a table", "prompt", "route", "temperature", "max-tokens", "compare"]
    assert [name for name in reached if name in wanted] == wanted
    assert reached[reached.index("compare") + 1].startswith("run")
    page.run("document.getElementById('prompt').focus()")
    ActionChains(page.driver).key_down(Keys.CONTROL).send_keys(Keys.ENTER).key_up(Keys.CONTROL).perform()
    page.until(lambda: page.find("#results").get_attribute("data-done") == "yes")


def test_everything_has_a_name(page: Browser, site: Site) -> None:
    page.open(site.serve_pair())
    page.until(lambda: is_live(page))
    run_playground(page)
    nameless = page.run(
        "return [...document.querySelectorAll('input, select, textarea, button, a, [role=region], svg[role=img]')]"
        ".filter((one) => !(one.labels?.length || one.textContent.trim() || one.getAttribute('aria-label')"
        " || one.getAttribute('aria-labelledby'))).map((one) => one.outerHTML)"
    )
    assert nameless == []
    assert page.run("return document.documentElement.lang") == "en"
    assert len(page.all("h1")) == 1
    # Pictures say in words what they show, or belong to one that does.
    assert page.all("#live svg:not([role=img]):not(svg svg)") == []


# -- keys --------------------------------------------------------------------------------------------------

KEYS = ["all-secret", {"name": "phone", "key": "phone-secret", "routes": ["chat"]}]


def test_it_asks_for_a_key(page: Browser, site: Site) -> None:
    url = site.serve_pair(api_keys=KEYS)
    page.open(url)
    page.until(lambda: page.find("#key-form").is_displayed())
    assert not page.find("#live").is_displayed()
    assert page.find("#key").get_attribute("type") == "password"
    for secret, answer in (
        ("wrong", "does not know this key"),
        ("phone-secret", "opens some routes only"),
        ("schlüssel", "ASCII"),
    ):
        page.find("#key").send_keys(secret, Keys.ENTER)
        page.until(lambda answer=answer: answer in page.text("#key-message"))
        page.run("document.getElementById('key').value = ''")
    page.find("#key").send_keys("all-secret", Keys.ENTER)
    page.until(lambda: is_live(page))
    assert not page.find("#key-form").is_displayed()
    run_playground(page)
    assert page.text(".said") == ANSWER
    assert page.driver.current_url == url
    assert page.run("return localStorage.length + document.cookie.length") == 0
    assert "all-secret" not in page.run("return document.documentElement.outerHTML")
    assert [record for record in status_of(url, "all-secret")["recent"] if record["status"] == 200]
    page.driver.refresh()
    page.until(lambda: is_live(page))
