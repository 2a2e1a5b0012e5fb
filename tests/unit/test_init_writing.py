"""The topology that is written: always loadable, and it means what was planned, whatever servers call themselves."""

from __future__ import annotations

import string
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from init_support import BIG, GB, SMALL, checked, found, verifies

from specrouter.checking import PairReport
from specrouter.config import LoadedTopology, load_topology
from specrouter.config.source import read_document
from specrouter.init.addresses import read_address
from specrouter.init.advice import advise
from specrouter.init.deciding import propose, settle
from specrouter.init.findings import Found, LeftOut
from specrouter.init.plan import Plan
from specrouter.init.writing import quoted, render, size_text
from specrouter.types import ServerInfo

HOSTILE = st.one_of(
    st.text(),
    st.text(alphabet="\"'\\\n\r\t\0#:{}[]$&*!|>%@`-? ~,é\u2028\ufeff\U0001f600\ud800"),
    st.sampled_from(
        ["${HOME}", "null", "true", "1e3", "0x1F", "- x", "a: b", "a #b", "<<", "$$", "---", "...", "=", ""]
    ),
)

ENVIRONMENT = {"BIG_KEY": "hush-hush", "BIG_HOST": "server"}


def loaded(text: str) -> LoadedTopology:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "topology.yaml"
        file.write_text(text, encoding="utf-8")
        return load_topology(file, ENVIRONMENT)


def plan_for(servers: list[Found], left_out: list[LeftOut] | None = None, **pair: object) -> Plan:
    """A settled plan in which everything is verified, unless there is an `obstacle`."""
    plan = propose(servers, left_out or [])
    pairs = {
        route.name: [
            PairReport(target, **pair) if pair else verifies(target)  # type: ignore[arg-type]
            for target in route.targets
        ]
        for route in plan.routes
    }
    settled = settle(plan, checked(plan, pairs))
    return replace(settled, advice=advise(settled))


# -- texts -------------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(HOSTILE)
def test_any_text_is_read_as_it_is(text: str) -> None:
    yaml = f"one: {quoted(text)}\n? {quoted(text)}\n: [{quoted(text)}, {{two: {quoted(text)}}}]\n"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "any.yaml"
        file.write_text(yaml, encoding="utf-8")
        document = read_document(file, {})
    assert document.problems == []
    assert document.data["one"] == text
    # Keys are read as they are written: a dollar sign there is doubled for nothing.
    assert document.data[text.replace("$", "$$")] == [text, {"two": text}]


@settings(deadline=None)
@given(st.text(alphabet=string.ascii_letters + string.digits + "._/:-", min_size=1))
def test_names_are_quoted_only_where_they_must_be(name: str) -> None:
    assert quoted(name) in (name, f'"{name}"')


def test_short_names_have_no_quotes() -> None:
    assert [quoted(name) for name in ("laptop", "Qwen3-0.6B", "null", "true", "7")] == [
        *("laptop", "Qwen3-0.6B", '"null"', '"true"', '"7"')
    ]


# -- whole topologies --------------------------------------------------------------------------------------


@settings(deadline=None)
@given(models=st.lists(HOSTILE, min_size=2, max_size=3), reason=HOSTILE, is_blocked=st.booleans())
def test_whatever_servers_call_themselves(models: list[str], reason: str, is_blocked: bool) -> None:
    infos = [
        ServerInfo(model=model, model_path=model, ftype=model, n_bytes=(index * 4 + 1) * GB, n_vocab=9, vocab_type=2)
        for index, model in enumerate(models)
    ]
    servers = [
        replace(BIG, address=read_address(f"host{index}", {}), info=info, speed=10.0 - index)
        for index, info in enumerate(infos)
    ]
    left_out = [LeftOut(read_address("away:1", {}), reason)]
    pair: dict[str, object] = {"obstacle": reason, "advice": reason} if is_blocked else {}
    plan = plan_for(servers, left_out, **pair)
    result = loaded(render(plan))
    assert result.warnings == ()
    assert_same(plan, result)


def assert_same(plan: Plan, result: LoadedTopology) -> None:
    """The topology is what was planned."""
    topology = result.topology
    assert {name: server.url for name, server in topology.servers.items()} == {
        name: server.address.url for name, server in plan.found.items()
    }
    assert list(topology.routes) == [route.name for route in plan.routes]
    for route in plan.routes:
        config = topology.routes[route.name]
        assert config.targets == tuple(route.targets)
        assert config.aliases == tuple(route.aliases)
        assert config.draft.name == (route.draft.use if route.draft and route.drafts else "none")
        assert config.draft.options.get("server") == (route.draft.server if route.draft and route.drafts else None)
        assert (config.balance == "least_busy") == (route.are_alike and len(route.targets) > 1)
        assert (config.on_tokenizer_mismatch == "text") == (route.drafts and route.as_text)
    assert (topology.listen.host, topology.listen.port) == ("127.0.0.1", plan.port)
    assert topology.listen.api_keys == ()


def test_drafting_route() -> None:
    plan = plan_for([BIG, SMALL])
    text = render(plan)
    assert_same(plan, loaded(text))
    assert text.partition("routes:\n")[2] == (
        "  # laptop drafts: its model has 3% of the weights and is 12.0 times as fast.\n"
        "  # Tried out: server verifies drafts (inject: n_match=8).\n"
        "  Qwen3-32B:\n"
        "    aliases: [default]\n"
        "    target: server\n"
        "    draft: {use: remote, options: {server: laptop}}\n"
        "  # The same model without drafts, to compare.\n"
        "  Qwen3-32B-plain:\n"
        "    target: server\n"
    )


def test_drafts_that_cannot_be_verified_yet_need_only_their_comment_sign_taken_away() -> None:
    plan = plan_for([BIG, SMALL], obstacle="no pool", advice="start it with --x")
    text = render(plan)
    assert "    # No drafts yet: no pool.\n    # To change that: start it with --x. Then take the # away:\n" in text
    assert_same(plan, loaded(text))
    changed = loaded(text.replace("    # draft:", "    draft:"))
    assert changed.topology.routes["Qwen3-32B"].draft.options == {"server": "laptop"}


def test_replicas_and_text() -> None:
    plan = plan_for([BIG, replace(BIG, address=read_address("other", {})), SMALL])
    text = render(replace(plan, routes=[replace(plan.routes[0], as_text=True)]))
    assert "target: [server, other]\n    balance: least_busy" in text
    assert loaded(text).topology.routes["Qwen3-32B"].on_tokenizer_mismatch == "text"


def test_keys_and_hosts_are_variables() -> None:
    server = replace(BIG, address=read_address("http://${BIG_KEY}@${BIG_HOST}:8080", ENVIRONMENT))
    text = render(plan_for([server]))
    assert '  server: {url: "http://${BIG_HOST}:8080", api_key: "${BIG_KEY}"}\n' in text
    assert "hush" not in text
    config = loaded(text).topology.servers["server"]
    assert (config.url, config.api_key) == ("http://server:8080", "hush-hush")


def test_listening_for_others_is_a_comment_with_keys() -> None:
    text = render(plan_for([BIG]))
    (line,) = [line for line in text.splitlines() if "0.0.0.0" in line]
    opened = text.replace("listen: {host: 127.0.0.1, port: 8080}\n", "").replace(line, line.removeprefix("# "))
    with pytest.raises(Exception, match="no variable SPECROUTER_API_KEY"):
        loaded(opened)


def test_facts() -> None:
    server = found(
        "http://a", "dir/M-Q4_K_M.gguf", n_params=32_800_000_000, modalities=("vision",), ftype="Q4_K", slots=1
    )
    text = render(plan_for([server]))
    assert (
        "  # M-Q4_K_M.gguf, Q4_K, 20.0 GiB, 32.8B parameters, context 8192, 1 slot, takes vision, 5.0 tokens/s alone\n"
        in text
    )
    assert size_text(92 * 2**20) == "92 MiB"
