"""What was found at the addresses. Plain data."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass

from specrouter.types import ServerInfo

from .addresses import Address


class Kind(enum.Enum):
    """What a server is there for."""

    GENERATES = "generates"
    EMBEDS = "embeddings"
    RERANKS = "reranking"


@dataclass(frozen=True, slots=True)
class Found:
    """A llama-server that answers. `info` is what it says about itself.

    `speed` is what it generates alone, in tokens per second, None where that could not be measured. `spec_types` are
    the kinds of drafting it was started with (`ngram-mod`, `draft-mtp`, …), None where it does not say.
    """

    address: Address
    info: ServerInfo
    kind: Kind = Kind.GENERATES
    speed: float | None = None
    spec_types: frozenset[str] | None = None

    @property
    def file(self) -> str:
        """The name of the model's file, or what the server calls itself."""
        return last_part(self.info.model_path or self.info.model or "")

    @property
    def drafts_itself(self) -> bool:
        """It was started with a draft model or with heads that draft."""
        return any(kind.startswith("draft") for kind in self.spec_types or ())

    @property
    def has_pool(self) -> bool:
        """It says that it has the n-gram pool which verifies drafts."""
        return "ngram-mod" in (self.spec_types or ())


@dataclass(frozen=True, slots=True)
class LeftOut:
    """An address that cannot be used, and why, in words for people. A `duplicate` is no loss."""

    address: Address
    reason: str
    duplicate: bool = False


def last_part(path: str) -> str:
    """What follows the last slash of a path of any system."""
    return re.split(r"[/\\]", path.rstrip("/\\"))[-1]
