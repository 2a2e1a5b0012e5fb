"""What is wrong with a value and what would be right, in words, from an error of jsonschema.

jsonschema's own messages quote values, which may be secrets or substituted, so none of them is used.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError, best_match

from .document import Document, KeyPath, printable
from .source import would_be

Said = tuple[KeyPath, str]
"""A path below the checked value, and the message for it."""

_TYPES = {
    "object": "a mapping (`key: value` lines)",
    "array": "a list",
    "string": "text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "null": "empty",
}

_PYTHON_TYPES: Mapping[str, tuple[type, ...]] = {
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
}
_YES = {"yes", "y", "on"}
_NO = {"no", "n", "off"}


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`did you mean …?; ` for a name that resembles a known one, else nothing."""
    near = difflib.get_close_matches(name.lower(), {item.lower(): item for item in known}, n=1)
    found = next((item for item in known if near and item.lower() == near[0]), None)
    return f"did you mean `{printable(found)}`? " if found is not None else ""


def listed(names: Iterable[str]) -> str:
    """Names for a message: `a, b, c`, the first twenty of them."""
    all_names = [printable(name) for name in names]
    more = f" and {len(all_names) - 20} more" if len(all_names) > 20 else ""
    return ", ".join(all_names[:20]) + more


@dataclass(frozen=True, slots=True)
class _Fault:
    """The parts of a ValidationError that are said: what the schema's keyword allows, what stands there."""

    keyword: str
    limit: Any
    instance: Any
    schema: Mapping[str, Any]


class Words:
    """Says errors about one document; `elsewhere` tells for keys in which part of a topology they belong."""

    def __init__(self, document: Document, elsewhere: Mapping[str, str]) -> None:
        self._document = document
        self._elsewhere = elsewhere
        self._by_keyword: Mapping[str, Callable[[_Fault, KeyPath], Iterator[Said]]] = {
            "type": self._type,
            "required": self._required,
            "additionalProperties": self._additional,
            "unevaluatedProperties": self._additional,
            "enum": self._enum,
            "const": self._const,
            "uniqueItems": self._unique,
            "oneOf": self._one_of,
            "not": self._not,
        }

    def say(self, error: ValidationError, base: KeyPath) -> list[Said]:
        """The paths (from the top of the document) and messages for an error of a value at `base`."""
        if error.validator == "anyOf" or (error.validator == "oneOf" and not _alternatives(error.validator_value)):
            error = best_match([error]) or error
        schema = error.schema if isinstance(error.schema, Mapping) else {}
        fault = _Fault(str(error.validator), error.validator_value, error.instance, schema)
        path = (*base, *error.absolute_path)
        if "propertyNames" in error.absolute_schema_path:
            return [((*path, str(error.instance)), f"is not a possible key, it {self._must(fault)}")]
        return list(self._by_keyword.get(fault.keyword, self._simple)(fault, path))

    def value(self, path: KeyPath, value: object, schema: Mapping[str, Any]) -> str:
        """What stands there: as it is written, and for secrets, lists and mappings only the type."""
        kind = _kind(value)
        if schema.get("writeOnly") or path not in self._document.texts:
            return kind
        text = printable(self._document.texts[path], 60)
        return f"the {kind.removeprefix('a ')} `{text}`" if text else "empty"

    def _type(self, fault: _Fault, path: KeyPath) -> Iterator[Said]:
        value = fault.instance
        wanted = [fault.limit] if isinstance(fault.limit, str) else fault.limit
        must = " or ".join(_TYPES.get(name, name) for name in wanted)
        if value is None:
            hint = " (without the key, the default holds)" if "default" in fault.schema else ""
            yield path, f"has no value, must be {must}{hint}"
            return
        hint = self._type_hint(path, value, wanted, fault.schema)
        yield path, f"is {self.value(path, value, fault.schema)}, must be {must}{hint}"

    def _type_hint(self, path: KeyPath, value: object, wanted: list[str], schema: Mapping[str, Any]) -> str:
        text = self._document.texts.get(path, "")
        shown = printable(text, 60)
        if isinstance(value, bool | int | float) and "string" in wanted and "integer" not in wanted:
            return " (in quotes it is text)" if schema.get("writeOnly") else f' (in quotes it is text: "{shown}")'
        if isinstance(value, str):
            if "boolean" in wanted and text.lower() in _YES | _NO:
                return f" (write {_spelled(text.lower() in _YES)})"
            if any(would_be(value) in _PYTHON_TYPES.get(name, ()) for name in wanted):
                if path in self._document.substituted:
                    return " (quotes make it text; give it a line of its own without quotes)"
                return f" (write {shown} without quotes)"
            if wanted == ["array"]:
                return " (write it in […])" if schema.get("writeOnly") or " " in text else f" (write [{shown}])"
        if isinstance(value, float) and wanted == ["integer"] and value.is_integer():
            return f" (write {int(value)})"
        if isinstance(schema.get("default"), str | int | float):
            return f" (for example {_spelled(schema['default'])})"
        return ""

    def _required(self, fault: _Fault, path: KeyPath) -> Iterator[Said]:
        properties = fault.schema.get("properties", {})
        for key in fault.limit:
            if key not in fault.instance:
                about = properties.get(key)
                what = about.get("description", "").rstrip(".") if isinstance(about, Mapping) else ""
                yield (*path, key), "is missing" + (f" ({what[0].lower()}{what[1:]})" if what else "")

    def _additional(self, fault: _Fault, path: KeyPath) -> Iterator[Said]:
        properties = fault.schema.get("properties", {})
        patterns = fault.schema.get("patternProperties", {})
        for key in fault.instance:
            if key in properties or any(re.search(pattern, key) for pattern in patterns):
                continue
            if patterns:
                words = fault.schema.get("patternErrorMessage", f"must match {listed(patterns)}")
                yield (*path, key), f"is not a possible name: {words}"
                continue
            near = did_you_mean(key, properties)
            if not near and key in self._elsewhere:
                near = f"it belongs in {self._elsewhere[key]}; "
            if not near and {"use", "options"} <= set(properties):
                near = "what a plugin takes belongs under `options`; "
            known = f"known here: {listed(properties)}" if properties else "there are none here"
            yield (*path, key), f"unknown key ({near}{known})"

    def _enum(self, fault: _Fault, path: KeyPath) -> Iterator[Said]:
        allowed = fault.limit
        near = ""
        if isinstance(fault.instance, str):
            near = did_you_mean(fault.instance, [item for item in allowed if isinstance(item, str)])
        choices = ", ".join(_spelled(item) for item in allowed)
        hint = f" ({near.rstrip()})" if near else ""
        yield path, f"is {self.value(path, fault.instance, fault.schema)}, must be one of {choices}{hint}"

    def _const(self, fault: _Fault, path: KeyPath) -> Iterator[Said]:
        wanted = _spelled(fault.limit)
        yield path, f"is {self.value(path, fault.instance, fault.schema)}, must be {wanted}"

    def _unique(self, fault: _Fault, path: KeyPath) -> Iterator[Said]:
        for index, item in enumerate(fault.instance):
            if item in fault.instance[:index]:
                yield (*path, index), f"is in the list twice (also at [{fault.instance.index(item)}])"

    def _one_of(self, fault: _Fault, path: KeyPath) -> Iterator[Said]:
        keys = _alternatives(fault.limit)
        if not keys:
            return self._simple(fault, path)
        given = [key for key in keys if key in fault.instance]
        if given:
            return iter([(path, f"has {_quoted(given, 'and')}, must have only one of them")])
        return iter([(path, f"has neither {_quoted(keys, 'nor')}, must have one of them")])

    def _not(self, fault: _Fault, path: KeyPath) -> Iterator[Said]:
        keys = fault.limit["required"] if _is_required(fault.limit) else []
        if len(keys) < 2:
            return self._simple(fault, path)
        return iter([(path, f"has {_quoted(keys, 'and')}, must not have them together")])

    def _simple(self, fault: _Fault, path: KeyPath) -> Iterator[Said]:
        value, must = self.value(path, fault.instance, fault.schema), self._must(fault)
        if isinstance(fault.instance, list | dict) and not fault.instance:
            value = "empty"
        hint = ""
        if fault.instance == "" and path in self._document.substituted:
            value, hint = "empty", " (the environment variable is empty or has an empty default)"
        yield path, f"is {value}, {must}{hint}"

    def _must(self, fault: _Fault) -> str:
        keyword, limit = fault.keyword, fault.limit
        match keyword:
            case "minimum":
                return f"must be at least {limit}"
            case "maximum":
                return f"must be at most {limit}"
            case "exclusiveMinimum":
                return f"must be more than {limit}"
            case "exclusiveMaximum":
                return f"must be less than {limit}"
            case "multipleOf":
                return f"must be a multiple of {limit}"
            case "minLength" | "minItems" | "minProperties":
                return f"must have {_at_least(keyword, limit)}"
            case "maxLength" | "maxItems" | "maxProperties":
                return f"must have at most {limit} {_unit(keyword)}"
            case "pattern":
                return str(fault.schema.get("patternErrorMessage", f"must match the pattern {limit}"))
            case "format":
                return f"must be a {limit}"
            case "anyOf" | "oneOf" if all(isinstance(_type_of(form), str) for form in limit):
                return f"must be {' or '.join(_TYPES[_type_of(form)] for form in limit)}"
            case "anyOf" | "oneOf":
                return "must have one of the forms that are possible here"
            case "None":  # The schema `false`, which nothing fits.
                return "must not be given"
        return f"must fit `{keyword}: {printable(str(limit), 80)}` of its schema"


def _is_required(form: Any) -> bool:
    return isinstance(form, Mapping) and set(form) == {"required"}


def _alternatives(forms: Any) -> list[str]:
    """The keys in `[{required: [a]}, {required: [b]}]`, nothing for other forms."""
    keys = [key for form in forms if _is_required(form) for key in form["required"]]
    return keys if len(keys) == len(forms) else []


def _quoted(keys: Iterable[str], between: str) -> str:
    return f" {between} ".join(f"`{printable(key, 60)}`" for key in keys)


def _type_of(schema: object) -> Any:
    return schema.get("type") if isinstance(schema, Mapping) else None


def _kind(value: object) -> str:
    match value:
        case None:
            return "empty"
        case bool():
            return "a truth value"
        case int() | float():
            return "a number"
        case str():
            return "a text" if value else "empty"
        case list():
            return "a list"
        case _:
            return "a mapping"


def _unit(keyword: str) -> str:
    return {"Length": "characters", "Items": "entries", "Properties": "entries"}[keyword[3:]]


def _at_least(keyword: str, limit: int) -> str:
    if limit == 1:
        return {"Length": "some text", "Items": "an entry", "Properties": "an entry"}[keyword[3:]]
    return f"at least {limit} {_unit(keyword)}"


def _spelled(value: object) -> str:
    """A scalar of a schema as YAML spells it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _is_integer(_checker: object, value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


TYPE_CHECKER = Draft202012Validator.TYPE_CHECKER.redefine("integer", _is_integer)
"""JSON schema takes 1.0 for an integer. A port of 8080.0 is a slip, though."""
