"""What would make it faster, in words. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from specrouter.ngram_pool import FLAGS

from .findings import Found
from .models import Model, draft_model, may_draft_for, models_of
from .plan import Plan, PlannedRoute

_SEVERAL = 2.0
"""How many times as fast as its target a draft model should be."""


def advise(plan: Plan) -> list[str]:
    """What would help, each in a sentence or two, about the first things first."""
    models = models_of(plan.found)
    return list(dict.fromkeys(hint for route in plan.routes for hint in _about(route, plan, models)))


def _about(route: PlannedRoute, plan: Plan, models: Sequence[Model]) -> Iterator[str]:
    model = next((model for model in models if route.targets[0] in model.servers), None)
    if model is None or route.draft is None:
        return
    if route.obstacle is not None:
        remedy = f": {route.remedy}" if route.remedy else ""
        yield f"{route.name} is answered without drafts, since {route.obstacle}{remedy}."
    yield from _about_pools(route, model)
    if route.draft.use == "rpc":
        return
    drafter = None if route.draft.server is None else next(m for m in models if route.draft.server in m.servers)
    if drafter is None:
        yield from _about_missing(model, models)
    else:
        yield from _about_drafter(route, drafter, model, plan)


def _about_pools(route: PlannedRoute, model: Model) -> Iterator[str]:
    """Servers of one model of which only some verify drafts."""
    if not route.drafts or route.draft is None or route.draft.use == "rpc":
        return
    others = [server for server in model.servers if server not in route.targets and not model.found[server].has_pool]
    if others:
        names, have = " and ".join(others), "has" if len(others) == 1 else "have"
        yield f"{names} {have} the model of {route.targets[0]}, and would verify drafts too, started with {FLAGS}."


def _about_missing(target: Model, models: Sequence[Model]) -> Iterator[str]:
    """There is no draft model, or one that is too slow."""
    slow = [
        model
        for model in models
        if model is not target and may_draft_for(model, target) and draft_model(target, [model]) is None
    ]
    for model in slow:
        name, than = model.servers[0], target.servers[0]
        yield (
            f"{name} could draft for {than} by its size, but generates {_speed(model.first)}, no faster than {than} "
            f"with {_speed(target.first)}: move it to a faster machine or a GPU{_faster_machine(model, target)}."
        )
    if not slow:
        yield (
            f"There is no draft model for {target.name}. prompt_lookup only drafts what was said before; a smaller "
            "model of the same family, on another machine or GPU, drafts what is new."
        )


def _about_drafter(route: PlannedRoute, drafter: Model, target: Model, plan: Plan) -> Iterator[str]:
    name, than = drafter.servers[0], route.targets[0]
    small, big = plan.found[name], plan.found[than]
    if route.as_text:
        yield f"A draft model with the vocabulary of {target.name} itself would have more of its drafts accepted."
    if small.address.host == big.address.host:
        yield (
            f"{name} and {than} are on one machine. Unless each has a GPU to itself, they take each other's time: move "
            f"the draft to another machine{_faster_machine(drafter, target)}."
        )
    elif small.speed and big.speed and small.speed < _SEVERAL * big.speed:
        yield (
            f"{name} is only {small.speed / big.speed:.1f} times as fast as {than}. Drafts pay more from a "
            f"smaller model, or from a faster machine{_faster_machine(drafter, target)}."
        )
    if small.info.n_ctx and big.info.n_ctx and small.info.n_ctx < big.info.n_ctx:
        yield (
            f"{name} has a context of {small.info.n_ctx} tokens, {than} of {big.info.n_ctx}: longer prompts are "
            "answered without drafts (give it more with --ctx-size)."
        )


def _faster_machine(drafter: Model, target: Model) -> str:
    """The machine on which a draft model would be much faster, as far as the other servers tell; else nothing."""
    here = _work(drafter.first)
    others = [
        (work, name)
        for name, server in drafter.found.items()
        if server.address.host not in (drafter.first.address.host, target.first.address.host)
        and (work := _work(server)) is not None
    ]
    if here is None or not others:
        return ""
    work, name = max(others)
    return f", such as the one of {name}, which computes {work / here:.0f} times as much" if work >= 2 * here else ""


def _work(server: Found) -> float | None:
    """What a machine reads of weights in a second, in bytes: about what its speed is worth with any other model."""
    return None if server.speed is None or not server.info.n_bytes else server.speed * server.info.n_bytes


def _speed(server: Found) -> str:
    return f"{server.speed or 0:.1f} tokens/s"
