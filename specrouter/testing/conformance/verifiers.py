"""Conformance tests for both kinds of verifiers: what they have in common."""

from __future__ import annotations

import json
from typing import Any, ClassVar

import anyio
import httpx

from specrouter.interfaces import Plugin, Support, Verifier
from specrouter.tasks import background
from specrouter.testing.fake_http import hang
from specrouter.testing.fake_server import FakeServer
from specrouter.testing.toy_model import ToyModel

from .faults import FAULTS
from .plugin import RAISED, PluginConformance, staged
from .rules import Rule
from .stage import ROUTE, Stage

_CHAT = "/v1/chat/completions"
_LIMIT = 300
"""Tokens, more than the answer has."""

_SHOWN = 160
"""Characters of an answer in a message."""

_QUESTION = {"messages": [{"role": "user", "content": "Say it."}], "temperature": 0}


class VerifierConformance(PluginConformance):
    """What NativeVerifierConformance and StepVerifierConformance share.

    `make_target` makes a fake that has what the verifier needs, `make_unable_target` one that lacks it.
    """

    kind = "verify"
    verifier: ClassVar[type[Verifier]]

    @property
    def plugin(self) -> type[Plugin]:
        """The verifier."""
        return self.verifier

    def make_unable_target(self) -> FakeServer:
        """A fake with which the verifier does not work. Called in an event loop.

        By default, one without an n-gram pool and with a single slot.
        """
        return FakeServer(ToyModel(self.answer), slots=1)

    # -- inspect -------------------------------------------------------------------------------------------

    @staged
    async def test_it_works_with_what_it_needs(self, stage: Stage) -> None:
        """Found out again and again."""
        await stage.ask()
        for _ in range(2):
            support = await self._inspect(stage)
            found = f"inspect() says of a target that has what it needs: {support.reason}"
            self._judge.expect(support.reason is None, Rule.INSPECT, found)

    def test_it_says_what_is_missing(self) -> None:
        """In words."""

        async def check(stage: Stage) -> None:
            await stage.ask()
            reason = (await self._inspect(stage)).reason
            said = f"inspect() gives the reason {reason!r} for a target that lacks what it needs"
            self._judge.expect(isinstance(reason, str) and bool(reason.strip()), Rule.INSPECT, said)

        self._play(check, target=self.make_unable_target)

    @staged
    async def test_a_target_that_fails(self, stage: Stage) -> None:
        """Is no target that does not support it."""
        await stage.ask()
        for name, fault in FAULTS.items():
            stage.reply(fault)
            await self._inspect_despite(stage, name)
        stage.in_fakes(stage.fakes["target"].stop)
        await self._inspect_despite(stage, "is gone")

    @staged
    async def test_trying_out_can_be_cancelled(self, stage: Stage) -> None:
        """While the target does not answer."""
        await stage.ask()
        stage.reply(hang)
        before = stage.requests
        async with background() as tasks:
            tasks.start_soon(self._inspect, stage)
            while stage.requests == before:
                await anyio.sleep(0.002)
        await stage.let_go("when inspect() was cancelled")

    # -- the answer ----------------------------------------------------------------------------------------

    @staged
    async def test_the_answer_is_the_targets(self, stage: Stage) -> None:
        """Through a router: streamed and in one, with drafts that are right, partly wrong, and that end."""
        async with stage.client() as client:
            await self._until_used(client)
            said = stage.fakes["target"].model.says
            for mistakes in ((), range(0, 200, 3), range(200)):
                stage.fakes["drafter"].model = ToyModel(said, mistakes=mistakes)
                await self._compare(client, f"with {len(mistakes)} wrong drafts")
            stage.fakes["drafter"].model = ToyModel(said[: len(said) // 2])
            await self._compare(client, "with a drafter that ends early")
            stage.fakes["drafter"].replies["/completion"] = FAULTS["breaks off its answer"]
            await self._compare(client, "with a drafter that fails")

    # -- steps ---------------------------------------------------------------------------------------------

    @staticmethod
    def _verifier(stage: Stage) -> Any:
        return stage.route.pairs["target"].verifiers[0].plugin

    async def _inspect(self, stage: Stage) -> Support:
        support: Support = await self._verifier(stage).inspect(stage.servers["target"])
        is_one = isinstance(support, Support)
        self._judge.expect(is_one, Rule.INSPECT, f"inspect() returned {support!r}, which is no Support")
        await stage.let_go("after inspect()")
        return support

    async def _inspect_despite(self, stage: Stage, name: str) -> None:
        how = f"the target {name}, and inspect()"
        support = await self._despite(how, lambda: self._verifier(stage).inspect(stage.servers["target"]))
        if support is not RAISED:
            self._judge.expect(support.reason is not None, Rule.INSPECT, f"{how} says that it works")

    async def _until_used(self, client: httpx.AsyncClient) -> None:
        found = "nothing"
        with anyio.move_on_after(self.patience):
            while True:
                response = await client.post(_CHAT, json={**_QUESTION, "model": ROUTE, "max_tokens": 8})
                found = response.headers.get("x-specrouter-decoding", str(response.status_code))
                if found == self.verifier.name:
                    return
                await anyio.sleep(0.01)
        self._judge.broken(Rule.INSPECT, f"a router with a target that has what it needs does not use it: {found}")

    async def _compare(self, client: httpx.AsyncClient, how: str) -> None:
        for stream, limit in ((True, _LIMIT), (False, _LIMIT), (False, 5)):
            body = {**_QUESTION, "stream": stream, "max_tokens": limit}
            got, wanted = [await _text(client, {**body, "model": model}, stream=stream) for model in (ROUTE, "plain")]
            said = f"{how}, the answer is {_shown(got)} and not {_shown(wanted)}"
            self._judge.expect(got == wanted, Rule.EXACT, said)


def _shown(answer: Any) -> str:
    text = repr(answer)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN // 2]} ... {text[-_SHOWN // 2 :]}"


async def _text(client: httpx.AsyncClient, body: dict[str, Any], *, stream: bool) -> Any:
    """What a client can tell answers apart by: text and finish reason, or what was wrong."""
    response = await client.post(_CHAT, json=body)
    if response.status_code != 200:
        return response.text
    if not stream:
        choice = response.json()["choices"][0]
        return choice["message"]["content"], choice["finish_reason"]
    events = [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: ")]
    chunks = [json.loads(event) for event in events if event != "[DONE]"]
    choices = [choice for chunk in chunks for choice in chunk.get("choices", ())]
    text = "".join(choice.get("delta", {}).get("content") or "" for choice in choices)
    return text, [choice["finish_reason"] for choice in choices if choice.get("finish_reason")], events[-1:]
