"""What plugins have to keep to. The list in docs/reference/plugins.md is made of this one."""

from __future__ import annotations

import enum
from typing import NoReturn


class Rule(enum.Enum):
    """A rule for plugins, in one sentence or two. A conformance test names the one that is broken."""

    # every plugin
    REGISTERED = "A hook of the plugin's module returns the class, and the class has a `name` that is free."
    SUMMARY = "The first line of the class's own docstring says what it does: `specrouter plugins` shows it."
    OPTIONS_TAKEN = "`__init__` takes options that fit `options_schema`."
    OPTIONS_REFUSED = "Wrong options are refused: by `options_schema`, else with a ValueError from `__init__`."
    INIT_IS_QUIET = "`__init__` asks no server and starts no process. It may read files."
    INPUTS_STAY = "What a plugin is given belongs to the caller, and is not changed."
    COMES_BACK = "Every call comes back, whatever a server does: nothing waits for what never comes."
    LETS_GO = "What has ended, was closed or cancelled leaves no task, no connection and no draft behind."
    UPSTREAM_ERRORS = "Where a server does not do its part, UpstreamError is raised and nothing else."

    # draft strategies
    AVAILABLE = "`available()` answers at once, from what is known: None, or the reason in words."
    DRAFT_SERVER = "`draft_server()` is a server of the topology or None, always the same, and asks nobody."
    START = "`start()` does no I/O. It returns a drafter of its own for each request, or None."
    DRAFTS = "`draft` is an async generator of DraftTokens, and where the text can be foreseen it yields some."
    MAX_TOKENS = "`draft` yields at most `max_tokens` tokens."
    IDS = "Drafted ids are in the target's vocabulary, from 0 to below `vocabulary_limit`."
    PIECES = "`piece` is the bytes that the target's token stands for."
    PROBABILITY = "`probability` is None, or a number from 0 to 1."
    DISTRIBUTION = "`distribution` is None, or sums to 1 and has a share for the token that was drawn from it."
    AGAIN = "`draft` may be called again, with a longer context and with one that differs from the last draft."
    OBSERVE = "`observe()` takes any outcome at any time, at once: it is a plain function and returns None."
    ACLOSE = "`aclose()` may be called without a draft before it, and more than once."
    REQUESTS_APART = "Drafters of several requests at once draft what each would draft alone."

    # verifiers
    INSPECT = "`inspect` finds what works to work, and says in `reason`, in words, what does not."
    SESSION = "`accompany` and `start` do no I/O. They return a Companion with DraftCounts, and a StepSession."
    FOLLOWS = "`run` follows the answer to its end, with ids or without, and then returns."
    ENDS = "After the answer's end, or when cancelled, a companion sends nothing more."
    DRAFTER_FAULTS = "What a drafter raises comes out of `run` as it is, or not at all."
    EXACT = "The answer is the target's own, token by token, whatever was drafted."
    COSTS = "Where a StepVerifier works, `Support.costs` are RoundCosts for a draft of at least one token."
    OBSTACLE = "`obstacle()` answers at once about any body: None, or the reason in words."
    POSITIONS = "A Verification has K + 1 tokens for K draft tokens; distributions, where asked for, are complete."

    # acceptance policies
    COVERS = "`covers()` is True or False for any sampling that a request may ask for, and True for a usual one."
    PURE = "`accept` is pure: the same draft, verification, sampling and random numbers give the same result."
    ACCEPTED = "`accept` returns an Acceptance of 0 to K draft tokens."
    FOLLOWING = "The next token is one that the target can say at that position."
    INCOMPLETE = (
        "IncompleteDistribution is raised before a random number is drawn, and only by who `needs_distributions`."
    )
    LOSSLESS = "A policy that `is_lossless` keeps the target's distribution, for all that it covers."

    # tokenizer checks
    EQUAL = "Equal tokenizers have no mismatch; neither have those of which one is padded with unused ids."
    DIFFERENT = "Tokenizers that give tokens other ids have a mismatch, each in words."


class RuleBroken(AssertionError):
    """A plugin breaks a rule. The message says what it did."""

    def __init__(self, rule: Rule, plugin: str, what: str) -> None:
        super().__init__(f"{plugin}: {what}\nThe rule {rule.name}: {rule.value} (docs/reference/plugins.md#rules)")
        self.rule = rule


class Judge:
    """Says of one plugin which rule it breaks."""

    def __init__(self, plugin: str) -> None:
        self._plugin = plugin

    def broken(self, rule: Rule, what: str) -> NoReturn:
        """Raise RuleBroken; `what` is what the plugin did wrong, in words."""
        raise RuleBroken(rule, self._plugin, what)

    def expect(self, holds: bool, rule: Rule, what: str) -> None:
        """Raise RuleBroken unless `holds`."""
        if not holds:
            self.broken(rule, what)
