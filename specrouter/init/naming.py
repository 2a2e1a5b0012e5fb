"""Names for servers and routes. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from specrouter.config.addresses import ip_address
from specrouter.types import ServerInfo

from .findings import Found, last_part

_LONGEST = 60
_SHARD = re.compile(r"-\d{5}-of-\d{5}$")
_FILE = re.compile(r"(?i)[-._]?gguf$")
_QUANTISED = re.compile(r"(?i)[-._:](?:UD[-_])?(?:I?Q\d(?:_[A-Z0-9]+)*|TQ\d_\d|BF16|F16|F32|FP16|FP8|MXFP4(?:_MOE)?)$")


def route_name(info: ServerInfo, *, whole: bool = False) -> str:
    """What clients call a model: its name without folder, file ending and quantisation (or with it: `whole`).

    That a model is quantised in another way then changes nothing for clients. Never `default`, which means any model.
    """
    name = _FILE.sub("", _SHARD.sub("", _FILE.sub("", last_part(info.model or info.model_path or ""))))
    if not whole:
        name = _FILE.sub("", _QUANTISED.sub("", name))
    name = _possible(name)
    return name if name not in ("", "default") else "model"


def server_names(found: Sequence[Found]) -> list[str]:
    """A name for each server: that of its machine where it is the only one there, else that of its model.

    Those with one model have their port behind it.
    """
    hosts = [_host_name(server.address.host) for server in found]
    models = [route_name(server.info) for server in found]
    names: list[str] = []
    for server, host, model in zip(found, hosts, models, strict=True):
        name = model if models.count(model) == 1 else f"{model}-{server.address.port}"
        names.append(unused(host if host and hosts.count(host) == 1 else name, names))
    return names


def unused(name: str, taken: Sequence[str]) -> str:
    """The name, with a number behind it where it is taken."""
    number, found = 2, name
    while found in taken:
        found, number = f"{name}-{number}", number + 1
    return found


def _host_name(host: str) -> str:
    """`gpu` for `gpu.example.org`; nothing for numbers and for this machine, which say little."""
    first = host.split(".")[0]
    is_number = ip_address(host) is not None or not re.search("[A-Za-z]", first)
    return "" if is_number or host.lower() == "localhost" else _possible(first)


def _possible(name: str) -> str:
    """A name that a topology takes."""
    return re.sub(r"[^A-Za-z0-9._:]+", "-", name)[:_LONGEST].strip("-._:")
