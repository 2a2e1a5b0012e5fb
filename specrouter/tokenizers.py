"""Comparisons of two servers' tokenizers, made once for all routes that need them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable
from dataclasses import dataclass, replace

import anyio

from .interfaces import TokenizerCheck
from .plugins import Bound, guard
from .types import Mismatch, ServerInfo
from .upstream import LlamaServer


@dataclass(frozen=True, slots=True)
class _Comparison:
    """What a check found, and the servers' epochs by name that it holds for."""

    mismatches: tuple[Mismatch, ...]
    epochs: dict[str, int]


class Comparisons:
    """What tokenizer checks found. Asked again when a server came back, or another one with another model."""

    def __init__(self) -> None:
        self._known: dict[Hashable, _Comparison] = {}
        self._locks: defaultdict[Hashable, anyio.Lock] = defaultdict(anyio.Lock)

    async def mismatches(
        self, check: Bound[TokenizerCheck], draft: LlamaServer, target: LlamaServer
    ) -> tuple[Mismatch, ...]:
        """What a check finds, now or before. Raises UpstreamError, PluginError."""
        options = repr(sorted(check.plugin.options.items()))
        key = (check.info.kind, check.info.name, options, _model(draft.info), _model(target.info))
        epochs = {server.name: server.epoch for server in (draft, target)}
        # A route's targets come up at the same time.
        async with self._locks[key]:
            known = self._known.get(key)
            if known is None or any(known.epochs.get(name, epoch) != epoch for name, epoch in epochs.items()):
                with guard(check.info):
                    found = await check.plugin.check(draft, target)
                known = self._known[key] = _Comparison(tuple(found), {})
            # A file may be another one the next time, and look the same from here.
            known.epochs.update(epochs)
            return known.mismatches


def _model(info: ServerInfo) -> ServerInfo:
    """What a server says about model and build, whatever its context and slots."""
    return replace(info, n_ctx=None, slots=None)
