"""The topology: one YAML file that declares servers, routes and how drafts are made for them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from specrouter.errors import TopologyError
from specrouter.plugins import PluginRegistry, load_plugins

from .check import Checker
from .model import ApiKey, Limits, Listen, PluginUse, RouteConfig, RunConfig, ServerConfig, Topology, build_topology
from .schema import answers_itself, server_options, topology_schema
from .source import read_document

__all__ = [
    "ApiKey",
    "Limits",
    "Listen",
    "LoadedTopology",
    "PluginUse",
    "RouteConfig",
    "RunConfig",
    "ServerConfig",
    "Topology",
    "answers_itself",
    "load_topology",
    "server_options",
    "topology_schema",
]


@dataclass(frozen=True, slots=True)
class LoadedTopology:
    """A topology, the plugins that it may use, and what is odd but no error, one line each."""

    topology: Topology
    registry: PluginRegistry
    warnings: tuple[str, ...]


def load_topology(path: Path, environ: Mapping[str, str] = os.environ) -> LoadedTopology:
    """Read and check a topology file and load its plugins. Talks to no server.

    `${NAME}` in a value is replaced from `environ`. Raises TopologyError with all problems at once, sorted by
    their position. No plugin is instantiated.
    """
    document = read_document(path, environ)
    checker = Checker(document)
    checker.check_core()
    registry = load_plugins(checker.plugin_files())
    checker.check_plugins(registry)
    problems = checker.problems()
    if problems:
        raise TopologyError(problems)
    warnings = (*registry.problems, *checker.warnings())
    return LoadedTopology(build_topology(path, document.data, checker.key_files), registry, warnings)
