"""From what was found to routes, in two steps: what should be tried, and what is left when it was tried. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from specrouter.checking import PairReport, Report, RouteReport

from .findings import Found, Kind, LeftOut
from .models import Model, are_alike, draft_model, models_of
from .naming import route_name, server_names, unused
from .plan import Draft, Plan, PlannedRoute

_NATIVE = "inject"

PLAIN = "-plain"
"""What the name of a route without drafts ends with that stands beside a drafting one."""


def propose(found: Sequence[Found], left_out: Sequence[LeftOut] = (), port: int = 8080) -> Plan:
    """Routes for the models that answer, with drafts as they should be, if that turns out to be possible.

    The biggest model is called `default`, too. A model that drafts for another one has no route of its own. `port` is
    where the router will listen.
    """
    named = dict(zip(server_names(found), found, strict=True))
    models = models_of(named)
    routes = [_route(model, draft_model(model, models)) for model in models if not _only_drafts(model, models)]
    return _with_default(Plan(named, routes, left_out, port))


def settle(plan: Plan, report: Report | None) -> Plan:
    """What is left of a proposed plan, as `specrouter check` found it (None: there was nothing to find).

    Every server has a place in it.
    """
    reports = {route.name: route for route in report.routes} if report is not None else {}
    models = models_of(plan.found)
    routes: list[PlannedRoute] = []
    for route in plan.routes:
        if route.draft is None or route.name not in reports:
            routes.append(route)
            continue
        settled = _settled(route, reports[route.name], plan.found)
        model = next(model for model in models if route.targets[0] in model.servers)
        taken = [other.name for other in (*plan.routes, *routes)]
        routes += [settled, *_plain_beside(settled, model, taken)]
    return _with_lonely_servers(replace(plan, routes=routes), models)


def _only_drafts(model: Model, models: Sequence[Model]) -> bool:
    """It drafts for another one. With another vocabulary it is more: a model for clients in its own right."""
    return any(draft_model(other, models) is model and model.has_vocabulary_of(other) for other in models)


def _route(model: Model, drafter: Model | None) -> PlannedRoute:
    """A model's route, with the drafts that suit its servers."""
    found = model.found
    own = [server for server in model.servers if found[server].drafts_itself]
    others = [server for server in model.servers if server not in own]
    if own:
        return PlannedRoute(
            model.name,
            others or own[:1],
            Draft("rpc", own[0]),
            are_alike=are_alike([found[server] for server in others]),
            why=[f"{own[0]} was started to draft by itself ({_spec_types(found[own[0]])}), so it answers."],
        )
    pools = [server for server in model.servers if found[server].has_pool]
    # Where none says that it verifies drafts, each is tried.
    targets = pools or model.servers
    route = PlannedRoute(model.name, targets, are_alike=are_alike([found[server] for server in targets]))
    if drafter is None:
        why = ["No smaller and faster model was found, so drafts are looked up."]
        return replace(route, draft=Draft("prompt_lookup"), why=why)
    server = drafter.servers[0]
    why = [_why_drafts(server, drafter, model)]
    return replace(route, draft=Draft("remote", server), as_text=True, why=why)


def _why_drafts(server: str, drafter: Model, target: Model) -> str:
    share = drafter.share_of(target)
    size = "a smaller model" if share is None else f"its model has {_percent(share)} of the weights"
    speeds = (drafter.speed, target.speed)
    faster = f" and is {speeds[0] / speeds[1]:.1f} times as fast" if speeds[0] and speeds[1] else ""
    return f"{server} drafts: {size}{faster}."


def _settled(route: PlannedRoute, report: RouteReport, found: Mapping[str, Found]) -> PlannedRoute:
    """A route as it can be served now: with those targets that verify its drafts, or with none of them drafting."""
    able = [pair for pair in report.pairs if pair.obstacle is None and pair.loss is None]
    # Who verifies by itself does so for less than who is asked for each token.
    able = [pair for pair in able if pair.verifier == _NATIVE] or able
    if not able:
        obstacles = [against for pair in report.pairs if (against := pair.obstacle or pair.loss) is not None]
        advice = [pair.advice for pair in report.pairs if pair.advice]
        return replace(
            route,
            obstacle=_first(obstacles[0]) if obstacles else "there is nothing that could verify them",
            remedy=_first(advice[0]) if advice else None,
            as_text=any(pair.mismatches for pair in report.pairs),
        )
    mismatches = [mismatch for pair in able for mismatch in pair.mismatches]
    why = [*route.why, *(_verified(pair) for pair in able)]
    if mismatches:
        why.append(f"The tokenizers differ, so drafts cross as text ({mismatches[0]}).")
    if route.draft is not None and route.draft.use == "rpc":
        return replace(route, why=why)
    targets = [pair.target for pair in able]
    alike = are_alike([found[target] for target in targets])
    return replace(route, targets=targets, as_text=bool(mismatches), are_alike=alike, why=why)


def _first(text: str) -> str:
    """What is said of the first verifier: the one that costs least, so that it is worth a restart."""
    return text.partition("; ")[0].removeprefix(f"{_NATIVE}: ")


def _verified(pair: PairReport) -> str:
    details = ", ".join(f"{key}={value}" for key, value in pair.details.items())
    what = "drafts by itself" if pair.drafts_itself else "verifies drafts"
    return f"Tried out: {pair.target} {what} ({pair.verifier}{': ' if details else ''}{details})."


def _plain_beside(settled: PlannedRoute, model: Model, taken: Sequence[str]) -> Iterator[PlannedRoute]:
    """The route without drafts beside one that drafts: on servers that do nothing else, as far as there are any."""
    if not settled.drafts or settled.draft is None:
        return
    own = [settled.draft.server] if settled.draft.use == "rpc" else []
    free = [server for server in model.servers if server not in settled.targets and server not in own]
    busy = [server for server in settled.targets if server not in own]
    targets = [*free, *busy]
    if targets:
        alike = not (free and busy) and are_alike([model.found[server] for server in targets])
        why = ["The same model without drafts, to compare."]
        yield PlannedRoute(unused(settled.name + PLAIN, taken), targets, are_alike=alike, why=why)


def _with_lonely_servers(plan: Plan, models: Sequence[Model]) -> Plan:
    """The plan with a place for the servers that none of its routes uses."""
    routes = list(plan.routes)
    used = {server for route in routes for server in _servers_of(route)}
    for model in models:
        lonely = [server for server in model.servers if server not in used]
        if lonely:
            _place(lonely, model, routes)
    for server, found in plan.found.items():
        if found.kind is not Kind.GENERATES and server not in used:
            name = unused(route_name(found.info), [route.name for route in routes])
            routes.append(PlannedRoute(name, [server], why=[f"For {found.kind.value}, without drafts."]))
    return replace(plan, routes=routes)


def _place(lonely: Sequence[str], model: Model, routes: list[PlannedRoute]) -> None:
    """Put servers of a model behind the route that it has without drafts, else into one of their own."""
    for index, route in enumerate(routes):
        if route.targets[0] in model.servers and not route.drafts:
            targets = [*route.targets, *lonely]
            alike = are_alike([model.found[server] for server in targets])
            routes[index] = replace(route, targets=targets, are_alike=alike)
            return
    name = unused(model.name, [route.name for route in routes])
    routes.append(PlannedRoute(name, lonely, are_alike=are_alike([model.found[server] for server in lonely])))


def _servers_of(route: PlannedRoute) -> Iterator[str]:
    """The servers that a route uses as it will be written."""
    yield from route.targets
    if route.drafts and route.draft is not None and route.draft.server is not None:
        yield route.draft.server


def _with_default(plan: Plan) -> Plan:
    """The first route is what a request without a model gets."""
    first, rest = plan.routes[:1], plan.routes[1:]
    return replace(plan, routes=[*(replace(route, aliases=["default"]) for route in first), *rest])


def _spec_types(server: Found) -> str:
    return "--spec-type " + ",".join(sorted(kind for kind in server.spec_types or () if kind.startswith("draft")))


def _percent(share: float) -> str:
    return f"{share:.0%}" if share >= 0.01 else "under 1%"
