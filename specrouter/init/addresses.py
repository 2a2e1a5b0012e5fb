"""The addresses that people give: what is asked, and what a topology may say of them. Pure."""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from specrouter.config.addresses import ip_address, url_problem
from specrouter.config.sections import KEY_PATTERN, KEY_WORDS
from specrouter.errors import SetupError
from specrouter.request_log import visible

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^${}]*))?\}")
_KEY = re.compile(r"(https?://)([^/?#]*)@(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Key:
    """A server's key: the environment variable that holds it, and what is in it, which stands nowhere else."""

    variable: str
    secret: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server is. `written` is what the topology says, with variables; `url` is what that means now."""

    written: str
    url: str
    key: Key | None = None

    @property
    def host(self) -> str:
        """The name or address of the machine."""
        return urllib.parse.urlsplit(self.url).hostname or ""

    @property
    def port(self) -> int:
        """The port, also where it is left to the scheme."""
        parts = urllib.parse.urlsplit(self.url)
        return parts.port or (443 if parts.scheme == "https" else 80)

    @property
    def is_local(self) -> bool:
        """It is one of this machine's own."""
        address = ip_address(self.host)
        return self.host == "localhost" or (address is not None and address.is_loopback)


def read_key(variable: str, environ: Mapping[str, str]) -> Key:
    """The key in an environment variable. Raises SetupError."""
    secret = environ.get(variable)
    if not secret or not _NAME.fullmatch(variable):
        raise SetupError(f"the environment has no variable {visible(variable)} (it should hold the key of a server)")
    if not re.search(KEY_PATTERN, secret):
        raise SetupError(f"the key in the variable {variable} {KEY_WORDS}")
    return Key(variable, secret)


def read_address(given: str, environ: Mapping[str, str]) -> Address:
    """An address as people write it. Raises SetupError where it is none.

    A bare `host:port` is http, a `/v1` at the end is left out, `http://${NAME}@host:port` has its key in the variable
    NAME, and `${NAME}` may stand elsewhere too.
    """
    text = given.strip()
    if not re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", text):
        text = f"http://{text}"
    text = re.sub(r"(/v1)?/*$", "", text)
    variable = None
    with_key = _KEY.fullmatch(text)
    if with_key is not None:
        name = _VARIABLE.fullmatch(with_key[2].removeprefix(":"))
        if name is None or name[2] is not None:
            # Not shown: it may be a key.
            raise SetupError(
                f"the address of {visible(with_key[3])} has a user or a key in it (put the key into a variable, and "
                f"write '{with_key[1]}${{NAME}}@{visible(with_key[3])}' or --api-key-env NAME)"
            )
        variable, text = name[1], with_key[1] + with_key[3]
    address = Address(text, _expanded(text, environ))
    problem = url_problem(address.url, is_shown=text == address.url)
    if problem is None and "$" in address.url:
        problem = "has a `$` that is no variable (write ${NAME})"
    if problem is not None:
        raise SetupError(f"{visible(text)}: {problem}")
    return address if variable is None else replace(address, key=read_key(variable, environ))


def _expanded(text: str, environ: Mapping[str, str]) -> str:
    def value(match: re.Match[str]) -> str:
        found = environ.get(match[1]) or match[2]
        if found is None:
            raise SetupError(f"{visible(text)}: the environment has no variable {match[1]}")
        return found

    return _VARIABLE.sub(value, text)
