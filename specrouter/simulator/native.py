"""llama-server's own drafting, by turns: first it drafts, then it verifies."""

from __future__ import annotations

from dataclasses import replace

from .conditions import Conditions
from .prediction import Prediction
from .traces import Trace

LENGTHS = (1, 2, 3, 4, 6, 8, 12, 16)
"""Longest drafts (`--spec-draft-n-max`) that are tried."""


def native(conditions: Conditions, trace: Trace, *, tokens: int | None = None, n_max: int | None = None) -> Prediction:
    """A draft model on the target's machine. Without `n_max`, the best of LENGTHS.

    `draft_token` is what it needs there, where target and drafter do not run at the same time.
    """
    said = len(trace) if tokens is None else tokens
    lengths = LENGTHS if n_max is None else (n_max,)
    return max((_turns(conditions, trace, said, length) for length in lengths), key=lambda found: found.ratio)


def rpc(conditions: Conditions, trace: Trace, *, tokens: int | None = None, n_max: int | None = None) -> Prediction:
    """A draft model on an RPC device of the target's server: one round trip (`rtt_drafter`) for each draft token.

    There are more, for the target's own share of the work: this is the least.
    """
    remote = replace(conditions, draft_token=conditions.draft_token + conditions.rtt_drafter)
    return native(remote, trace, tokens=tokens, n_max=n_max)


def _turns(conditions: Conditions, trace: Trace, tokens: int, length: int) -> Prediction:
    said = accepted = verifications = 0
    while said < tokens:
        right = 0
        while right < length and trace[(said + right) % len(trace)].accepted:
            right += 1
        accepted += right
        said += right + 1
        verifications += 1
    verified = verifications * length
    seconds = verifications * (length * conditions.draft_token + conditions.step(1 + length))
    return Prediction(
        ratio=said * conditions.plain_step / seconds,
        tokens=said,
        seconds=seconds,
        drafted=verified,
        verified=verified,
        accepted=accepted,
        verifications=verifications,
    )
