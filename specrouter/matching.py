"""Sample and match: the acceptance that needs nothing but what the target says."""

from __future__ import annotations

from collections.abc import Sequence

from .types import Acceptance, DraftToken


def longest_match(draft: Sequence[DraftToken], said: Sequence[int]) -> Acceptance:
    """Accept draft tokens as long as the target said the same; `said` has one token more than `draft`."""
    pairs = enumerate(zip(draft, said[:-1], strict=True))
    accepted = next((i for i, (token, own) in pairs if token.id != own), len(draft))
    return Acceptance(accepted, said[accepted])
