"""From a YAML file to plain data, with a side table that says where each value stands.

The only file that talks to PyYAML. It composes nodes and never constructs objects, reads plain scalars by
the short rules of YAML 1.2 (`yes`, `1:30` and `010` are text) and keys always as the text that is written: a
route may be called `70`.
"""

from __future__ import annotations

import codecs
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

import yaml

from specrouter.errors import TopologyError

from .document import Document, KeyPath, Location, Problem
from .model import PORT_VARIABLE

MAX_BYTES = 1024 * 1024
MAX_DEPTH = 50
MAX_VALUES = 20_000
"""Limits of a topology: bytes of the file, levels of nesting, values after aliases are followed."""


def read_document(file: Path, environ: Mapping[str, str]) -> Document:
    """Read a topology file and replace `${NAME}` and `${NAME:-default}` by values of `environ`.

    Raises TopologyError where the file cannot be read or is not YAML; everything that leaves data to look at
    is in `problems` of the document.
    """
    text = _read_text(file)
    try:
        loader = _Loader(text)
    except yaml.reader.ReaderError as error:
        location = _location_at(text, error.position)
        _fail(file, location, f"the character U+{error.character:04X} is not allowed (remove it)")
    try:
        root = loader.get_single_node()
    except yaml.MarkedYAMLError as error:
        _fail(file, _location(error.problem_mark or error.context_mark), _syntax_words(error, text))
    except (ValueError, OverflowError):
        # PyYAML passes numbers in escapes and directives on to Python unchecked.
        _fail(file, _location(loader.get_mark()), "this escape or directive has a number that is out of range")
    if root is None:
        _fail(file, Location(1, 1), "the file is empty (a topology begins with `version: 1`)")
    builder = _Builder(Document(file), text, loader.plain, environ)
    try:
        builder.document.data = builder.value(root, ())
    except _TooMuchError as error:
        _fail(file, error.location, str(error))
    return builder.document


def _fail(file: Path, location: Location, message: str) -> NoReturn:
    raise TopologyError([Problem(location, (), message).line(file)]) from None


def _read_text(file: Path) -> str:
    start = Location(1, 1)
    try:
        with file.open("rb") as stream:
            raw = stream.read(MAX_BYTES + 1)
    except FileNotFoundError:
        _fail(file, start, "there is no such file")
    except IsADirectoryError:
        _fail(file, start, "is a directory (name the YAML file in it)")
    except OSError as error:
        _fail(file, start, f"cannot be read: {error.strerror}")
    if len(raw) > MAX_BYTES:
        _fail(file, start, f"is larger than {MAX_BYTES // 1024} KiB, which no topology needs")
    if raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        _fail(file, start, "is encoded as UTF-16 (save it as UTF-8)")
    raw = raw.removeprefix(codecs.BOM_UTF8)
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        before = raw[: error.start].decode()
        _fail(file, _location_at(before, len(before)), f"byte 0x{raw[error.start]:02x} is not UTF-8")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _location(mark: yaml.Mark | None) -> Location:
    return Location(mark.line + 1, mark.column + 1) if mark is not None else Location(1, 1)


def _location_at(text: str, index: int) -> Location:
    before = text[:index].replace("\r\n", "\n").replace("\r", "\n")
    return Location(before.count("\n") + 1, len(before) - before.rfind("\n"))


class _Loader(yaml.SafeLoader):
    """Composes nodes only, and remembers which scalars were written plainly (no quotes, no tag)."""

    # No implicit types: `_plain_value` decides, by simpler rules and after variables are replaced.
    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012  (PyYAML's own spelling)

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0
        self.plain: set[int] = set()

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.MarkedYAMLError(problem="nested too deeply", problem_mark=mark)
        try:
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1

    def compose_scalar_node(self, anchor: Any) -> yaml.ScalarNode:
        is_plain = self.peek_event().implicit[0]  # type: ignore[no-untyped-call]
        node: yaml.ScalarNode = super().compose_scalar_node(anchor)
        if is_plain:
            self.plain.add(id(node))
        return node


_SYNTAX = (
    (r"'\\t' that cannot start", "a tab stands where YAML wants spaces (replace it by spaces)"),
    (r"character '(.)' that cannot start", r"text that begins with `\1` must be in quotes"),
    (
        "mapping values are not allowed",
        "a `:` is not expected here (indent like the lines above, or quote the text)",
    ),
    ("expected <block end>", "this does not fit the lines above (check the indentation)"),
    ("could not find expected ':'", "a `key: value` is expected and the colon is missing"),
    ("expected ',' or '([]}])'", r"`,` or `\1` is expected here"),
    ("did not find expected node content|expected the node content", "a value is missing here"),
    ("undefined alias", "no anchor of that name stands above (text that begins with `*` must be in quotes)"),
    ("duplicate anchor|second occurrence", "this anchor name is used twice"),
    ("but found another document", "a second document begins here (a topology is one document)"),
    (
        "unknown escape character",
        "a backslash in double quotes begins an escape (use single quotes, or `\\\\\\\\`)",
    ),
    ("unexpected end of stream", "the file ends within quotes"),
    ("document separator", "a `---` stands within quotes"),
    (
        "undefined tag handle|tag",
        "YAML tags have no meaning here (text that begins with `!` must be in quotes)",
    ),
    ("expected alphabetic", "a name is missing after `&` or `*` (quote text that begins with these)"),
    ("nested too deeply", f"is nested more than {MAX_DEPTH} levels deep"),
    ("", "is not YAML that can be read here"),
)


def _syntax_words(error: yaml.MarkedYAMLError, text: str) -> str:
    mark, problem = error.problem_mark, error.problem or ""
    if mark is not None and text[max(0, mark.index - 1) : mark.index + 1] == "${":
        return 'within {…} or […] a variable must be in quotes, like "${NAME}" (or give it a line of its own)'
    match, words = next((m, words) for pattern, words in _SYNTAX if (m := re.search(pattern, problem)))
    begin = error.context_mark
    is_open = re.search(r"expected ',' or|unexpected end of stream|document separator", problem)
    place = (
        f" (what is not closed began at line {begin.line + 1}, column {begin.column + 1})" if is_open and begin else ""
    )
    return match.expand(words) + place


class _TooMuchError(Exception):
    def __init__(self, location: Location, message: str) -> None:
        super().__init__(message)
        self.location = location


_VARIABLE = re.compile(
    r"\$(?:(?P<dollar>\$)|\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^${}]*))?\}|(?P<wrong>[{A-Za-z_]))"
)
_WRONG_VARIABLE = "this `$` is not a variable (write ${NAME} or ${NAME:-default}, and $$ for a dollar sign)"


class _Builder:
    """Turns nodes into data and fills the tables of the document."""

    def __init__(self, document: Document, text: str, plain: set[int], environ: Mapping[str, str]) -> None:
        self.document = document
        self._text = text
        self._plain = plain
        self._environ = environ
        self._count = 0
        self._open: list[int] = []

    def value(self, node: yaml.Node, path: KeyPath) -> Any:
        self._count_one(node)
        self.document.values[path] = _location(node.start_mark)
        if id(node) in self._open:
            self._report(node, path, "this anchor contains itself")
            self.document.unresolved.add(path)
            return None
        if node.tag not in ("tag:yaml.org,2002:str", "tag:yaml.org,2002:map", "tag:yaml.org,2002:seq"):
            self._report(node, path, "YAML tags (`!…`) have no meaning here (leave the tag out)")
            self.document.unresolved.add(path)
            return None
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, path)
        self._open.append(id(node))
        try:
            if isinstance(node, yaml.MappingNode):
                return self._mapping(node, path)
            return [self.value(item, (*path, index)) for index, item in enumerate(node.value)]
        finally:
            self._open.pop()

    def _count_one(self, node: yaml.Node) -> None:
        # What was written is limited by the size of the file; aliases can multiply and deepen it.
        self._count += 1
        if self._count > MAX_VALUES:
            raise _TooMuchError(_location(node.start_mark), f"aliases make this more than {MAX_VALUES} values")
        if len(self._open) > MAX_DEPTH:
            raise _TooMuchError(_location(node.start_mark), f"aliases nest this more than {MAX_DEPTH} levels deep")

    def _report(self, node: yaml.Node, path: KeyPath, message: str) -> None:
        self.document.problems.append(Problem(_location(node.start_mark), path, message))

    def _mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key, key_node, value_node in self._entries(node, path):
            where = (*path, key)
            self.document.keys[where] = _location(key_node.start_mark)
            result[key] = self.value(value_node, where)
        return result

    def _entries(self, node: yaml.MappingNode, path: KeyPath) -> Iterator[tuple[str, yaml.Node, yaml.Node]]:
        """Keys with their nodes, each once: the mapping's own, then those of `<<` that it does not have."""
        seen: dict[str, Location] = {}
        merges: list[yaml.Node] = []
        for key_node, value_node in node.value:
            self._count_one(key_node)
            if not isinstance(key_node, yaml.ScalarNode):
                self._report(key_node, path, "a key must be text, not a list or mapping (quote text with `{` or `[`)")
            elif key_node.value == "<<" and id(key_node) in self._plain:
                merges += value_node.value if isinstance(value_node, yaml.SequenceNode) else [value_node]
            elif key_node.value in seen:
                first = seen[key_node.value]
                message = f"is given twice (first at {self.document.file}:{first.line}:{first.column})"
                self._report(key_node, (*path, key_node.value), message)
            else:
                seen[key_node.value] = _location(key_node.start_mark)
                yield key_node.value, key_node, value_node
        for merged in merges:
            if not isinstance(merged, yaml.MappingNode):
                self._report(merged, (*path, "<<"), "must be a mapping, or a list of mappings")
                continue
            if id(merged) in self._open:
                self._report(merged, (*path, "<<"), "this anchor contains itself")
                continue
            self._open.append(id(merged))
            for entry in self._entries(merged, path):
                if entry[0] not in seen:
                    seen[entry[0]] = _location(entry[1].start_mark)
                    yield entry
            self._open.pop()

    def _scalar(self, node: yaml.ScalarNode, path: KeyPath) -> Any:
        self.document.texts[path] = node.value
        value = self._substitute(node, path)
        if id(node) not in self._plain or is_for_a_process(path):
            return value
        if value == "" and path in self.document.substituted:
            return value  # A variable that is empty is an empty text; only a place left empty is no value.
        return _plain_value(value)

    def _substitute(self, node: yaml.ScalarNode, path: KeyPath) -> str:
        written: str = node.value
        pieces: list[str] = []
        end = 0
        for number, match in enumerate(_VARIABLE.finditer(written)):
            pieces.append(written[end : match.start()])
            end = match.end()
            if match["dollar"]:
                pieces.append("$")
                continue
            if match["wrong"]:
                self._unresolved(node, path, number, _WRONG_VARIABLE)
                continue
            if match[0] == PORT_VARIABLE and is_for_a_process(path):
                pieces.append(PORT_VARIABLE)
                continue
            name, default = match["name"], match["default"]
            found = self._environ.get(name)
            # As in a shell, `:-` also covers a variable that is set to nothing.
            value = found if found or default is None else default
            if value is None:
                port = f" ({PORT_VARIABLE} is the server's port)" if is_for_a_process(path) else ""
                self._unresolved(node, path, number, f"the environment has no variable {name}{port}")
                continue
            pieces.append(value)
            self.document.substituted.add(path)
        return written if path in self.document.unresolved else "".join(pieces) + written[end:]

    def _unresolved(self, node: yaml.ScalarNode, path: KeyPath, number: int, message: str) -> None:
        start = node.start_mark.index
        written = [match.start() for match in _VARIABLE.finditer(self._text, start, node.end_mark.index)]
        # Escapes in double quotes can hide a dollar sign; then the beginning of the text must do.
        location = _location_at(self._text, written[number] if number < len(written) else start)
        self.document.unresolved.add(path)
        self.document.problems.append(Problem(location, path, message))


def is_for_a_process(path: KeyPath) -> bool:
    """Whether a scalar there is an argument or a variable of a process: always text, and `${port}` means its port."""
    if len(path) < 5 or path[0] != "servers" or path[2] != "run":
        return False
    return path[3] in ("command", "env") or path[3:5] == ("without_workers", "command")


_NULL = {"", "~", "null", "Null", "NULL"}
_BOOL = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INTEGER = re.compile(r"[-+]?(?:0|[1-9][0-9]{0,17})")
_FLOAT = re.compile(r"[-+]?(?:0|[1-9][0-9]{0,17})?(?:\.[0-9]{0,30})?(?:[eE][-+]?[0-9]{1,3})?")


def _plain_value(text: str) -> str | int | float | bool | None:
    """What an unquoted scalar stands for."""
    if text in _NULL:
        return None
    if text in _BOOL:
        return _BOOL[text]
    if _INTEGER.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text) and text.strip("+-.")[:1].isdigit():
        number = float(text)
        return number if math.isfinite(number) else text
    return text


def would_be(text: str) -> type:
    """The type that this text has when it is written without quotes."""
    return type(_plain_value(text))
