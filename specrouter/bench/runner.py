"""Runs a measurement: a router of its own in this process, the plain answer and the drafted one by turns."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Protocol

import anyio
import httpx

from specrouter.app import make_app, serve_in_background
from specrouter.config import LoadedTopology, RouteConfig
from specrouter.errors import SetupError, SpecrouterError, UpstreamError
from specrouter.forgetting import forget, require_forgetting
from specrouter.formats import FORMATS
from specrouter.ngram_pool import PoolSettings, find_pool
from specrouter.routing import Router
from specrouter.service import Service
from specrouter.types import ServerInfo
from specrouter.upstream import LlamaServer

from . import exactness
from .asking import PATH, NoAnswer, Records, ask, chat_body, client_of, recording
from .figures import Answer, Group, Missing, Pair, Series
from .plan import BenchOptions, Condition, Measured, answering_servers, bench_topology, conditions
from .prompts import WARM_UP, Prompt, Question, different_prompts, same_prompts
from .readiness import until_ready
from .relay import relay


class Watcher(Protocol):
    """Whoever looks on."""

    def doing(self, what: str) -> None:
        """What takes a while now."""

    def begins(self, series: Series, pairs: int) -> None:
        """A route is measured from now on, with that many pairs of answers."""

    def answered(self, pair: Pair) -> None:
        """Both answers to a question are there."""

    def missed(self, missing: Missing) -> None:
        """A question has no pair of answers."""


@dataclass(slots=True)
class Results:
    """All that was measured, filled as it comes.

    `methods` says for each target how it was kept from answering out of its memory; `native` are series of
    llama-server's own drafting.
    """

    options: BenchOptions
    topology: str
    started: datetime = field(default_factory=lambda: datetime.now(UTC))
    servers: dict[str, ServerInfo] = field(default_factory=dict)
    methods: dict[str, str] = field(default_factory=dict)
    series: list[Series] = field(default_factory=list)
    native: list[Series] = field(default_factory=list)


NOTHING_REMEMBERED = "it has no n-gram pool: plain and drafted answers are to the same prompts"
FORGETS = "its n-gram pool is emptied before every answer: plain and drafted answers are to the same prompts"
DIFFERENT = (
    "its n-gram pool cannot be emptied: no prompt is asked twice, plain and drafted answers are to different prompts "
    "of one kind. Start it afresh before each measurement"
)


_FAILURES_IN_A_ROW = 3
"""After as many there will be no answer any more."""

_BACK_SECONDS = 60.0
"""How long a server that has failed may take to come back."""


class Bench:
    """One measurement of routes of a topology, each with the plain one beside it."""

    def __init__(
        self, loaded: LoadedTopology, measured: Sequence[Measured], results: Results, watcher: Watcher
    ) -> None:
        self._loaded = loaded
        self._measured = measured
        self._options = results.options
        self._results = results
        self._watcher = watcher
        self._pools: dict[str, PoolSettings] = {}
        self._answering = answering_servers(loaded, measured)

    async def run(self) -> None:
        """Measure every route under every condition. Raises SpecrouterError, with what is done in the results."""
        if any(self._options.rtt) and not self._far_servers:
            raise SetupError("--rtt: the topology has no server that drafts, only targets (there is --rtt-target)")
        for condition in conditions(self._options):
            await self._measure(condition)

    @property
    def _far_servers(self) -> set[str]:
        """Those that only draft."""
        return self._loaded.topology.servers.keys() - self._answering

    async def _measure(self, condition: Condition) -> None:
        rtts = dict.fromkeys(self._far_servers, condition.rtt) | dict.fromkeys(self._answering, condition.rtt_target)
        async with _relays(self._loaded, rtts) as urls, _router(self._topology(urls)) as asked:
            sides = [
                (await self._ready(asked.router, one.route), await self._ready(asked.router, one.plain))
                for one in self._measured
            ]
            for server in {side.server.name: side.server for both in sides for side in both}.values():
                self._results.servers[server.name] = server.info
                await self._learn_memory(server)
            for drafted, plain in sides:
                series = Series(
                    drafted.config.name,
                    drafted.server.name,
                    condition.concurrency,
                    condition.rtt,
                    condition.rtt_target,
                    drafted.cached,
                )
                self._results.series.append(series)
                # Both alike.
                await self._measure_series(asked, series, replace(plain, cached=drafted.cached), drafted)

    def _topology(self, urls: Mapping[str, str]) -> LoadedTopology:
        return bench_topology(self._loaded, self._measured, urls)

    async def _ready(self, router: Router, config: RouteConfig) -> _Side:
        """A route and who answers for it, when it is up and, where that is declared, drafts. Raises SetupError."""
        self._watcher.doing(f"Trying out {config.name}")
        prompt, tokens, route = self._options.prompts[0], self._options.tokens, router.routes[config.name]
        server = await until_ready(route, chat_body(config.name, prompt, tokens))
        # Drafts that are verified stepwise live on the target's cache.
        cached = isinstance(server, str) and "cache_prompt" in server
        if cached:
            server = await until_ready(route, chat_body(config.name, prompt, tokens, cached=True))
        if isinstance(server, str):
            raise SetupError(f"route {config.name!r} {server} (see `specrouter check`)")
        return _Side(config, server, cached)

    async def _learn_memory(self, server: LlamaServer) -> None:
        """Find out whether a target remembers its answers, and whether it can be made to forget them."""
        if server.name in self._results.methods:
            return
        self._watcher.doing(f"Trying out whether {server.name} forgets what it has said")
        pool = await find_pool(server)
        if pool is None:
            self._results.methods[server.name] = NOTHING_REMEMBERED
        elif await forget(server, pool):
            self._results.methods[server.name] = FORGETS
            self._pools[server.name] = pool
        else:
            self._results.methods[server.name] = DIFFERENT

    def _questions(self, *sides: _Side) -> tuple[list[Question], list[Question]]:
        """The unmeasured ones, and the measured ones."""
        prompts = self._options.prompts
        stubborn = [side.server.name for side in sides if self._results.methods[side.server.name] == DIFFERENT]
        if not stubborn:
            temperatures = list(dict.fromkeys(prompt.temperature for prompt in prompts))
            return same_prompts([replace(WARM_UP[0], temperature=t) for t in temperatures]), same_prompts(prompts)
        if len(self._results.series) > 1:
            raise SetupError(
                f"server {stubborn[0]!r} remembers its answers and cannot be made to forget them: "
                "measure one route under one condition, and start it afresh before the next"
            )
        questions = different_prompts(prompts)
        if not questions:
            raise SetupError("a target that remembers its answers needs at least two prompts of a kind")
        return different_prompts(WARM_UP), questions

    async def _measure_series(self, asked: _Asked, series: Series, plain: _Side, drafted: _Side) -> None:
        first, questions = self._questions(plain, drafted)
        self._watcher.begins(series, len(first) + len(questions))
        groups = [[question] for question in first]
        groups += [questions[n : n + series.concurrency] for n in range(0, len(questions), series.concurrency)]
        failure: SpecrouterError | None = None
        in_a_row = 0
        for index, group in enumerate(groups):
            # What is asked first teaches the router; one that failed has not.
            is_first = index < len(first) or not series.groups
            try:
                series.groups.append(await self._measure_group(asked, group, plain, drafted, is_first=is_first))
                in_a_row = 0
            except (NoAnswer, UpstreamError) as error:
                failure, in_a_row = error, in_a_row + 1
                for missing in [Missing(question, str(error)) for question in group]:
                    series.missing.append(missing)
                    self._watcher.missed(missing)
                if in_a_row == _FAILURES_IN_A_ROW:
                    raise
                for side in (plain, drafted):
                    await self._until_back(asked.router, side)
        if failure is not None and not series.pairs:
            raise failure

    async def _until_back(self, router: Router, side: _Side) -> None:
        """Wait for a server that may have failed. Raises SetupError where it does not come back."""
        body = chat_body(side.config.name, self._options.prompts[0], self._options.tokens, cached=side.cached)
        found: LlamaServer | str = "is not ready"
        told = False
        with anyio.move_on_after(_BACK_SECONDS):
            while (found := await until_ready(router.routes[side.config.name], body)) is not side.server:
                if not told:
                    self._watcher.doing(f"Waiting up to {_BACK_SECONDS:g} s for {side.server.name} to come back")
                told = True
                await anyio.sleep(1)
            return
        raise SetupError(
            f"the measurement has ended early: for {_BACK_SECONDS:g} s, route {side.config.name!r} {found}"
        )

    async def _measure_group(
        self, asked: _Asked, questions: Sequence[Question], plain: _Side, drafted: _Side, *, is_first: bool
    ) -> Group:
        async def plainly() -> tuple[list[Answer], float]:
            return await self._answers(asked, plain, [question.plain for question in questions])

        if questions[0].plain_first:
            alone = await plainly()
        answers, seconds = await self._answers(asked, drafted, [question.drafted for question in questions])
        if not questions[0].plain_first:
            alone = await plainly()
        pairs = []
        for question, one, other in zip(questions, alone[0], answers, strict=True):
            pairs.append(await self._scored(Pair(question, one, other, is_first=is_first), plain.server))
            self._watcher.answered(pairs[-1])
        return Group(tuple(pairs), alone[1], seconds)

    async def _answers(self, asked: _Asked, side: _Side, prompts: Sequence[Prompt]) -> tuple[list[Answer], float]:
        """The answers to prompts that are asked at once of a server that has forgotten all, and the seconds."""
        name = side.server.name
        if name in self._pools:
            await require_forgetting(side.server, self._pools[name])
        started = time.perf_counter()
        tokens, cached = self._options.tokens, side.cached
        answers = await asked.all([chat_body(side.config.name, prompt, tokens, cached=cached) for prompt in prompts])
        seconds = time.perf_counter() - started
        for answer in answers:
            if answer.server != name:
                raise NoAnswer(
                    f"{answer.server!r} answered for {side.config.name!r} in place of {name!r}, which failed"
                )
        return answers, seconds

    async def _scored(self, pair: Pair, server: LlamaServer) -> Pair:
        """With what the target thinks of the drafted answer, where that is asked for or the texts differ."""
        prompt = pair.question.drafted
        if prompt.temperature > 0 or not (pair.is_equal is False or self._options.audit):
            return pair
        said = pair.drafted.text
        ids = await FORMATS[PATH].prompt(server, chat_body("", prompt, self._options.tokens))
        ended = pair.drafted.finish == "stop"
        if pair.is_equal is False:
            gap = await exactness.difference(server, ids, pair.plain.text, said, ended=ended)
            pair = replace(pair, difference=gap)
        if self._options.audit:
            pair = replace(pair, audit=await exactness.audit(server, ids, said.encode(), ended=ended))
        return pair


@dataclass(frozen=True, slots=True)
class _Side:
    """One of the two ways in which a prompt is answered: by which route and server, and whether with their cache."""

    config: RouteConfig
    server: LlamaServer
    cached: bool


@contextlib.asynccontextmanager
async def _relays(loaded: LoadedTopology, rtts: Mapping[str, float]) -> AsyncIterator[dict[str, str]]:
    """The URLs of servers that are further away."""
    for name, rtt in rtts.items():
        if rtt > 0 and loaded.topology.servers[name].run is not None:
            raise SetupError(f"--rtt and --rtt-target delay only servers that run already, not {name!r}")
    async with contextlib.AsyncExitStack() as stack:
        yield {
            name: await stack.enter_async_context(relay(loaded.topology.servers[name].url, rtt))
            for name, rtt in rtts.items()
            if rtt > 0
        }


@dataclass(frozen=True, slots=True)
class _Asked:
    """A router in this process, and how to ask it."""

    router: Router
    client: httpx.AsyncClient
    records: Records

    async def all(self, bodies: Sequence[Mapping[str, Any]]) -> list[Answer]:
        """The answers to requests that are sent at the same time."""
        found: dict[int, Answer] = {}

        async def answer(index: int, body: Mapping[str, Any]) -> None:
            found[index] = await ask(self.client, self.records, body)

        try:
            async with anyio.create_task_group() as tasks:
                for index, body in enumerate(bodies):
                    tasks.start_soon(answer, index, body)
        except ExceptionGroup as group:
            # One line is enough for a person, and the others say the same.
            raise group.exceptions[0] from None
        return [found[index] for index in sorted(found)]


@contextlib.asynccontextmanager
async def _router(loaded: LoadedTopology) -> AsyncIterator[_Asked]:
    router = Router(loaded)
    with recording() as records:
        async with (
            serve_in_background(Service(router, make_app)) as base_url,
            client_of(base_url) as client,
        ):
            yield _Asked(router, client, records)
