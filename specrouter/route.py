"""One model name that clients may ask for: who answers a request for it, and how that is decoded."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .balance import Balancer, PromptKeys, in_order, prompt_keys
from .config.model import RouteConfig
from .errors import DraftRefused, InvalidRequest, PluginError
from .formats import obstacle, stepwise_obstacle
from .interfaces import AcceptancePolicy, DraftStrategy, NativeVerifier, StepVerifier, Verifier
from .limits import Gate
from .pairing import Pair, SelfDrafting
from .plugins import Bound, PluginInfo, guard
from .sampling import sampling_of
from .types import Decoding, ServerState
from .upstream import LlamaServer

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Route:
    """One model name that clients may ask for, with everything that answers it."""

    config: RouteConfig
    targets: Sequence[LlamaServer]
    strategy: Bound[DraftStrategy]
    policies: Sequence[Bound[AcceptancePolicy]]
    pairs: Mapping[str, Pair]
    gate: Gate
    balancer: Balancer

    def prompt_keys(self, body: Mapping[str, Any], headers: Sequence[tuple[bytes, bytes]]) -> PromptKeys | None:
        """What decides which replica answers a request; None where the order of the targets alone decides."""
        if self.config.balance == "in_order" or len(self.targets) == 1:
            return None
        return prompt_keys(body, headers)

    def candidates(self, keys: PromptKeys | None = None) -> list[LlamaServer]:
        """The servers in the order in which to try them for a request, those that are not well last.

        A server that drafts by itself comes first while it does, else behind the targets.
        """
        targets = in_order(self.targets) if keys is None else self.balancer.order(keys)
        drafting = self.self_drafting
        if drafting is None:
            return targets
        server = drafting.target
        others = [target for target in targets if target is not server]
        if self._self_drafting_obstacle(drafting) is None:
            return [server, *others]
        return targets if server in targets else in_order([*others, server])

    def candidates_alone(self, keys: PromptKeys | None = None) -> list[LlamaServer]:
        """The targets in the order in which to try them for an answer without drafts.

        Raises InvalidRequest where the only one drafts by itself.
        """
        targets = in_order(self.targets) if keys is None else self.balancer.order(keys)
        drafting = self.self_drafting
        alone = [target for target in targets if drafting is None or target is not drafting.target]
        if not alone:
            raise InvalidRequest(
                f"the only target of {self.config.name!r} drafts by itself and cannot be asked without drafts: "
                "leave out the header x-specrouter-draft"
            )
        return alone

    @property
    def self_drafting(self) -> SelfDrafting | None:
        """The server that answers in place of the targets while it drafts by itself, None where there is none."""
        return next((pair for pair in self.pairs.values() if isinstance(pair, SelfDrafting)), None)

    def _self_drafting_obstacle(self, drafting: SelfDrafting) -> str | None:
        return self._strategy_obstacle() or drafting.obstacle

    def wake(self, first: LlamaServer, *, drafts: bool) -> None:
        """Have those servers started that the router runs itself and that should have come before the `first` one.

        That is one that drafts by itself, where `drafts` are wanted, and of targets in order those above the first. Of
        replicas, one more is started when all slots of the others are busy.
        """
        drafting = None if self.self_drafting is None else self.self_drafting.target
        if first is drafting:
            return
        targets = [server for server in self.targets if server is not drafting]
        if self.config.balance == "in_order":
            before = targets[: targets.index(first)]
        elif self.balancer.is_busy():
            before = [server for server in targets if server.state is ServerState.STOPPED][:1]
        else:
            before = []
        for server in before:
            server.wake()
        if drafting is not None and drafts:
            drafting.wake()

    def server_of_now(self) -> LlamaServer | None:
        """Who would answer a request now: a target that is up, else one that would be started for it."""
        states = (ServerState.UP, ServerState.STOPPED)
        return next((one for state in states for one in self.candidates() if one.state is state), None)

    def answered(self, keys: PromptKeys | None, server: LlamaServer) -> None:
        """Note who answered a request: its conversation goes on there."""
        if keys is not None:
            self.balancer.answered(keys, server)

    def decide(self, target: LlamaServer, path: str, body: Mapping[str, Any]) -> Decoding:
        """How a request is decoded on this target, from what is known now.

        A server that could have drafted for it, and that the router runs, is started for those that follow.
        Raises DraftRefused where the route says so.
        """
        if not self.drafts:
            return Decoding()
        drafting = self.self_drafting
        if drafting is not None:
            drafting.target.wake()
            return self._decide_self_drafting(drafting, target)
        pair = self.pairs[target.name]
        self._check_mismatch(pair)
        reason = obstacle(path, body)
        if reason is None and pair.draft_server is not None:
            pair.draft_server.wake()
        reason = reason or self._strategy_obstacle() or pair.obstacle
        if reason is not None or pair.verifier is None:
            return Decoding(reason=reason)
        if isinstance(pair.verifier.plugin, StepVerifier):
            return self._decide_stepwise(pair, pair.verifier, path, body)
        # The target's own sampler accepts: a policy that would do something else is not asked for.
        policy = self._policy(body, lossless=True)
        if isinstance(policy, str):
            return Decoding(reason=policy)
        return Decoding(verifier=pair.verifier.info.name)

    def decide_alone(self, target: LlamaServer) -> Decoding:
        """How a request is decoded whose client wants no drafts. Raises DraftRefused where the route says so."""
        if not self.drafts:
            return Decoding()
        if target.name in self.pairs:
            self._check_mismatch(self.pairs[target.name])
        reason = "asked for without drafts"
        return Decoding(reason=reason)

    def _check_mismatch(self, pair: Pair) -> None:
        if pair.mismatches and self.config.on_tokenizer_mismatch == "refuse":
            raise DraftRefused(f"route {self.config.name!r} does not serve without drafting: {pair.obstacle}")

    @property
    def drafts(self) -> bool:
        """Whether the route declares drafting at all."""
        return bool(self.pairs)

    def is_stepwise(self, target: LlamaServer, decoding: Decoding) -> bool:
        """Whether a request that is decoded so on this target is answered by the step engine."""
        return isinstance(self._verifier_of(target, decoding), StepVerifier)

    def is_accompanied(self, target: LlamaServer, decoding: Decoding) -> bool:
        """Whether a companion runs beside a request that is decoded so on this target."""
        return isinstance(self._verifier_of(target, decoding), NativeVerifier)

    def _verifier_of(self, target: LlamaServer, decoding: Decoding) -> Verifier | None:
        pair = self.pairs.get(target.name)
        if decoding.verifier is None or pair is None or pair.verifier is None:
            return None
        return pair.verifier.plugin

    def policy_for(self, body: Mapping[str, Any]) -> Bound[AcceptancePolicy]:
        """The acceptance policy for a request that is decoded stepwise."""
        policy = self._policy(body, lossless=False)
        assert not isinstance(policy, str), "the request was decided on"
        return policy

    def _decide_self_drafting(self, drafting: SelfDrafting, target: LlamaServer) -> Decoding:
        if target is not drafting.target:
            obstacle = self._self_drafting_obstacle(drafting)
            return Decoding(reason=obstacle or f"server {drafting.target.name} failed within this request")
        # Also where it is asked because nobody else is there.
        reason = drafting.obstacle
        return Decoding(reason=reason) if reason is not None else Decoding(verifier=drafting.decoded_by)

    def _decide_stepwise(self, pair: Pair, verifier: Bound[Verifier], path: str, body: Mapping[str, Any]) -> Decoding:
        assert isinstance(verifier.plugin, StepVerifier)
        reason = stepwise_obstacle(path, body, pair.target.info.chat_template)
        if reason is None and path not in pair.specimens:
            reason = f"server {pair.target.name} refused a simple request to {path}"
        if reason is None:
            reason = self._verifier_obstacle(verifier.info, verifier.plugin, pair.target, body)
        policy = self._policy(body, lossless=False)
        if isinstance(policy, str):
            reason = reason or policy
        if reason is None and verifier.plugin.stands_down and not pair.step_memory(sampling_of(body)).may_draft():
            reason = "drafting did not pay lately"
        if reason is not None or isinstance(policy, str):
            return Decoding(reason=reason)
        return Decoding(verifier=verifier.info.name, is_lossless=policy.info.is_lossless)

    def _verifier_obstacle(
        self, info: PluginInfo, verifier: StepVerifier, target: LlamaServer, body: Mapping[str, Any]
    ) -> str | None:
        try:
            with guard(info):
                found = verifier.obstacle(target, body)
        except PluginError as error:
            log.exception("%s", error)
            return str(error)
        return None if found is None else f"{info.name} does not cover {found}"

    def _strategy_obstacle(self) -> str | None:
        try:
            with guard(self.strategy.info):
                return self.strategy.plugin.available()
        except PluginError as error:
            log.exception("%s", error)
            return str(error)

    def _policy(self, body: Mapping[str, Any], *, lossless: bool) -> Bound[AcceptancePolicy] | str:
        """The first policy that covers the request, or why there is none."""
        sampling = sampling_of(body)
        try:
            for policy in self.policies:
                with guard(policy.info):
                    if policy.plugin.covers(sampling) and (policy.plugin.is_lossless or not lossless):
                        return policy
        except PluginError as error:
            log.exception("%s", error)
            return str(error)
        if lossless and not any(policy.info.is_lossless for policy in self.policies):
            return "the acceptance policy is not lossless, the target's own sampler is"
        return "the acceptance policy does not cover this sampling"
