"""Tokenizer check `probe_text`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import zip_longest

from specrouter.hookspecs import hookimpl
from specrouter.interfaces import TokenizerCheck
from specrouter.types import Mismatch, Token
from specrouter.upstream import LlamaServer

_TEXTS = (
    "The quick brown fox isn't lazy; it's, well, over-achieving (see p. 12), THEY'RE sure!",
    "def f(x: int) -> str:\n\treturn f'{x ** 2:>8}'  # naïve\n\n\n    if not x:\r\n        raise ValueError(\"no\")\n",
    "const a = b?.c ?? [...d, `${e}`]; /* <div class='f'>&amp;</div> */ i++; j !== k && l >>= 1;",
    '{"key": [1, 2.50, -3e-7, null], "path": "C:\\\\dir\\\\file", "url": "https://example.org/?q=a%20b#c"}',
    "0 7 42 123 1234 12345 123456789 1,234,567.89 0x1F 1e10 3.14159265358979 2024-02-29T23:59:59Z ½ ² Ⅷ ٣٤",
    " a  b   c    d     e        f                g\t\th\t \t i\n j \n\n k\r\n\r\nl\u00a0m\u2003n\u3000o   ",
    "日本語のトークン化、漢字かな交じり文。中文分词测试：你好，世界！한국어 토큰 나누기 ภาษาไทย",  # noqa: RUF001
    "Привет, мир! Γειά σου Κόσμε שלום עולם مرحبا بالعالم नमस्ते दुनिया Việt Ngữ Łódź straße İı",  # noqa: RUF001
    "😀👩‍👩‍👧‍👦🏳️‍🌈🇩🇪✊🏽👍 (╯°□°)╯︵ ┻━┻ ∀x∈ℝ: ∑ᵢ₌₁ⁿ ≤ ∞ → ⇒ € £ ¥ © ™ …",  # noqa: RUF001
    "e\u0301 u\u0308 a\u030a\u0323 o\u0302\u0303 Z\u0351\u036b\u0343a\u0334l\u0335g\u0336o \u0e01\u0e33 \ufb01 \u212b",
    # Characters that hardly any vocabulary has: their bytes are what is left.
    "\u0001\u0007\u001b[0m\u007f\u0085\u200b\u2028\ufeff\ufffd\ue000\uffff "
    "\U00013000\U0001d54f\U0002a6d6\U000e0041\U0010ffff",
    "Donaudampfschifffahrtselektrizitätenhauptbetriebswerkbauunterbeamtengesellschaft" + "a" * 100 + "xyz" * 40,
    "antidisestablishmentarianism camelCaseIdentifierNames snake_case_names SCREAMING_CASE kebab-case ------=====####",
)

_MARKUP = re.compile(r"<[^<>\s]+>|\[/?[A-Z_]+\]")
"""How special tokens are written in chat templates."""


class ProbeText(TokenizerCheck):
    """Compare how texts of many kinds and the special tokens of the chat templates are tokenised."""

    name = "probe_text"

    async def check(self, draft: LlamaServer, target: LlamaServer) -> Sequence[Mismatch]:
        """The first difference there is. A question to each server for each text, none of which takes a slot."""
        for text in (*_TEXTS, *_with_markup(draft, target)):
            tokens = [await server.tokenize(text) for server in (draft, target)]
            for position, (one, other) in enumerate(zip_longest(*tokens)):
                if one != other:
                    what = f"token {position} of {_shortened(text)}"
                    return [Mismatch(what, _shown(one), _shown(other))]
        return []


def _with_markup(draft: LlamaServer, target: LlamaServer) -> Iterator[str]:
    """The special tokens that the templates name, with text between them as in a chat, and side by side."""
    names = [name for server in (target, draft) for name in (server.info.bos_token, server.info.eos_token) if name]
    for server in (target, draft):
        names += _MARKUP.findall(server.info.chat_template or "")
    names = list(dict.fromkeys(names))
    if names:
        yield "".join(names)
        yield "".join(f"{name}user\nHi there! {name} \n\n" for name in names)


def _shortened(text: str) -> str:
    return repr(text) if len(text) <= 40 else f"{text[:40]!r}..."


def _shown(token: Token | None) -> str:
    return "no more" if token is None else f"{token.id} {token.piece!r}"


@hookimpl
def specrouter_tokenizer_checks() -> list[type[TokenizerCheck]]:
    return [ProbeText]
