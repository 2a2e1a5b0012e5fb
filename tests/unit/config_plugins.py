"""Plugins with the names of the bundled ones and no function: what a topology is checked against in tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar
from unittest import mock

from specrouter import plugins
from specrouter.config import LoadedTopology, load_topology
from specrouter.hookspecs import hookimpl
from specrouter.interfaces import AcceptancePolicy, DraftStrategy, NativeVerifier, TokenizerCheck


class NoDraft(DraftStrategy):
    """Drafts nothing."""

    name = "none"

    def start(self, generation):
        return None


class Remote(NoDraft):
    """Drafts with a model on another server."""

    name = "remote"
    options_schema: ClassVar = {
        "type": "object",
        "properties": {
            "server": {"type": "string", "format": "server", "description": "The server that drafts."},
            "depth": {"type": "integer", "minimum": 1, "maximum": 64, "default": 8},
            "pause": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1, "multipleOf": 0.25},
            "mode": {"enum": ["fast", "careful"]},
            "token": {"type": "string", "writeOnly": True, "maxLength": 8},
            "workers": {
                "type": "array",
                "maxItems": 2,
                "items": {"type": "string", "pattern": "^[a-z]+:[0-9]+$"},
            },
            "either": {"anyOf": [{"type": "integer", "minimum": 10}, {"type": "null"}]},
            "forms": {"oneOf": [{"type": "integer"}, True, False]},
            "more": {"type": "object", "propertyNames": {"maxLength": 3}},
        },
        "required": ["server"],
        "additionalProperties": False,
    }


class Adrift(NoDraft):
    """Has a reference to nowhere in its schema."""

    name = "adrift"
    options_schema: ClassVar = {
        "type": "object",
        "properties": {"depth": {"$ref": "http://localhost:9/depth.json"}},
    }


class Loose(NoDraft):
    """Says little about its options."""

    name = "loose"
    options_schema: ClassVar = {
        "type": "object",
        "properties": {"any": True, "none": False},
        "required": ["any"],
        "anyOf": [True],
        "not": {"required": ["other"]},
    }


class FirstOf(NoDraft):
    """Composes strategies."""

    name = "first_of"
    options_schema: ClassVar = {
        "type": "object",
        "properties": {
            "strategies": {"type": "array", "items": {"format": "draft_strategy"}, "minItems": 1},
            "spare": {"anyOf": [{"type": "null"}, {"format": "draft_strategy"}]},
        },
        "required": ["strategies"],
        "additionalProperties": False,
    }


class Inject(NativeVerifier):
    """Verifies nothing."""

    name = "inject"

    async def inspect(self, target):
        raise NotImplementedError

    def accompany(self, generation, drafter, support):
        raise NotImplementedError


class Greedy(AcceptancePolicy):
    """Accepts nothing."""

    name = "greedy"

    def covers(self, sampling):
        return False

    def accept(self, draft, verification, sampling, rng):
        raise NotImplementedError


class Vocabulary(TokenizerCheck):
    """Finds nothing."""

    name = "vocabulary"

    async def check(self, draft, target):
        return []


class ProbeText(Vocabulary):
    """Finds nothing either."""

    name = "probe_text"


@hookimpl
def specrouter_draft_strategies():
    return [NoDraft, Remote, Adrift, Loose, FirstOf]


@hookimpl
def specrouter_verifiers():
    return [Inject]


@hookimpl
def specrouter_acceptance_policies():
    return [Greedy]


@hookimpl
def specrouter_tokenizer_checks():
    return [Vocabulary, ProbeText]


def load_registry(files: Sequence[Path] = ()) -> plugins.PluginRegistry:
    """These plugins and the given files, whatever is installed."""
    with mock.patch("importlib.metadata.entry_points", return_value=[]):
        return plugins.load_plugins([Path(__file__), *files])


def load(path: Path, environ: Mapping[str, str]) -> LoadedTopology:
    """Load a topology with these plugins in place of the installed ones."""
    with mock.patch("specrouter.config.load_plugins", load_registry):
        return load_topology(path, environ)
