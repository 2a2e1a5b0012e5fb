"""Addresses as people write them."""

from __future__ import annotations

import pytest

from specrouter.errors import SetupError
from specrouter.init.addresses import Key, read_address, read_key

ENVIRONMENT = {"BIG_KEY": "hush-hush", "BIG_HOST": "server", "EMPTY": "", "BAD_KEY": "two words"}


@pytest.mark.parametrize(
    ("given", "written"),
    [
        ("localhost:8081", "http://localhost:8081"),
        ("laptop", "http://laptop"),
        (" 10.0.0.2:8080 ", "http://10.0.0.2:8080"),
        ("[::1]:8080", "http://[::1]:8080"),
        ("http://laptop:8080/", "http://laptop:8080"),
        ("https://laptop/base/v1/", "https://laptop/base"),
        ("laptop:8080/v1", "http://laptop:8080"),
    ],
)
def test_written_in_many_ways(given: str, written: str) -> None:
    address = read_address(given, {})
    assert (address.written, address.url, address.key) == (written, written, None)


@pytest.mark.parametrize(
    ("given", "port"), [("laptop", 80), ("https://laptop", 443), ("laptop:8080", 8080), ("[::1]:1", 1)]
)
def test_port(given: str, port: int) -> None:
    assert read_address(given, {}).port == port


@pytest.mark.parametrize(
    ("given", "is_local"),
    [("localhost", True), ("[::1]", True), ("127.0.0.2", True), ("10.0.0.1", False), ("gpu", False)],
)
def test_this_machine(given: str, is_local: bool) -> None:
    assert read_address(given, {}).is_local is is_local


def test_variables_stay_in_what_is_written() -> None:
    address = read_address("${BIG_HOST}:${BIG_PORT:-8080}", ENVIRONMENT)
    assert address.written == "http://${BIG_HOST}:${BIG_PORT:-8080}"
    assert address.url == "http://server:8080"
    assert address.host == "server"


@pytest.mark.parametrize("given", ["http://${BIG_KEY}@server:8080", "${BIG_KEY}@server:8080"])
def test_a_key_stays_in_its_variable(given: str) -> None:
    address = read_address(given, ENVIRONMENT)
    assert (address.written, address.url) == ("http://server:8080", "http://server:8080")
    assert address.key == Key("BIG_KEY", "hush-hush")
    assert "hush-hush" not in repr(address)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ("ftp://server", "must begin with http:// or https://"),
        ("server:99999", "is not an address of a server"),
        ("http://", "names no possible host"),
        ("", "names no possible host"),
        ("http://server?x=1", "must not have a query"),
        ("two words", "characters that no URL has"),
        ("${NOWHERE}:8080", "the environment has no variable NOWHERE"),
        ("${EMPTY}:8080", "the environment has no variable EMPTY"),
        ("http://${EMPTY}@server", "the environment has no variable EMPTY"),
        ("http://${BAD_KEY}@server", "the key in the variable BAD_KEY must be printable ASCII without spaces"),
        ("http://${BIG_KEY:-x}@server", "has a user or a key in it"),
        ("http://server:80$x", "is not an address"),
        ("http://server/$x", "a `$` that is no variable"),
        ("\x1b[31m:80", r"\\x1b"),
    ],
)
def test_what_is_none(given: str, problem: str) -> None:
    with pytest.raises(SetupError, match=problem.replace("(", r"\(").replace("$", r"\$").replace("?", r"\?")):
        read_address(given, ENVIRONMENT)


@pytest.mark.parametrize("given", ["http://hush-hush@server", "http://me:hush-hush@server:8080/v1"])
def test_a_key_is_not_shown(given: str) -> None:
    with pytest.raises(SetupError) as caught:
        read_address(given, ENVIRONMENT)
    assert "hush-hush" not in str(caught.value)
    assert "'http://${NAME}@server" in str(caught.value)


@pytest.mark.parametrize("variable", ["NOWHERE", "EMPTY", "BAD_KEY", "a}b"])
def test_keys_that_cannot_be_used(variable: str) -> None:
    with pytest.raises(SetupError) as caught:
        read_key(variable, {**ENVIRONMENT, "a}b": "hush-hush"})
    assert variable in str(caught.value)
    assert "two words" not in str(caught.value)
