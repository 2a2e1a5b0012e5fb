"""Which servers have the same model, and which model may draft for which. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from .findings import Found, Kind
from .naming import route_name, unused

_MUCH_SMALLER = 0.5
"""A draft model has at most this share of its target's weights."""

_TINY = 0.25
"""The same where the vocabularies differ: what crosses as text comes true less often."""

_PADDING = 1024
"""Vocabularies this close in size may be one, padded (as for the tokenizer check `vocabulary`)."""

_ALIKE = 0.5
"""Servers of one model are alike from this ratio of their speeds on."""


@dataclass(frozen=True, slots=True)
class Model:
    """A model by the name of its route, and the names of its servers, the fastest first."""

    name: str
    servers: Sequence[str]
    found: Mapping[str, Found]

    @property
    def first(self) -> Found:
        """Its fastest server."""
        return self.found[self.servers[0]]

    @property
    def speed(self) -> float | None:
        """Tokens per second of its fastest server."""
        return self.first.speed

    @property
    def weight(self) -> tuple[float, float]:
        """How big it is: bytes of the weights, else parameters; then, how slow."""
        info = self.first.info
        return float(info.n_bytes or info.n_params or 0), -(self.speed or 0.0)

    def share_of(self, other: Model) -> float | None:
        """Its size as a share of another model's, None where one of them does not say."""
        mine, theirs = self.first.info, other.first.info
        for here, there in ((mine.n_bytes, theirs.n_bytes), (mine.n_params, theirs.n_params)):
            if here and there:
                return here / there
        return None

    def has_vocabulary_of(self, other: Model) -> bool:
        """Whether the vocabularies look alike. Whether they are the same, the tokenizer checks find out."""
        mine, theirs = self.first.info, other.first.info
        if mine.n_vocab is None or theirs.n_vocab is None or mine.vocab_type != theirs.vocab_type:
            return False
        return abs(mine.n_vocab - theirs.n_vocab) <= _PADDING

    def is_slower_than(self, other: Model) -> bool:
        """Whether it generates no faster, as far as both were measured."""
        return self.speed is not None and other.speed is not None and self.speed <= other.speed


def models_of(found: Mapping[str, Found]) -> list[Model]:
    """The models that generate, the biggest first; the slowest, where nothing is known of sizes."""
    groups: dict[object, list[str]] = {}
    for name, server in found.items():
        if server.kind is Kind.GENERATES:
            groups.setdefault(_identity(name, server), []).append(name)
    by_speed = [sorted(names, key=lambda name: -(found[name].speed or 0.0)) for names in groups.values()]
    models = sorted((Model("", names, found) for names in by_speed), key=lambda model: model.weight, reverse=True)
    return [replace(model, name=name) for model, name in zip(models, _names(models), strict=True)]


def are_alike(servers: Sequence[Found]) -> bool:
    """Whether requests may be spread over these servers of one model."""
    speeds = [server.speed for server in servers if server.speed is not None]
    return len(speeds) < 2 or min(speeds) >= _ALIKE * max(speeds)


def may_draft_for(small: Model, big: Model) -> bool:
    """Whether a model is small enough to draft for another one; how fast it is does not matter here."""
    share = small.share_of(big)
    if share is None:
        return small.has_vocabulary_of(big) and not small.is_slower_than(big)
    return share <= (_MUCH_SMALLER if small.has_vocabulary_of(big) else _TINY)


def draft_model(target: Model, models: Sequence[Model]) -> Model | None:
    """The best draft model for a target: one with its vocabulary before others, then the fastest, then the smallest.

    One that generates no faster than the target cannot be ahead of it, and is none.
    """
    able = [
        model
        for model in models
        if model is not target and may_draft_for(model, target) and not model.is_slower_than(target)
    ]
    return min(
        able,
        key=lambda model: (not model.has_vocabulary_of(target), -(model.speed or 0.0), model.weight),
        default=None,
    )


def _names(models: Sequence[Model]) -> list[str]:
    """A name for each model. Where two would have the same one, they say how they are quantised."""
    short = [route_name(model.first.info) for model in models]
    names: list[str] = []
    for model, name in zip(models, short, strict=True):
        names.append(unused(name if short.count(name) == 1 else route_name(model.first.info, whole=True), names))
    return names


def _identity(name: str, server: Found) -> object:
    """What servers of one model have in common: the file, what is in it, and the template."""
    info = server.info
    if not server.file or (info.n_params is None and info.n_bytes is None):
        return name
    return (server.file, info.n_params, info.n_bytes, info.n_vocab, info.vocab_type, info.ftype, info.chat_template)
