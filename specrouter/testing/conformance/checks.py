"""Conformance tests for tokenizer checks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from specrouter.interfaces import Plugin, TokenizerCheck
from specrouter.testing.fake_server import FakeServer
from specrouter.testing.toy_model import ToyModel, ToyVocabulary
from specrouter.types import Mismatch, ServerInfo

from .faults import FAULTS
from .plugin import RAISED, PluginConformance, staged
from .rules import Rule
from .stage import Stage


class _SwappedLetters(ToyVocabulary):
    """`e` and `t` have each other's ids."""

    def __init__(self) -> None:
        super().__init__()
        one, other = b"e", b"t"
        self._ids[one], self._ids[other] = self._ids[other], self._ids[one]
        self.pieces[self._ids[one]], self.pieces[self._ids[other]] = one, other


class TokenizerCheckConformance(PluginConformance):
    """Tests for a tokenizer check.

    class TestMine(TokenizerCheckConformance):
        check = MyCheck
    """

    kind = "tokenizer_check"
    check: ClassVar[type[TokenizerCheck]]

    @property
    def plugin(self) -> type[Plugin]:
        """The check."""
        return self.check

    def make_other(self) -> FakeServer:
        """A fake whose tokenizer differs in a way that the check must find. Called in an event loop.

        By default, two frequent letters have each other's ids.
        """
        return FakeServer(ToyModel(self.answer, vocabulary=_SwappedLetters()))

    @staged
    async def test_equal_tokenizers(self, stage: Stage) -> None:
        """Nothing is found; asking twice changes nothing."""
        await stage.ask()
        for _ in range(2):
            self._none(await self._mismatches(stage), "equal tokenizers")

    def test_padding(self) -> None:
        """More ids at the end, that no token has, are no mismatch, whoever has them."""
        self._with("drafter", lambda: FakeServer(ToyModel(self.answer, vocabulary=ToyVocabulary(padding=64))), False)
        self._with("target", lambda: FakeServer(ToyModel(self.answer, vocabulary=ToyVocabulary(padding=64))), False)

    def test_swapped_ids(self) -> None:
        """On either side."""
        self._with("drafter", self.make_other, True)
        self._with("target", self.make_other, True)

    @staged
    async def test_servers_that_fail(self, stage: Stage) -> None:
        """One and the other; for a check that asks, and does not look only at what is known."""
        await stage.ask()
        before = stage.requests
        await self._mismatches(stage)
        if stage.requests == before:
            return
        for broken in ("drafter", "target"):
            fake = stage.fakes[broken]
            for name, fault in FAULTS.items():
                fake.replies["*"] = fault
                await self._fails(stage, f"a {broken} {name}")
                fake.replies.clear()
            stage.in_fakes(fake.stop)
            await self._fails(stage, f"a {broken} is gone")
            stage.in_fakes(fake.start)

    @staged
    async def test_servers_that_say_little(self, stage: Stage) -> None:
        """Some builds do not say how large their vocabulary is: that is no fault of the check."""
        await stage.ask()
        for server in stage.servers.values():
            server.info = ServerInfo()
        await self._mismatches(stage)

    # -- steps ---------------------------------------------------------------------------------------------

    def _with(self, name: str, make: Callable[[], FakeServer], differs: bool) -> None:
        async def check(stage: Stage) -> None:
            await stage.ask()
            found = await self._mismatches(stage)
            if differs:
                self._judge.expect(bool(found), Rule.DIFFERENT, f"it finds nothing where the {name} has other ids")
            else:
                self._none(found, f"a {name} with 64 unused ids more")

        self._play(check, **{name: make})

    def _none(self, found: Sequence[Mismatch], what: str) -> None:
        said = "; ".join(str(mismatch) for mismatch in found)
        self._judge.expect(not found, Rule.EQUAL, f"it finds a mismatch for {what}: {said}")

    async def _mismatches(self, stage: Stage) -> Sequence[Mismatch]:
        found = await self._plugin(stage).check(stage.servers["drafter"], stage.servers["target"])
        await stage.let_go("after check()")
        are_words = isinstance(found, Sequence) and all(isinstance(one, Mismatch) and one.what for one in found)
        self._judge.expect(are_words, Rule.DIFFERENT, f"check() returned {found!r}, which are no Mismatches")
        return found

    async def _fails(self, stage: Stage, how: str) -> None:
        servers = stage.servers["drafter"], stage.servers["target"]
        found = await self._despite(f"{how}, and check()", lambda: self._plugin(stage).check(*servers))
        if found is not RAISED:
            self._judge.broken(Rule.UPSTREAM_ERRORS, f"{how}, and check() returned {found!r} as if it had asked")

    @staticmethod
    def _plugin(stage: Stage) -> TokenizerCheck:
        return stage.route.pairs["target"].checks[0].plugin
