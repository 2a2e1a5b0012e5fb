"""Which servers answer, which one drafts, and what that is called."""

from __future__ import annotations

from dataclasses import replace

import pytest
from init_support import BIG, NOTHING, POOL, SMALL, checked, found, shape, verifies

from specrouter.checking import PairReport, Report
from specrouter.init.advice import advise
from specrouter.init.deciding import propose, settle
from specrouter.init.findings import Found, Kind, last_part
from specrouter.init.naming import route_name, server_names
from specrouter.init.plan import Plan
from specrouter.ngram_pool import FLAGS
from specrouter.types import ServerInfo

PLAIN_BIG = found("http://other:8080")
HEADS = frozenset({"ngram-mod", "draft-mtp"})

# -- names -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("/models/SmolLM2-135M-Instruct.Q4_1.gguf", "SmolLM2-135M-Instruct"),
        ("C:\\models\\Qwen3-8B-UD-Q4_K_XL.gguf", "Qwen3-8B"),
        ("Qwen3-235B-A22B-Q4_K_M-00001-of-00003.gguf", "Qwen3-235B-A22B"),
        ("unsloth/Qwen3-0.6B-GGUF:Q4_K_M", "Qwen3-0.6B"),
        ("gpt-oss-20b-MXFP4.gguf", "gpt-oss-20b"),
        ("model-IQ2_XXS.gguf", "model"),
        ("qwen", "qwen"),
        ("My model (new).gguf", "My-model-new"),
        ("default", "model"),
        ("日本語.gguf", "model"),
        ("../../etc/", "etc"),
        ("${SECRET}\n- x", "SECRET-x"),
        ("", "model"),
        ("a" * 300, "a" * 60),
    ],
)
def test_names_of_routes(model: str, name: str) -> None:
    assert route_name(ServerInfo(model=model)) == name


def test_an_alias_is_the_name_and_a_file_does_where_there_is_none() -> None:
    assert route_name(ServerInfo(model="qwen", model_path="/models/Qwen3-8B.gguf")) == "qwen"
    assert route_name(ServerInfo(model_path="/models/Qwen3-8B.gguf")) == "Qwen3-8B"
    assert route_name(ServerInfo(model="Qwen3-8B-Q4_K_M.gguf"), whole=True) == "Qwen3-8B-Q4_K_M"


@pytest.mark.parametrize(
    ("urls", "names"),
    [
        (["http://gpu.example.org:8080", "http://laptop:8080"], ["gpu", "laptop"]),
        (["http://localhost:8081", "http://127.0.0.1:8082"], ["m-8081", "m-8082"]),
        (["http://gpu:8081", "http://gpu:8082", "http://laptop"], ["m-8081", "m-8082", "laptop"]),
        (["http://10.0.0.1:80", "http://10.0.0.2:80", "http://[::1]:80"], ["m-80", "m-80-2", "m-80-3"]),
        (["http://localhost:8081"], ["m"]),
        (["http://m-8082", "http://localhost:8082"], ["m-8082", "m-8082-2"]),
    ],
)
def test_names_of_servers(urls: list[str], names: list[str]) -> None:
    assert server_names([found(url, "m.gguf") for url in urls]) == names


def test_last_part() -> None:
    assert [last_part(path) for path in ("/a/b", "a\\b", "a/b/", "b")] == ["b"] * 4


# -- what should be tried ----------------------------------------------------------------------------------

CASES: dict[str, tuple[list[Found], dict[str, tuple[object, ...]]]] = {
    "a small model drafts for a big one": ([BIG, SMALL], {"Qwen3-32B": ("server", "remote", "laptop")}),
    "the order of the addresses says nothing": ([SMALL, BIG], {"Qwen3-32B": ("server", "remote", "laptop")}),
    "one model drafts by looking up": ([BIG], {"Qwen3-32B": ("server", "prompt_lookup", None)}),
    "a small one that is slower does not draft": (
        [BIG, replace(SMALL, speed=4.0)],
        {"Qwen3-32B": ("server", "prompt_lookup", None), "Qwen3-0.6B": ("laptop", "prompt_lookup", None)},
    ),
    "sizes of the same order both answer": (
        [BIG, found("http://laptop", "Mistral-24B.gguf", size=14, speed=9)],
        {"Qwen3-32B": ("server", "prompt_lookup", None), "Mistral-24B": ("laptop", "prompt_lookup", None)},
    ),
    "where no sizes are known the faster one drafts": (
        [replace(BIG, info=replace(BIG.info, n_bytes=None)), replace(SMALL, info=replace(SMALL.info, n_bytes=None))],
        {"Qwen3-32B": ("server", "remote", "laptop")},
    ),
    "parameters do where bytes are not known": (
        [found("http://a", "A.gguf", size=None, n_params=8), found("http://b", "B.gguf", size=None, n_params=70)],
        {"B": ("b", "prompt_lookup", None), "A": ("a", "prompt_lookup", None)},
    ),
    "of three sizes the fastest drafts for both": (
        [BIG, SMALL, found("http://mid", "Qwen3-8B.gguf", size=5, speed=20)],
        {"Qwen3-32B": ("server", "remote", "laptop"), "Qwen3-8B": ("mid", "remote", "laptop")},
    ),
    "another vocabulary drafts as text if it is tiny, and answers too": (
        [BIG, found("http://laptop", "Llama-1B.gguf", size=0.8, speed=50, n_vocab=128_000)],
        {"Qwen3-32B": ("server", "remote", "laptop"), "Llama-1B": ("laptop", "prompt_lookup", None)},
    ),
    "another vocabulary and not tiny": (
        [BIG, found("http://laptop", "Llama-8B.gguf", size=8, speed=20, n_vocab=128_000)],
        {"Qwen3-32B": ("server", "prompt_lookup", None), "Llama-8B": ("laptop", "prompt_lookup", None)},
    ),
    "one's own vocabulary comes before speed": (
        [BIG, SMALL, found("http://mini", "Llama-1B.gguf", size=0.5, speed=500, n_vocab=128_000)],
        {"Qwen3-32B": ("server", "remote", "laptop"), "Llama-1B": ("mini", "prompt_lookup", None)},
    ),
    "two families": (
        [
            *(BIG, SMALL),
            found("http://c", "Llama-70B.gguf", size=40, speed=3, n_vocab=128_000),
            found("http://d", "Llama-1B.gguf", size=0.8, speed=50, n_vocab=128_000),
        ],
        {"Llama-70B": ("c", "remote", "d"), "Qwen3-32B": ("server", "remote", "laptop")},
    ),
    "replicas that verify": (
        [BIG, found("http://other", spec=POOL), SMALL],
        {"Qwen3-32B": ("server", "other", "remote", "laptop")},
    ),
    "a target with a pool and one without": (
        [PLAIN_BIG, BIG, SMALL],
        {"Qwen3-32B": ("server", "remote", "laptop")},
    ),
    "builds that do not say: each is tried": (
        [replace(BIG, spec_types=None), replace(PLAIN_BIG, spec_types=None)],
        {"Qwen3-32B": ("server", "other", "prompt_lookup", None)},
    ),
    "heads of its own": ([replace(BIG, spec_types=HEADS), SMALL], {"Qwen3-32B": ("server", "rpc", "server")}),
    "heads of its own beside a plain one": (
        [PLAIN_BIG, replace(BIG, spec_types=HEADS)],
        {"Qwen3-32B": ("other", "rpc", "server")},
    ),
    "one model in two types": (
        [found("http://a", "M-F16.gguf", size=16, speed=5), found("http://b", "M-Q4_0.gguf", size=5, speed=15)],
        {"M-F16": ("a", "remote", "b")},
    ),
    "embeddings are not tried": ([found("http://e", "bge.gguf", kind=Kind.EMBEDS)], {}),
}


@pytest.mark.parametrize("case", CASES)
def test_proposed(case: str) -> None:
    servers, routes = CASES[case]
    assert shape(propose(servers)) == routes


def test_other_details_of_what_is_proposed() -> None:
    plan = propose([BIG, found("http://other", spec=POOL, speed=4), SMALL], port=8000)
    (route,) = plan.routes
    assert plan.port == 8000
    assert (route.aliases, route.are_alike, route.as_text) == (["default"], True, True)
    assert route.why == ["laptop drafts: its model has 3% of the weights and is 12.0 times as fast."]
    (uneven,) = propose([BIG, found("http://other", spec=POOL, speed=1)]).routes
    assert not uneven.are_alike
    assert list(uneven.targets) == ["server", "other"]


# -- what is left of it ------------------------------------------------------------------------------------


def settled(servers: list[Found], **pairs: list[PairReport]) -> Plan:
    """The plan for servers; `pairs` are what trying out their routes found, by the beginning of the name."""
    plan = propose(servers)
    by_name = {route.name: pairs.get(route.name.partition("-")[0], []) for route in plan.routes}
    return settle(plan, checked(plan, by_name))


def test_verified_drafts_have_a_plain_route_beside_them() -> None:
    plan = settled([BIG, SMALL], Qwen3=[verifies("server")])
    assert shape(plan) == {"Qwen3-32B": ("server", "remote", "laptop"), "Qwen3-32B-plain": ("server",)}
    drafting, plain = plan.routes
    assert drafting.why[-1] == "Tried out: server verifies drafts (inject: n_match=8)."
    assert (drafting.as_text, drafting.aliases, plain.aliases) == (False, ["default"], ())


def test_without_a_pool_it_is_served_plainly_and_the_draft_server_has_its_own_route() -> None:
    pair = PairReport(
        "server", "inject: no pool; fanout: one slot", advice=f"start it with {FLAGS}; start it with -np 4"
    )
    plan = settled([replace(BIG, spec_types=NOTHING), SMALL], Qwen3=[pair])
    assert shape(plan) == {"Qwen3-32B": ("server", "remote", "laptop", "blocked"), "Qwen3-0.6B": ("laptop",)}
    assert (plan.routes[0].obstacle, plan.routes[0].remedy) == ("no pool", f"start it with {FLAGS}")
    assert not plan.routes[0].drafts


def test_drafts_cross_as_text_where_tokenizers_differ() -> None:
    plan = settled([BIG, SMALL], Qwen3=[verifies("server", mismatches=["EOS: 1, not 2"], on_mismatch="text")])
    assert plan.routes[0].as_text
    assert plan.routes[0].why[-1] == "The tokenizers differ, so drafts cross as text (EOS: 1, not 2)."


def test_a_plain_server_of_the_same_model_is_the_first_of_the_plain_route() -> None:
    plan = settled([BIG, PLAIN_BIG, SMALL], Qwen3=[verifies("server")])
    assert shape(plan)["Qwen3-32B-plain"] == ("other", "server")
    assert not plan.routes[1].are_alike


def test_of_servers_that_did_not_say_those_that_verify_draft() -> None:
    servers = [replace(BIG, spec_types=None), replace(PLAIN_BIG, spec_types=None), SMALL]
    plan = settled(servers, Qwen3=[PairReport("server", "no pool"), verifies("other")])
    assert shape(plan) == {"Qwen3-32B": ("other", "remote", "laptop"), "Qwen3-32B-plain": ("server", "other")}


def test_one_that_verifies_by_itself_comes_before_one_that_is_asked_for_each_token() -> None:
    servers = [replace(BIG, spec_types=None), replace(PLAIN_BIG, spec_types=None)]
    plan = settled(servers, Qwen3=[verifies("server", verifier="fanout"), verifies("other")])
    assert list(plan.routes[0].targets) == ["other"]
    plan = settled(servers, Qwen3=[verifies("server", verifier="fanout"), PairReport("other", "no pool")])
    assert list(plan.routes[0].targets) == ["server"]


def test_replicas_are_replicas_on_the_plain_route_too() -> None:
    plan = settled([BIG, found("http://other", spec=POOL)], Qwen3=[verifies("server"), verifies("other")])
    assert [list(route.targets) for route in plan.routes] == [["server", "other"]] * 2
    assert [route.are_alike for route in plan.routes] == [True, True]


def test_heads_of_its_own() -> None:
    heads = replace(BIG, spec_types=HEADS)
    drafts = PairReport("server", None, verifier="rpc", details={"drafted": 9}, drafts_itself=True)
    assert shape(settled([heads], Qwen3=[drafts])) == {"Qwen3-32B": ("server", "rpc", "server")}
    assert shape(settled([heads, PLAIN_BIG], Qwen3=[drafts])) == {
        "Qwen3-32B": ("other", "rpc", "server"),
        "Qwen3-32B-plain": ("other",),
    }
    nothing = PairReport("server", "server server drafts nothing", drafts_itself=True)
    slower = replace(drafts, loss="even with drafts that are all accepted, only x0.5 of the speed of other")
    for report in (nothing, slower):
        assert shape(settled([heads, PLAIN_BIG], Qwen3=[report])) == {
            "Qwen3-32B": ("other", "server", "rpc", "server", "blocked")
        }


def test_every_server_has_a_place() -> None:
    servers = [
        *(BIG, SMALL, replace(SMALL, address=found("http://spare").address)),
        found("http://e", "bge-m3.gguf", kind=Kind.EMBEDS),
        found("http://r", "bge-m3.gguf", kind=Kind.RERANKS),
        found("http://p", "Qwen3-32B-plain.gguf", size=30, spec=POOL),
    ]
    plan = settled(servers, Qwen3=[verifies("server")])
    routes = shape(plan)
    assert routes["Qwen3-0.6B"] == ("spare",)
    assert routes["bge-m3"] == ("e",)
    assert routes["bge-m3-2"] == ("r",)
    used = {name for route in plan.routes for name in (*route.targets, route.draft and route.draft.server)}
    assert set(plan.found) <= used
    assert len(routes) == len(plan.routes)


def test_nothing_to_try_out() -> None:
    plan = settle(propose([found("http://e", "bge.gguf", kind=Kind.EMBEDS)]), None)
    assert shape(plan) == {"bge": ("e",)}
    assert shape(settle(propose([BIG]), Report([], []))) == {"Qwen3-32B": ("server", "prompt_lookup", None)}


# -- advice ------------------------------------------------------------------------------------------------


def advice(servers: list[Found], *pairs: PairReport) -> str:
    return "\n".join(advise(settled(servers, Qwen3=list(pairs))))


def test_flags_that_are_missing() -> None:
    said = advice([BIG, SMALL], PairReport("server", "no pool", advice=f"start it with {FLAGS}"))
    assert f"Qwen3-32B is answered without drafts, since no pool: start it with {FLAGS}." in said


def test_flags_of_the_other_server_of_a_model() -> None:
    said = advice([BIG, PLAIN_BIG, SMALL], verifies("server"))
    assert said == f"other has the model of server, and would verify drafts too, started with {FLAGS}."


def test_nothing_to_say() -> None:
    assert advice([BIG, SMALL], verifies("server")) == ""


def test_no_draft_model() -> None:
    assert "There is no draft model for Qwen3-32B." in advice([BIG], verifies("server"))


def test_a_slow_draft_server_and_where_it_would_be_fast() -> None:
    slow = replace(SMALL, speed=4.0)
    said = advice([BIG, slow], verifies("server"))
    assert (
        "laptop could draft for server by its size, but generates 4.0 tokens/s, no faster than server with 5.0" in said
    )
    assert "such as" not in said
    fast = found("http://gpu:8080", "Llama-8B.gguf", size=8, speed=40, n_vocab=128_000)
    assert "such as the one of gpu, which computes 133 times as much" in advice([BIG, slow, fast], verifies("server"))


def test_a_draft_model_that_is_hardly_faster() -> None:
    assert "laptop is only 1.6 times as fast as server." in advice([BIG, replace(SMALL, speed=8.0)], verifies("server"))


def test_both_on_one_machine() -> None:
    small = found("http://server:8081", "Qwen3-0.6B-Q8_0.gguf", size=0.6, speed=60)
    said = advice([BIG, small], verifies("Qwen3-32B"))
    assert "Qwen3-0.6B and Qwen3-32B are on one machine." in said


def test_a_short_context() -> None:
    small = replace(SMALL, info=replace(SMALL.info, n_ctx=2048))
    said = advice([BIG, small], verifies("server"))
    assert said.startswith("laptop has a context of 2048 tokens, server of 8192: longer prompts")


def test_text_is_second_best() -> None:
    said = advice([BIG, SMALL], verifies("server", mismatches=["x"], on_mismatch="text"))
    assert said == "A draft model with the vocabulary of Qwen3-32B itself would have more of its drafts accepted."
