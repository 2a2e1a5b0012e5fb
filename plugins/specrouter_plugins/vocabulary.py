"""Tokenizer check `vocabulary`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from specrouter.hookspecs import hookimpl
from specrouter.interfaces import TokenizerCheck
from specrouter.types import Mismatch
from specrouter.upstream import LlamaServer

_PADDING = 1024
"""Vocabularies are padded to round sizes for speed; sizes this close may be one vocabulary."""

_TOGETHER = 32_768
"""Ids whose texts are asked for in one request."""

_PROBE = "Zürich 1987: def f(x):\n\treturn x**2  # naïve 日本語 👩‍👩‍👧\r\n\n  <b>don't</b>"


class Vocabulary(TokenizerCheck):
    """Compare vocabulary type and size, special tokens, and the texts of all ids."""

    name = "vocabulary"

    async def check(self, draft: LlamaServer, target: LlamaServer) -> Sequence[Mismatch]:
        """All mismatches, the basic ones first. A few requests to each server."""
        mismatches = [*_differing_facts(draft, target)]
        if mismatches:
            return mismatches
        draft_special, target_special = [await server.tokenize("", add_special=True) for server in (draft, target)]
        if draft_special != target_special:
            mismatches.append(Mismatch("tokens added to a prompt", str(draft_special), str(target_special)))
        size = min(server.info.n_vocab or 0 for server in (draft, target))
        for start in range(0, size, _TOGETHER):
            found = await _differing_texts(draft, target, range(start, min(start + _TOGETHER, size)))
            if found:
                mismatches += found
                break
        draft_probe, target_probe = [await server.tokenize(_PROBE) for server in (draft, target)]
        for one, other in zip(draft_probe, target_probe, strict=False):
            if one != other:
                what = "tokens of a probe text"
                mismatches.append(Mismatch(what, f"{one.id} {one.piece!r}", f"{other.id} {other.piece!r}"))
                break
        return mismatches


def _differing_facts(draft: LlamaServer, target: LlamaServer) -> Iterator[Mismatch]:
    one, other = draft.info, target.info
    if one.vocab_type != other.vocab_type:
        yield Mismatch("vocabulary type", str(one.vocab_type), str(other.vocab_type))
    if one.n_vocab is not None and other.n_vocab is not None and abs(one.n_vocab - other.n_vocab) > _PADDING:
        yield Mismatch("vocabulary size", str(one.n_vocab), str(other.n_vocab))
    if one.bos_token != other.bos_token:
        yield Mismatch("BOS token", repr(one.bos_token), repr(other.bos_token))


async def _differing_texts(draft: LlamaServer, target: LlamaServer, ids: Sequence[int]) -> list[Mismatch]:
    """Halve a differing range of ids until the first differing id is alone."""
    one, other = [await server.detokenize(ids) for server in (draft, target)]
    if one == other:
        return []
    if len(ids) == 1:
        return [Mismatch(f"text of token {ids[0]}", repr(one), repr(other))]
    middle = len(ids) // 2
    return await _differing_texts(draft, target, ids[:middle]) or await _differing_texts(draft, target, ids[middle:])


@hookimpl
def specrouter_tokenizer_checks() -> list[type[TokenizerCheck]]:
    return [Vocabulary]
