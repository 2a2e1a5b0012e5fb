"""Tokenizer check `vocabulary`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from specrouter.hookspecs import hookimpl
from specrouter.interfaces import TokenizerCheck
from specrouter.types import Mismatch, Token
from specrouter.upstream import LlamaServer

_PADDING = 1024
"""Vocabularies are padded to round sizes for speed; sizes this close may be one vocabulary."""

_TOGETHER = 32_768
"""Ids whose texts are asked for in one request: about 40 ms of a server's time."""

_TYPES = {0: "none", 1: "SPM", 2: "BPE", 3: "WPM", 4: "UGM", 5: "RWKV", 6: "PLaMo-2"}
"""What llama.cpp calls its types of vocabularies."""


class Vocabulary(TokenizerCheck):
    """Compare vocabulary type and size, special tokens, and the texts of all ids."""

    name = "vocabulary"

    async def check(self, draft: LlamaServer, target: LlamaServer) -> Sequence[Mismatch]:
        """All mismatches, the basic ones first. A few requests to each server, none of which takes a slot."""
        mismatches = [*_differing_facts(draft, target)]
        if mismatches:
            return mismatches
        mismatches += await _differing_specials(draft, target)
        # Ids beyond the smaller one are padding, and never sent.
        size = min(server.info.n_vocab or 0 for server in (draft, target))
        for start in range(0, size, _TOGETHER):
            found = await _differing_texts(draft, target, range(start, min(start + _TOGETHER, size)))
            if found is not None:
                return [*mismatches, found]
        return mismatches


def _differing_facts(draft: LlamaServer, target: LlamaServer) -> Iterator[Mismatch]:
    one, other = draft.info, target.info
    if one.vocab_type != other.vocab_type:
        yield Mismatch("vocabulary type", _type(one.vocab_type), _type(other.vocab_type))
    if one.n_vocab is None or other.n_vocab is None:
        yield Mismatch("vocabulary size", *(str(size or "not said which") for size in (one.n_vocab, other.n_vocab)))
    elif abs(one.n_vocab - other.n_vocab) > _PADDING:
        yield Mismatch("vocabulary size", str(one.n_vocab), str(other.n_vocab))


async def _differing_specials(draft: LlamaServer, target: LlamaServer) -> list[Mismatch]:
    """What they add to a prompt, and which ids the names of their own special tokens have.

    That one calls another token its EOS, as the base and the chat model of a family do, harms no draft.
    """
    mismatches = []
    one, other = [await server.tokenize("", add_special=True) for server in (draft, target)]
    if one != other:
        mismatches.append(Mismatch("tokens added to a prompt", _shown(one), _shown(other)))
    names = [name for server in (draft, target) for name in (server.info.bos_token, server.info.eos_token) if name]
    for name in dict.fromkeys(names):
        one, other = [await server.tokenize(name) for server in (draft, target)]
        if one != other:
            mismatches.append(Mismatch(f"special token {name!r}", _shown(one), _shown(other)))
    return mismatches


async def _differing_texts(draft: LlamaServer, target: LlamaServer, ids: Sequence[int]) -> Mismatch | None:
    """Halve a differing range of ids until the first differing id is alone."""
    one, other = [await server.detokenize(ids) for server in (draft, target)]
    if one == other:
        return None
    if len(ids) == 1:
        return Mismatch(f"text of token {ids[0]}", repr(one), repr(other))
    middle = len(ids) // 2
    return await _differing_texts(draft, target, ids[:middle]) or await _differing_texts(draft, target, ids[middle:])


def _type(number: int | None) -> str:
    return "not said which" if number is None else _TYPES.get(number, str(number))


def _shown(tokens: Sequence[Token]) -> str:
    return ", ".join(f"{token.id} {token.piece!r}" for token in tokens) or "none"


@hookimpl
def specrouter_tokenizer_checks() -> list[type[TokenizerCheck]]:
    return [Vocabulary]
