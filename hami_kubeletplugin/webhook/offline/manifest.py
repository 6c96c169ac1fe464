"""YAML and JSON files of manifests: read as kubectl reads them, and written so that kubectl reads the same again. Pure.

A document is kept as the tree of nodes that the YAML parser makes, with each scalar's own text and quotes: what isn't replaced is
written as it came, be it 08, 1e3, a date, "on" or a block of lines. `value` is what the document means.

Contract: YAML 1.1 as sigs.k8s.io/yaml decodes it (its goyaml.v2, resolve.go): `on`, `y` and the like are booleans, `08` is a
number, times are texts.
"""

import base64
import binascii
import functools
import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import yaml
from yaml.composer import Composer
from yaml.emitter import Emitter
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from yaml.parser import Parser
from yaml.reader import Reader, ReaderError
from yaml.representer import SafeRepresenter
from yaml.resolver import BaseResolver
from yaml.scanner import Scanner
from yaml.serializer import Serializer

from hami_kubeletplugin.api.errors import SettingsError

Path = Sequence[str | int]
"""Steps from the root of a document to something in it: fields and indices."""

_TAG: Final = "tag:yaml.org,2002:"
_MERGE: Final = f"{_TAG}merge"
_MARKER: Final = re.compile(r"(---|\.\.\.)(?=\s|$)")
_NOTHING: Final = re.compile(r"((---|\.\.\.)(?=\s|$))?\s*(#.*)?$")
"""A line without content."""
_TRUE: Final = frozenset(["y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"])
_FALSE: Final = frozenset(["n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"])
_INT: Final = r"[-+]?(0|0[bB][01][01_]*|0[oO]?[0-7][0-7_]*|0[xX][0-9a-fA-F][0-9a-fA-F_]*|[1-9][0-9_]*)"
_FLOAT: Final = r"[-+]?(\.[0-9]+|[0-9][0-9_]*(\.[0-9_]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"

_MOST_VALUES: Final = 1_000_000
"""In one document. Only aliases of aliases make more of a file that people wrote."""
_LONGEST_INT: Final = 400
"""Digits. Python takes any number of hexadecimal ones, but can't write so large a number."""


class _Resolver(BaseResolver):
    """What a scalar without quotes is."""


for _name, _pattern, _first in (
    ("merge", "<<", "<"),
    ("null", "|~|null|Null|NULL", ["~", "n", "N", ""]),
    ("bool", "|".join(sorted(_TRUE | _FALSE)), list("yYnNtTfFoO")),
    ("int", _INT, list("-+0123456789")),
    ("float", _FLOAT, list("-+.0123456789")),
):
    _Resolver.add_implicit_resolver(f"{_TAG}{_name}", re.compile(rf"(?:{_pattern})\Z"), _first)


class _Loader(Reader, Scanner, Parser, Composer, _Resolver):
    def __init__(self, text: str) -> None:
        Reader.__init__(self, text)
        Scanner.__init__(self)
        Parser.__init__(self)
        Composer.__init__(self)
        _Resolver.__init__(self)


class _Dumper(Emitter, Serializer, SafeRepresenter, _Resolver):
    def __init__(self, stream: Any) -> None:
        # Wide: long lines stay one line, as people wrote them.
        Emitter.__init__(self, stream, width=1 << 20, allow_unicode=True)
        Serializer.__init__(self)
        SafeRepresenter.__init__(self, default_flow_style=False, sort_keys=False)
        _Resolver.__init__(self)

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002 - as the base class has it
        return True


def _text_node(dumper: SafeRepresenter, text: str) -> ScalarNode:
    return dumper.represent_scalar(f"{_TAG}str", text, "|" if "\n" in text else None)


_Dumper.add_representer(str, _text_node)


@dataclass(frozen=True, slots=True)
class Document:
    """One document of a file.

    Attributes:
        number: From 1; 0 if there is nothing in it but comments.
        line: The line of the file that it starts at, from 1.
        text: Just as it is in the file, with the line of `---` before it, if there is one.
        root: Its tree; None if it is empty.
        value: What it means, as JSON.
    """

    number: int
    line: int
    text: str
    root: Node | None = None
    value: Any = None

    @property
    def heading(self) -> str:
        """The comments before the content, such as helm's `# Source:`."""
        lines: list[str] = []
        for line in self.text.splitlines(keepends=True):
            if not _NOTHING.match(line.rstrip("\r\n")):
                break
            lines.append(line.removeprefix("---").lstrip() if line.startswith("---") else line)
        return "".join(line for line in lines if line.strip())


def read(text: str, source: str) -> list[Document]:
    """Read all documents of a file.

    Args:
        text: The whole file.
        source: Its name, for messages.

    Raises:
        SettingsError: It is neither YAML nor JSON; names the file, the document and the line.
    """
    if text.lstrip().startswith("{") and (found := _json_documents(text)):
        return found
    documents: list[Document] = []
    number = 0
    for line, part in _parts(text):
        if all(_NOTHING.match(each) for each in part.splitlines()):
            documents.append(Document(0, line, part))
            continue
        number += 1
        documents.append(_parsed(part, number, line, source))
    return documents


def write(content: Node) -> str:
    """The YAML of a tree, without `---`."""
    text = io.StringIO()
    dumper = _Dumper(text)
    dumper.open()
    dumper.serialize(content)
    dumper.close()
    return text.getvalue()


def tree(value: object) -> Node:
    """The tree of plain data: None, booleans, numbers, texts, lists and mappings."""
    return _Dumper(None).represent_data(value)


def replaced(node: Node | None, path: Path, new: Node) -> Node:
    """A tree with `new` at `path`. Only what lies on the way is copied, so what aliases share elsewhere stays as it is."""
    if not path:
        return new
    step, *rest = path
    if isinstance(node, SequenceNode):
        items = [replaced(item, rest, new) if index == int(step) else item for index, item in enumerate(node.value)]
        return SequenceNode(node.tag, items, flow_style=node.flow_style)
    if not isinstance(node, MappingNode):
        raise TypeError(f"there is nothing at {path}")
    child = replaced(_fields(node).get(str(step)), rest, new)
    pairs = [pair for pair in node.value if _key(pair[0]) != step or pair[0].tag == _MERGE]
    at = next((index for index, pair in enumerate(node.value) if _key(pair[0]) == step), len(pairs))
    pairs.insert(at, (ScalarNode(f"{_TAG}str", str(step)), child))
    return MappingNode(node.tag, pairs, flow_style=node.flow_style)


def _parts(text: str) -> Iterator[tuple[int, str]]:
    """Cut a file into documents; the number of the first line, and the text. Nothing is lost in between."""
    part: list[str] = []
    start = 1
    for number, line in enumerate(re.split(r"(?<=\n)", text), 1):
        marker = _MARKER.match(line)
        if marker and marker[1] == "---" and part:
            yield start, "".join(part)
            part, start = [], number
        part.append(line)
        if marker and marker[1] == "...":
            yield start, "".join(part)
            part, start = [], number + 1
    if any(part):
        yield start, "".join(part)


def _parsed(part: str, number: int, line: int, source: str) -> Document:
    where = f"{source}, document {number}"
    try:
        root = _Loader(part).get_single_node()
        if root is None:
            return Document(0, line, part)
        return Document(number, line, part, root, _Values().of(root))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        at = line + mark.line if mark else line
        raise SettingsError(f"{where}, line {at}: is not YAML: {error.problem or error.context}") from None
    except ReaderError as error:
        at = line + part.count("\n", 0, error.position)
        raise SettingsError(f"{where}, line {at}: is not YAML: {error.reason}: {error.character!a}") from None
    except RecursionError:
        raise SettingsError(f"{where}, line {line}: is nested too deeply") from None


def _json_documents(text: str) -> list[Document]:
    """A stream of JSON objects, as kubectl takes it; empty if that is not what it is."""
    decoder, at = json.JSONDecoder(), 0
    documents: list[Document] = []
    try:
        while rest := text[at:].lstrip():
            start = len(text) - len(rest)
            value, at = decoder.raw_decode(text, start)
            line = text.count("\n", 0, start) + 1
            documents.append(Document(len(documents) + 1, line, text[start:at] + "\n", tree(value), value))
    except (ValueError, RecursionError):
        return []
    return documents


class _Values:
    """What nodes mean. What aliases share is made once, and counted each time: whoever walks over it meets it so often."""

    def __init__(self) -> None:
        self._made: dict[Node, Any] = {}
        self._sizes: dict[Node, int] = {}
        self._making: set[Node] = set()

    def of(self, node: Node) -> Any:
        if isinstance(node, ScalarNode):
            return _scalar(node)
        if node in self._made:
            return self._made[node]
        if node in self._making:
            raise _error("it contains itself, through an alias", node)
        self._making.add(node)
        made: Any
        if isinstance(node, MappingNode):
            fields = _fields(node)
            children: Sequence[Node] = [*fields.values()]
            made = {name: self.of(child) for name, child in fields.items()}
        else:
            children = node.value
            made = [self.of(child) for child in children]
        self._sizes[node] = 1 + sum(self._sizes.get(child, 1) for child in children)
        if self._sizes[node] > _MOST_VALUES:
            raise _error("it is too large with all of its aliases", node)
        self._making.discard(node)
        self._made[node] = made
        return made


@functools.lru_cache(maxsize=1024)  # of mappings that are merged again and again
def _fields(node: MappingNode) -> Mapping[str, Node]:
    """The fields of a mapping; its own ones win over those of `<<`, and later ones over earlier ones."""
    own: dict[str, Node] = {}
    merged: dict[str, Node] = {}
    for key, value in node.value:
        if key.tag != _MERGE:
            own[_key(key)] = value
            continue
        for source in value.value if isinstance(value, SequenceNode) else [value]:
            if not isinstance(source, MappingNode) or source is node:
                raise _error("<< needs another mapping, or a list of mappings", key)
            merged = {**_fields(source), **merged}
    return {**merged, **own}


def _key(node: Node) -> str:
    if not isinstance(node, ScalarNode):
        raise _error("a key must be a text", node)
    value = _scalar(node)
    return value if isinstance(value, str) else json.dumps(value)


def _scalar(node: ScalarNode) -> Any:
    kind, text = node.tag.removeprefix(_TAG), node.value
    if kind == "null":
        return None
    try:
        if kind == "bool":
            return {**dict.fromkeys(_TRUE, True), **dict.fromkeys(_FALSE, False)}[text]
        if kind == "int":
            return _integer(text.replace("_", "").lower())
        if kind == "float":
            number = float(text.replace("_", "").replace(".inf", "inf").replace(".nan", "nan"))
            return int(number) if number.is_integer() else number
        if kind == "binary":
            return base64.b64decode(text).decode()
    except (ValueError, KeyError, binascii.Error):
        raise _error(f"{text[:60]!r} is no {kind}", node) from None
    return text


def _integer(text: str) -> int:
    if len(text) > _LONGEST_INT:
        raise ValueError
    sign, digits = (-1, text[1:]) if text.startswith("-") else (1, text.removeprefix("+"))
    if digits.startswith("0") and digits.isdigit():
        return sign * int(digits, 8)
    return sign * int(digits, 0)


def _error(problem: str, node: Node) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)
