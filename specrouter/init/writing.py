"""Writes a plan as a topology with comments. Pure."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence

from specrouter.config.source import would_be
from specrouter.request_log import cut, visible

from .findings import Found, Kind
from .plan import Draft, Plan, PlannedRoute

_WIDTH = 110
_LONGEST_COMMENT = 600

_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*")
_SHORT_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}


def quoted(text: str, *, variables: bool = False) -> str:
    """A text as YAML that is read as just this text, anywhere; with `variables`, its `${NAME}` are replaced then."""
    if not variables:
        text = text.replace("$", "$$")
    if _PLAIN.fullmatch(text) and would_be(text) is str:
        return text
    return '"' + "".join(_escaped(character) for character in text) + '"'


def _escaped(character: str) -> str:
    if character in _SHORT_ESCAPES:
        return _SHORT_ESCAPES[character]
    if character.isascii() and character.isprintable():
        return character
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def render(plan: Plan) -> str:
    """The topology as text. Whatever servers say about themselves is in comments only, on one line each."""
    lines = [*_head(), *_listen(plan.port), "servers:"]
    for name, found in plan.found.items():
        lines += _server(name, found)
    for left_out in plan.left_out:
        lines += _comment(f"Left out: {left_out.address.written}: {left_out.reason}", "  ")
    lines += ["", "# What clients see as models.", "routes:"]
    for route in plan.routes:
        lines += _route(route)
    if plan.advice:
        lines += ["", "# What would make it faster:"]
        for hint in plan.advice:
            lines += _item(hint)
    return "\n".join(lines) + "\n"


def _head() -> Iterator[str]:
    yield "# Written by `specrouter init` from what the servers said and how they did when they were tried. It is yours"
    yield "# now: change what you like, and ask `specrouter check` what is left to do."
    yield "version: 1"
    yield ""


def _listen(port: int) -> Iterator[str]:
    yield "# Where the router listens: here, this machine only."
    yield "listen: {host: 127.0.0.1, port: %d}" % port  # noqa: UP031  (braces)
    yield ""
    yield "# Before you open it to other machines, give it keys, or everybody there can use your servers:"
    yield f'# listen: {{host: 0.0.0.0, port: {port}, api_keys: ["${{SPECROUTER_API_KEY}}"]}}'
    yield ""


def _server(name: str, found: Found) -> Iterator[str]:
    yield from _comment(facts(found), "  ")
    fields = [f"url: {quoted(found.address.written, variables=True)}"]
    if found.address.key is not None:
        fields.append(f'api_key: "${{{found.address.key.variable}}}"')
    yield f"  {quoted(name)}: {{{', '.join(fields)}}}"


def facts(found: Found) -> str:
    """What is known of a server, in one line."""
    info = found.info
    known = [
        found.file or None,
        info.ftype,
        size_text(info.n_bytes),
        count_text(info.n_params, "parameters"),
        f"context {info.n_ctx}" if info.n_ctx else None,
        f"{info.slots} {'slot' if info.slots == 1 else 'slots'}" if info.slots else None,
        f"takes {' and '.join(info.modalities)}" if info.modalities else None,
        f"for {found.kind.value}" if found.kind is not Kind.GENERATES else None,
        f"{found.speed:.1f} tokens/s alone" if found.speed is not None else None,
    ]
    return ", ".join(visible(cut(fact, 80)) for fact in known if fact)


def size_text(size: int | None) -> str | None:
    """`18.4 GiB`, `92 MiB`; None where it is not known."""
    if size is None:
        return None
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"


def count_text(count: int | None, what: str) -> str | None:
    """`32.8B parameters`, `135M parameters`; None where it is not known."""
    if count is None:
        return None
    return f"{count / 1e9:.1f}B {what}" if count >= 1e9 else f"{count / 1e6:.0f}M {what}"


def _route(route: PlannedRoute) -> Iterator[str]:
    for reason in route.why if route.obstacle is None else ():
        yield from _comment(reason, "  ")
    yield f"  {quoted(route.name)}:"
    if route.aliases:
        yield f"    aliases: {_listed(route.aliases)}"
    yield f"    target: {quoted(route.targets[0]) if len(route.targets) == 1 else _listed(route.targets)}"
    if len(route.targets) > 1 and route.are_alike:
        yield "    balance: least_busy # a conversation stays where its prompt is cached"
    if route.draft is None:
        return
    lines = [f"draft: {_draft(route.draft)}"]
    if route.as_text:
        lines.append("on_tokenizer_mismatch: text")
    if route.obstacle is None:
        yield from (f"    {line}" for line in lines)
        return
    yield from _comment(f"No drafts yet: {route.obstacle}.", "    ")
    if route.remedy:
        yield from _comment(f"To change that: {route.remedy}. Then take the # away:", "    ")
    yield from (f"    # {line}" for line in lines)


def _draft(draft: Draft) -> str:
    if draft.server is None:
        return draft.use
    return f"{{use: {draft.use}, options: {{server: {quoted(draft.server)}}}}}"


def _listed(names: Sequence[str]) -> str:
    return f"[{', '.join(quoted(name) for name in names)}]"


def _item(text: str) -> Iterable[str]:
    first, *rest = _comment(text, "")
    return [f"# - {first[2:]}", *(f"#   {line[2:]}" for line in rest)]


def _comment(text: str, indent: str) -> list[str]:
    """A text as lines of a comment: nothing in it can end the comment."""
    words = visible(cut(text, _LONGEST_COMMENT))
    lines = textwrap.wrap(words, _WIDTH - len(indent), break_long_words=False, break_on_hyphens=False) or [""]
    return [f"{indent}# {line}" for line in lines]
