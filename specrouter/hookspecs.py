"""The four hooks of a specrouter plugin. Each is called once, at start, and only registers classes.

from specrouter.hookspecs import hookimpl

@hookimpl
def specrouter_draft_strategies():
    return [MyStrategy]
"""

from __future__ import annotations

from collections.abc import Sequence

import pluggy

from .interfaces import AcceptancePolicy, DraftStrategy, TokenizerCheck, Verifier

hookspec = pluggy.HookspecMarker("specrouter")
hookimpl = pluggy.HookimplMarker("specrouter")


@hookspec
def specrouter_draft_strategies() -> Sequence[type[DraftStrategy]]:  # type: ignore[empty-body]
    """The draft strategies this plugin brings."""


@hookspec
def specrouter_verifiers() -> Sequence[type[Verifier]]:  # type: ignore[empty-body]
    """The verifiers this plugin brings."""


@hookspec
def specrouter_acceptance_policies() -> Sequence[type[AcceptancePolicy]]:  # type: ignore[empty-body]
    """The acceptance policies this plugin brings."""


@hookspec
def specrouter_tokenizer_checks() -> Sequence[type[TokenizerCheck]]:  # type: ignore[empty-body]
    """The tokenizer checks this plugin brings."""
