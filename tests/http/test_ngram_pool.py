"""The settings of a target's n-gram pool are found whatever else it has heard, and only where there is one."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Sequence

import pytest
from http_support import Pair

from specrouter.config.model import ServerConfig
from specrouter.ngram_pool import PoolSettings, find_pool
from specrouter.testing import NgramPool
from specrouter.upstream import LlamaServer

pytestmark = pytest.mark.anyio


class CrowdedPool(NgramPool):
    """A quarter of all places is taken by texts of others, as just before llama-server wipes its pool."""

    def __init__(self, seed: int, **settings: int) -> None:
        super().__init__(**settings)
        self._random = random.Random(seed)
        self._others: dict[tuple[int, ...], int | None] = {}

    def following(self, last: Sequence[int]) -> int | None:
        """What was said last behind these tokens, or what somebody else's text has left in their place."""
        place = tuple(last)
        if place not in self._others:
            self._others[place] = self._random.randrange(256) if self._random.random() < 0.25 else None
        found = super().following(last)
        return self._others[place] if found is None else found


class WipedPool(NgramPool):
    """Somebody's refused drafts have it wiped at every fifth prompt that it is shown."""

    shown = 0

    def add(self, ids: Sequence[int]) -> None:
        super().add(ids)
        self.shown += 1
        if self.shown % 5 == 1:
            self._following.clear()


class OwnModel(NgramPool):
    """Drafts what nobody showed it, each time or each fourth time; with a pool, only where that knows nothing."""

    def __init__(self, *, every: int, pool: bool) -> None:
        super().__init__(n_match=8)
        self._every = every
        self._pool = pool
        self._asked = 0

    def draft(self, context: Sequence[int]) -> list[int]:
        self._asked += 1
        known = super().draft(context) if self._pool else []
        return known or (list(context[-1:]) if self._asked % self._every == 0 else [])


@pytest.fixture
async def target(pair: Pair) -> AsyncIterator[LlamaServer]:
    pair.target.step_seconds = 0
    server = LlamaServer(ServerConfig("big", pair.target.url))
    await server.probe()
    yield server
    await server.aclose()


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("settings", [(4, 1, 16), (8, 1, 16), (7, 3, 12), (24, 2, 64)])
async def test_a_pool_full_of_others(
    pair: Pair, target: LlamaServer, settings: tuple[int, int, int], seed: int
) -> None:
    n_match, n_min, n_max = settings
    random.seed(seed)
    pair.target.pool = CrowdedPool(seed, n_match=n_match, n_min=n_min, n_max=n_max)
    assert await find_pool(target) == PoolSettings(n_match, n_min, n_max)


@pytest.mark.parametrize("n_min", [1, 3])
async def test_a_pool_that_is_wiped_in_between(pair: Pair, target: LlamaServer, n_min: int) -> None:
    pair.target.pool = WipedPool(n_match=8, n_min=n_min)
    assert await find_pool(target) == PoolSettings(8, n_min, 16)


async def test_none_without_a_pool(pair: Pair, target: LlamaServer) -> None:
    pair.target.pool = None
    assert await find_pool(target) is None


@pytest.mark.parametrize("every", [1, 4])
@pytest.mark.parametrize("pool", [False, True])
async def test_none_where_a_model_drafts(pair: Pair, target: LlamaServer, pool: bool, every: int) -> None:
    pair.target.pool = OwnModel(every=every, pool=pool)
    assert await find_pool(target) is None
