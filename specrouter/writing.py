"""Prepares the answer to a request that is decoded stepwise: engine, drafter, and the form of the answer."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from typing import Any

from .answers import AnswerWriter, Said
from .draft_length import StepGovernor
from .drafting import close_drafter, generation_of, start_drafter
from .errors import PluginError, UpstreamLoading, UpstreamRejected
from .formats import FORMATS, stops_of
from .interfaces import StepVerifier
from .next_token import sampling_fields
from .patience import first_byte_limit
from .plugins import guard
from .route import Route
from .stepwise import StepwiseAnswer
from .upstream import LlamaServer

log = logging.getLogger(__name__)


@contextlib.asynccontextmanager
async def stepwise_answer(
    route: Route, target: LlamaServer, path: str, body: Mapping[str, Any]
) -> AsyncIterator[StepwiseAnswer | str]:
    """The answer to come, with a draft being made while the context lasts; or the reason why it is left to the target.

    Raises UpstreamUnavailable, UpstreamTimeout.
    """
    pair = route.pairs[target.name]
    assert pair.verifier is not None
    verifier = pair.verifier.plugin
    assert isinstance(verifier, StepVerifier)
    try:
        with first_byte_limit(target.config):
            prompt = await FORMATS[path].prompt(target, body)
    except (UpstreamRejected, UpstreamLoading) as error:
        # The target has more to say about it, or is waited for.
        yield str(error)
        return
    if not prompt:
        yield "an empty prompt"
        return
    generation = generation_of(route, pair, prompt, body)
    policy = route.policy_for(body)
    try:
        with guard(pair.verifier.info):
            session = verifier.start(generation, body, distributions=policy.plugin.needs_distributions)
        drafter = start_drafter(route, pair, generation, FORMATS[path], body)
    except PluginError as error:
        log.exception("%s", error)
        yield str(error)
        return
    if drafter is None:
        yield "nothing to draft"
        return
    try:
        answer = StepwiseAnswer(
            generation,
            session,
            drafter,
            policy,
            pair.verifier.info,
            StepGovernor(pair.step_memory(generation.sampling), stands_down=verifier.stands_down),
            sampling=sampling_fields(body),
            stops=stops_of(body),
            pieces=pair.pieces,
        )
        async with answer.drafting():
            yield answer
    finally:
        await close_drafter(drafter)


def answer_writer(route: Route, answer: StepwiseAnswer, path: str, body: Mapping[str, Any], model: str) -> AnswerWriter:
    """What writes the answer in the form of the target's own answers on that path, with `prompt` to be filled in."""
    specimen = route.pairs[answer.generation.target.name].specimens[path]
    return FORMATS[path].writer(specimen, body, model, "")


async def said_to(writer: AnswerWriter, answer: StepwiseAnswer, path: str) -> AsyncGenerator[Said]:
    """What is said; before its ending the writer knows the prompt, if it shows it. Raises as `answer.say` does."""
    async with aclosing(answer.say()) as said:
        async for token in said:
            if token.ending is not None and FORMATS[path].shows_prompt:
                # Not before the first token, which a long prompt would delay.
                writer.prompt = await answer.generation.target.detokenize(answer.generation.prompt)
            yield token
