"""Which replica a request goes to: what makes a conversation, and what else decides."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specrouter.balance import REMEMBERED, SHORTEST_BEGINNING, Affinity, Balancer, PromptKeys, prompt_keys
from specrouter.config.model import ServerConfig
from specrouter.types import ServerInfo, ServerState
from specrouter.upstream import LlamaServer

Body = dict[str, Any]

SYSTEM = {"role": "system", "content": "Be brief."}
TOOLS = [{"type": "function", "function": {"name": "search", "parameters": {"type": "object", "properties": {}}}}]
DOCUMENT = "".join(f"Section {number} says that {number} is not {number + 1}.\n" for number in range(200))
IDS = [number * 7 % 5000 for number in range(2000)]


def user(content: object) -> Body:
    return {"role": "user", "content": content}


def assistant(content: str) -> Body:
    return {"role": "assistant", "content": content}


def chat(*messages: Body, **fields: Any) -> Body:
    return {"model": "m", "messages": list(messages), **fields}


def keys(body: Body, **headers: str) -> PromptKeys:
    return prompt_keys(body, [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()])


# -- what is a conversation --------------------------------------------------------------------------------


def goes_on(earlier: PromptKeys, later: PromptKeys) -> bool:
    affinity = Affinity()
    affinity.remember(earlier, "there")
    return affinity.conversation(later) == "there"


def marked(text: str) -> Body:
    return user([{"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}])


FIRST = chat(SYSTEM, user("Hi"))
SAME_CONVERSATION = {
    "next turn": (FIRST, chat(SYSTEM, user("Hi"), assistant("Hello."), user("Why?"))),
    "no system prompt": (chat(user("Hi")), chat(user("Hi"), assistant("Hello."), user("Why?"))),
    "turns later": (FIRST, chat(SYSTEM, user("Hi"), assistant("a"), user("b"), assistant("c"), user("d"))),
    "with tools": (chat(user("Hi"), tools=TOOLS), chat(user("Hi"), assistant("Yes."), user("Go"), tools=TOOLS)),
    "a tool's result": (FIRST, chat(SYSTEM, user("Hi"), assistant(""), {"role": "tool", "content": "42"})),
    "other settings": (FIRST, chat(SYSTEM, user("Hi"), assistant("Hello."), user("Why?"), temperature=1)),
    "long messages": (chat(user(DOCUMENT)), chat(user(DOCUMENT), assistant("Read."), user("Why?"))),
    "parts": (chat(user([{"type": "text", "text": "Hi"}])), chat(user([{"type": "text", "text": "Hi"}]), user("Why?"))),
    "moved cache mark": (chat(marked("Hi")), chat(user([{"type": "text", "text": "Hi"}]), marked("Why?"))),
    "anthropic": (chat(user("Hi"), system="Be brief."), chat(user("Hi"), assistant("a"), system="Be brief.")),
    "responses": ({"input": [user("Hi")]}, {"input": [user("Hi"), assistant("Hello."), user("Why?")]}),
    "text": ({"prompt": "User: Hi\nBot:"}, {"prompt": "User: Hi\nBot: Hello.\nUser: Why?\nBot:"}),
    "long line": ({"prompt": "a" * 512 + "b"}, {"prompt": "a" * 512 + "c" * 512}),
    "token ids": ({"prompt": IDS[:100]}, {"prompt": IDS[:150]}),
    "key": ({"prompt": "a", "prompt_cache_key": "x"}, {"prompt": "b", "prompt_cache_key": "x"}),
}


@pytest.mark.parametrize(("earlier", "later"), SAME_CONVERSATION.values(), ids=SAME_CONVERSATION)
def test_a_request_that_goes_on_is_known(earlier: Body, later: Body) -> None:
    assert goes_on(keys(earlier), keys(later))


def test_an_edited_turn_goes_on_from_the_turns_before() -> None:
    second = chat(SYSTEM, user("Hi"), assistant("Hello."), user("Why?"))
    affinity = Affinity()
    affinity.remember(keys(FIRST), "there")
    affinity.remember(keys(second), "there")
    for edited in ("How?", "Why?"):
        assert affinity.conversation(keys(chat(SYSTEM, user("Hi"), assistant("Hello."), user(edited)))) == "there"


def test_a_conversation_that_moved_is_where_its_latest_turn_was() -> None:
    affinity = Affinity()
    affinity.remember(keys(FIRST), "before")
    second = chat(SYSTEM, user("Hi"), assistant("Hello."), user("Why?"))
    affinity.remember(keys(second), "after")
    assert affinity.conversation(keys({**second, "messages": [*second["messages"], assistant("So.")]})) == "after"


NEW_CONVERSATION = {
    "same system prompt": (FIRST, chat(SYSTEM, user("What?"))),
    "same first question": (FIRST, FIRST),
    "only the system prompt was sent": (chat(SYSTEM, user("")), chat(SYSTEM, user("What?"))),
    "a longer first question": (FIRST, chat(SYSTEM, user("Hi there"))),
    "other system prompt": (FIRST, chat(user("Hi"), assistant("Hello."), user("Why?"))),
    "other tools": (chat(user("Hi")), chat(user("Hi"), assistant("Yes."), user("Go"), tools=TOOLS)),
    "other role": (chat(user("Hi")), chat(assistant("Hi"), user("Why?"))),
    "same document": (chat(user(DOCUMENT + "Why?")), chat(user(DOCUMENT + "How?"), assistant("So."), user("Ah"))),
    "template": ({"prompt": "Answer.\n\nQ: Why?\nA:"}, {"prompt": "Answer.\n\nQ: How?\nA:"}),
    "one line": ({"prompt": "Why?"}, {"prompt": "Why?\nWhy?\n"}),
    "few ids": ({"prompt": [1, 2, 3]}, {"prompt": IDS}),
    "other ids": ({"prompt": IDS[:100]}, {"prompt": [9, *IDS[:200]]}),
    "no prompt": ({"query": "a"}, {"query": "a"}),
    "odd prompt": ({"prompt": 7}, {"prompt": [None, {"a": 1.5}, [True]]}),
    "empty": ({"messages": [], "prompt": ""}, chat(user("Hi"))),
}


@pytest.mark.parametrize(("earlier", "later"), NEW_CONVERSATION.values(), ids=NEW_CONVERSATION)
def test_a_request_that_only_begins_alike_is_new(earlier: Body, later: Body) -> None:
    assert not goes_on(keys(earlier), keys(later))


def test_a_named_conversation_is_known_by_its_name_alone() -> None:
    later = chat(SYSTEM, user("Hi"), assistant("Hello."), user("Why?"), prompt_cache_key="x")
    assert goes_on(keys(FIRST, x_conversation_id="1"), keys(later, x_conversation_id="1"))
    assert not goes_on(keys(FIRST, x_conversation_id="1"), keys(later, x_conversation_id="2"))
    assert not goes_on(keys({**FIRST, "prompt_cache_key": "x"}, x_conversation_id="1"), keys(later))
    # Something else than a name is none.
    assert goes_on(keys({**FIRST, "prompt_cache_key": ["x"]}), keys({**later, "prompt_cache_key": {}}))


said = st.lists(st.builds(user, st.text(max_size=3)), min_size=1, max_size=5)


@given(said, said)
def test_going_on_is_having_all_messages_and_more(earlier: list[Body], later: list[Body]) -> None:
    expected = len(later) > len(earlier) and later[: len(earlier)] == earlier
    assert goes_on(keys(chat(*earlier)), keys(chat(*later))) is expected
    assert goes_on(keys(chat(*earlier)), keys(chat(*earlier, *later)))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([["a"], "b"], [["a", "b"]]),
        ([{"a": 1}, {"b": 2}], [{"a": 1, "b": 2}]),
        ({"a": "b"}, ["a", "b"]),
        (["ab"], ["a", "b"]),
        ("a" * 1000, "a" * 1001),
        ([None], [False]),
    ],
)
def test_other_messages_have_other_keys(one: object, other: object) -> None:
    assert keys(chat(user(one))).whole != keys(chat(user(other))).whole


def test_a_very_long_conversation_is_known_by_its_latest_turns() -> None:
    said = [user(f"Message {number}") for number in range(10_000)]
    assert goes_on(keys(chat(*said)), keys(chat(*said, assistant("So."), user("And?"))))
    assert len(keys(chat(*said)).continued) < 5000


def test_nesting_has_no_limit() -> None:
    nested: list[Any] = []
    for _ in range(20_000):
        nested = [nested]
    assert goes_on(keys(chat(user(nested))), keys(chat(user(nested), user("Why?"))))
    # Nor may its end be: Python itself would unwind it recursively.
    while nested:
        nested = nested.pop()


# -- beginnings --------------------------------------------------------------------------------------------


def known(earlier: Body, later: Body) -> bool:
    affinity = Affinity()
    affinity.remember(keys(earlier), "there")
    return "there" in affinity.beginning(keys(later))


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        (chat(SYSTEM, user(DOCUMENT + "Why?")), chat(SYSTEM, user(DOCUMENT + "How?"))),
        (chat(SYSTEM, user(DOCUMENT), user("Why?")), chat(SYSTEM, user(DOCUMENT), user("How?"))),
        (chat(user("Why?"), system=DOCUMENT), chat(user("How?"), system=DOCUMENT)),
        ({"prompt": DOCUMENT + "Why?"}, {"prompt": DOCUMENT + "How?"}),
        ({"prompt": "word " * 2000 + "Why?"}, {"prompt": "word " * 2000 + "How?"}),
        ({"prompt": [*IDS, 1]}, {"prompt": [*IDS, 2]}),
        ({"input_prefix": DOCUMENT + "def a"}, {"input_prefix": DOCUMENT + "def ab"}),
        ({"input_extra": [{"text": DOCUMENT}], "input_prefix": "a"}, {"input_extra": [{"text": DOCUMENT}]}),
        # As many as before are of use to a shorter prompt, too.
        ({"prompt": DOCUMENT * 3}, {"prompt": DOCUMENT + "Why?"}),
        # The beginning of a named conversation counts like any other.
        (chat(user(DOCUMENT), prompt_cache_key="x"), chat(user(DOCUMENT + "How?"), prompt_cache_key="y")),
    ],
)
def test_a_long_beginning_is_known(earlier: Body, later: Body) -> None:
    assert known(earlier, later)


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        # Short.
        ({"prompt": "a" * (SHORTEST_BEGINNING - 1) + "b"}, {"prompt": "a" * (SHORTEST_BEGINNING - 1) + "c"}),
        (chat(SYSTEM, user("Why?")), chat(SYSTEM, user("How?"))),
        # Less than half of the prompt.
        ({"prompt": DOCUMENT}, {"prompt": DOCUMENT + "x" * (len(DOCUMENT) + 512)}),
        # Not the beginning.
        ({"prompt": DOCUMENT}, {"prompt": "Read:\n" + DOCUMENT}),
        (chat(user(DOCUMENT)), chat(SYSTEM, user(DOCUMENT))),
    ],
)
def test_a_short_beginning_is_not(earlier: Body, later: Body) -> None:
    assert not known(earlier, later)


texts = st.text(alphabet="ab\n", max_size=6).map(lambda text: text * 400)


@given(texts, texts, texts)
def test_equal_keys_are_equal_beginnings(common: str, one: str, other: str) -> None:
    first, second = common + one, common + other
    ours, theirs = (dict(map(reversed, keys({"prompt": text}).beginnings)) for text in (first, second))
    for key in ours.keys() & theirs.keys():
        assert ours[key] == theirs[key]
        assert first[: ours[key]] == second[: ours[key]]
    shared = max((length for key, length in ours.items() if key in theirs), default=0)
    assert shared >= len(common) - 1024


def test_memory_is_bounded() -> None:
    affinity = Affinity()
    text = keys({"prompt": "a" * SHORTEST_BEGINNING})
    affinity.remember(text, "there")
    affinity.remember(PromptKeys(whole=-1), "there")
    for number in range(REMEMBERED):
        affinity.remember(PromptKeys(whole=number, beginnings=[(SHORTEST_BEGINNING, number)]), "elsewhere")
    assert affinity.conversation(PromptKeys(continued=[-1])) is None
    assert affinity.conversation(PromptKeys(continued=[0])) == "elsewhere"
    assert affinity.beginning(text) == ()


# -- the choice --------------------------------------------------------------------------------------------


def server(name: str, *, slots: int | None = 4, state: ServerState = ServerState.UP) -> LlamaServer:
    made = LlamaServer(ServerConfig(name, f"http://{name}:8080"))
    made.set_state(state, "", ServerInfo(slots=slots))
    return made


def first(balancer: Balancer, body: Body) -> str:
    return balancer.order(keys(body))[0].name


number = itertools.count()


def new() -> Body:
    return chat(SYSTEM, user(f"Question {next(number)}"))


def then(body: Body) -> Body:
    return chat(*body["messages"], assistant("So."), user("And?"))


@pytest.mark.parametrize(
    ("home", "other", "stays"),
    [
        # (in flight, slots) of each
        ((0, 4), (0, 4), True),
        ((3, 4), (0, 4), True),
        ((4, 4), (3, 4), False),
        ((4, 4), (0, 1), False),
        ((4, 4), (4, 4), True),
        ((4, 4), (1, 1), True),
        ((7, 4), (4, 4), True),
        ((8, 4), (4, 4), False),
        ((2, 1), (7, 4), True),
        ((1, 1), (0, 1), False),
        ((1, None), (0, 4), False),
        ((0, None), (0, None), True),
    ],
)
def test_a_conversation_stays_unless_its_replica_is_crowded(
    home: tuple[int, int | None], other: tuple[int, int | None], stays: bool
) -> None:
    there, elsewhere = server("there", slots=home[1]), server("elsewhere", slots=other[1])
    balancer = Balancer([elsewhere, there])
    body = new()
    balancer.answered(keys(body), there)
    there.in_flight, elsewhere.in_flight = home[0], other[0]
    assert first(balancer, then(body)) == ("there" if stays else "elsewhere")


@pytest.mark.parametrize("state", [ServerState.LOADING, ServerState.DOWN])
def test_a_conversation_leaves_a_replica_that_is_not_well_and_does_not_come_back(state: ServerState) -> None:
    there, elsewhere = server("there"), server("elsewhere")
    balancer = Balancer([there, elsewhere])
    body = new()
    balancer.answered(keys(body), there)
    there.set_state(state, "")
    assert balancer.order(keys(then(body))) == [elsewhere, there]
    balancer.answered(keys(then(body)), elsewhere)
    there.set_state(ServerState.UP, "")
    for _ in range(3):
        assert first(balancer, then(then(body))) == "elsewhere"


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [((1, 4), (0, 4), "other"), ((1, 4), (1, 1), "one"), ((5, 8), (3, 4), "one"), ((9, 8), (4, 4), "other")],
)
def test_a_new_conversation_goes_to_the_least_busy(one: tuple[int, int], other: tuple[int, int], expected: str) -> None:
    servers = [server("one", slots=one[1]), server("other", slots=other[1])]
    servers[0].in_flight, servers[1].in_flight = one[0], other[0]
    balancer = Balancer(servers)
    assert [first(balancer, new()) for _ in range(3)] == [expected] * 3


def test_equally_busy_replicas_take_turns() -> None:
    balancer = Balancer([server(name) for name in "abc"])
    assert [first(balancer, new()) for _ in range(6)] == [*"abcabc"]
    assert [first(balancer, {"query": "no prompt"}) for _ in range(3)] == [*"abc"]


def test_a_conversation_that_comes_back_counts_as_a_turn() -> None:
    a, b = server("a"), server("b")
    balancer = Balancer([a, b])
    body = new()
    balancer.answered(keys(body), a)
    assert first(balancer, then(body)) == "a"
    assert first(balancer, new()) == "b"


def test_the_others_follow_in_order_of_business_and_health() -> None:
    a, b, c = (server(name) for name in "abc")
    loading, down = server("loading", state=ServerState.LOADING), server("down", state=ServerState.DOWN)
    unknown = server("unknown", state=ServerState.UNKNOWN)
    a.in_flight, b.in_flight, c.in_flight, unknown.in_flight = 3, 1, 2, 0
    balancer = Balancer([down, a, b, loading, c, unknown])
    assert [target.name for target in balancer.order(keys(new()))] == ["unknown", "b", "c", "a", "loading", "down"]
    body = new()
    balancer.answered(keys(body), a)
    assert [target.name for target in balancer.order(keys(then(body)))][:4] == ["a", "unknown", "b", "c"]


def test_when_none_is_well_the_order_is_the_declared_one() -> None:
    down, loading = server("down", state=ServerState.DOWN), server("loading", state=ServerState.LOADING)
    balancer = Balancer([down, loading])
    body = new()
    balancer.answered(keys(body), down)
    for asked in (new(), then(body)):
        assert balancer.order(keys(asked)) == [loading, down]


def test_requests_about_one_document_meet() -> None:
    balancer = Balancer([server("a"), server("b"), server("c")])
    for name in "bac":
        about = chat(user(f"About {name}.\n{DOCUMENT}"))
        balancer.answered(keys(about), next(s for s in balancer.order(keys(about)) if s.name == name))
    for name in "abcbca":
        assert first(balancer, chat(user(f"About {name}.\n{DOCUMENT}Question {next(number)}"))) == name


def test_a_document_does_not_keep_requests_on_a_busier_replica() -> None:
    a, b = server("a"), server("b")
    balancer = Balancer([a, b])
    balancer.answered(keys({"prompt": DOCUMENT}), a)
    a.in_flight = 1
    assert first(balancer, {"prompt": DOCUMENT + "Why?"}) == "b"


def test_what_all_replicas_know_decides_nothing() -> None:
    """A long system prompt in all chats: each replica evaluates it once, and they take turns."""
    a, b = server("a"), server("b")
    balancer = Balancer([a, b])
    chosen = []
    for question in range(6):
        body = chat({"role": "system", "content": DOCUMENT}, user(f"Question {question}"))
        # One was still running when the second came.
        a.in_flight = int(question == 1)
        chosen.append(first(balancer, body))
        balancer.answered(keys(body), a if chosen[-1] == "a" else b)
    assert chosen == [*"ababab"]


def test_chats_with_one_short_system_prompt_are_spread() -> None:
    balancer = Balancer([server("a"), server("b")])
    chosen = []
    for _ in range(4):
        body = new()
        target = balancer.order(keys(body))[0]
        balancer.answered(keys(body), target)
        chosen.append(target.name)
    assert chosen == [*"abab"]
