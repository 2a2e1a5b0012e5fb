"""Plugins within the options of a plugin: where they are named, and what stands there when one is made."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import referencing
from jsonschema import Draft202012Validator, FormatChecker
from jsonschema.exceptions import ValidationError

from .document import KeyPath

DRAFT_STRATEGY = "draft_strategy"
"""The `format` of a value that names a draft strategy, `{use: NAME, options: {…}}`."""


def nested_uses(schema: Mapping[str, Any], options: Mapping[str, Any]) -> list[KeyPath]:
    """The paths within `options` at which, by a plugin's `options_schema`, draft strategies are named."""
    # By a format that nothing satisfies: whatever keywords lead there, the errors tell where it is.
    formats = FormatChecker(formats=())
    formats.checks(DRAFT_STRATEGY)(lambda _: False)
    validator = Draft202012Validator(schema, registry=referencing.Registry(), format_checker=formats)
    return list(dict.fromkeys(_paths(validator.iter_errors(options))))


def _paths(errors: Iterable[ValidationError]) -> Iterator[KeyPath]:
    for error in errors:
        if error.validator == "format" and error.validator_value == DRAFT_STRATEGY:
            yield tuple(error.absolute_path)
        yield from _paths(error.context or ())


def value_at(value: Any, path: KeyPath) -> Any:
    """What stands at a path within a value."""
    for key in path:
        value = value[key]
    return value


def replaced(value: Any, at: Mapping[KeyPath, Any], path: KeyPath = ()) -> Any:
    """A copy of a value with others in place of those at the given paths."""
    if path in at:
        return at[path]
    if isinstance(value, Mapping):
        return {key: replaced(item, at, (*path, key)) for key, item in value.items()}
    if isinstance(value, list):
        return [replaced(item, at, (*path, index)) for index, item in enumerate(value)]
    return value
