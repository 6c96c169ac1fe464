"""YAML and JSON files of manifests: read as kubectl reads them, and written so that kubectl reads the same again. Pure.

A document is kept as the tree of nodes that the YAML parser makes, with each scalar's own text and quotes: what isn't replaced is
written as it came, be it 08, 1e3, a date, "on" or a block of lines. `value` is what the document means.
"""

import functools
import io
import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import yaml
from yaml._yaml import CEmitter, CParser
from yaml.composer import Composer
from yaml.events import AliasEvent
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from yaml.reader import ReaderError
from yaml.representer import SafeRepresenter

from hami_kubeletplugin.api.errors import SettingsError
from hami_kubeletplugin.webhook.offline.scalars import MERGE, TAG, Resolver, problem, value_of

Path = tuple[str | int, ...]
"""Steps from the root of a document to something in it: fields and indices."""

_MARKER: Final = re.compile(r"(---|\.\.\.)(?=\s|$)")
_SPACE: Final = re.compile(r"\s*")
_HALF: Final = re.compile(r"\\u[dD][89a-fA-F]")
_NOTHING: Final = re.compile(r"((---|\.\.\.)(?=\s|$))?\s*(#.*)?$")
"""A line without content."""
_MOST_VALUES: Final = 1_000_000
"""In one document. Only aliases of aliases make more of a file that people wrote."""


class _Loader(Composer, CParser, Resolver):
    """libyaml, of which kubectl's reader is a translation: takes tabs where that does, and is ten times as fast as Python."""

    def __init__(self, text: str) -> None:
        CParser.__init__(self, text)
        Composer.__init__(self)
        Resolver.__init__(self)

    def compose_node(self, parent: Node | None, index: Any) -> Node | None:
        """As the base class does, but an anchor may be given again, as for kubectl."""
        if self.anchors and not self.check_event(AliasEvent):
            self.anchors.pop(getattr(self.peek_event(), "anchor", None), None)
        return super().compose_node(parent, index)


class _Emitter(CEmitter, Resolver):
    def __init__(self, stream: Any) -> None:
        # Wide: long lines stay one line, as people wrote them.
        CEmitter.__init__(self, stream, width=1 << 20, allow_unicode=True)
        Resolver.__init__(self)


class _Representer(SafeRepresenter):
    def __init__(self) -> None:
        super().__init__(default_flow_style=False, sort_keys=False)

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002 - as the base class has it
        return True


def _text_node(representer: SafeRepresenter, text: str) -> ScalarNode:
    return representer.represent_scalar(f"{TAG}str", text, "|" if "\n" in text else None)


_Representer.add_representer(str, _text_node)


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
    emitter = _Emitter(text)
    emitter.open()
    emitter.serialize(content)
    emitter.close()
    return text.getvalue()


def tree(value: object) -> Node:
    """The tree of plain data: None, booleans, numbers, texts, lists and mappings."""
    return _Representer().represent_data(value)


def replaced(node: Node | None, edits: Mapping[Path, Node]) -> Node:
    """A tree with other nodes at some paths, none of which leads through another one.

    Only what lies on the ways is copied, so what aliases share elsewhere stays as it is.
    """
    if () in edits:
        return edits[()]
    below: dict[str, dict[Path, Node]] = defaultdict(dict)
    for path, new in edits.items():
        below[str(path[0])][path[1:]] = new
    if isinstance(node, SequenceNode):
        items = list(node.value)
        for step, inner in below.items():
            items[int(step)] = replaced(items[int(step)], inner)
        return SequenceNode(node.tag, items, flow_style=node.flow_style)
    if not isinstance(node, MappingNode):
        raise TypeError(f"there is nothing at {list(below)}")
    fields = _fields(node)
    made = {step: replaced(fields.get(step), inner) for step, inner in below.items()}
    in_place = all(key.tag != MERGE for key, _ in node.value)
    pairs: list[tuple[Node, Node]] = []
    for key, value in node.value:
        step = "" if key.tag == MERGE else _key(key)
        if key.tag == MERGE or step not in below:
            pairs.append((key, value))
        elif in_place and step in made:
            pairs.append((key, made.pop(step)))
    # Behind what is merged, which would win over it, or be won over, depending on who reads it.
    pairs += ((ScalarNode(f"{TAG}str", step), new) for step, new in made.items())
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
        at, what = line + mark.line if mark else line, error.problem or error.context
    except ReaderError as error:
        at, what = line + part.count("\n", 0, error.position), f"{error.reason}: {error.character!a}"
    except RecursionError:
        raise SettingsError(f"{where}, line {line}: is nested too deeply") from None
    raise SettingsError(f"{where}, line {at}: is not YAML: {what}{unrendered(part)}")


def unrendered(text: str) -> str:
    """What to do, if this is a template of Helm's; else empty."""
    return (
        "; it is a template: render it first, helm template CHART | hami-webhook convert -f -" if "{{" in text else ""
    )


def _json_documents(text: str) -> list[Document]:
    """A stream of JSON objects, as kubectl takes it; empty if that is not what it is."""
    decoder, documents = json.JSONDecoder(), list[Document]()
    start = _after_space(text, 0)
    line = 1 + text.count("\n", 0, start)
    try:
        while start < len(text):
            value, end = decoder.raw_decode(text, start)
            if _HALF.search(text, start, end):
                value = _with_whole_characters(value)
            documents.append(Document(len(documents) + 1, line, text[start:end] + "\n", tree(value), value))
            following = _after_space(text, end)
            line += text.count("\n", start, following)
            start = following
    except (ValueError, RecursionError):
        return []
    return documents


def _with_whole_characters(value: Any) -> Any:
    """JSON can write half of a character that has two parts; kubectl reads that as U+FFFD, and no file can hold it."""
    text = json.dumps(value, ensure_ascii=False)
    return json.loads(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))


def _after_space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at


class _Values:
    """What nodes mean. What aliases share is made once, and counted each time: whoever walks over it meets it so often."""

    def __init__(self) -> None:
        self._made: dict[Node, Any] = {}
        self._sizes: dict[Node, int] = {}
        self._making: set[Node] = set()

    def of(self, node: Node) -> Any:
        if isinstance(node, ScalarNode):
            return value_of(node)
        if node in self._made:
            return self._made[node]
        if node in self._making:
            raise problem("it contains itself, through an alias", node)
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
            raise problem("it is too large with all of its aliases", node)
        self._making.discard(node)
        self._made[node] = made
        return made


@functools.lru_cache(maxsize=1024)  # of mappings that are merged again and again
def _fields(node: MappingNode) -> Mapping[str, Node]:
    """The fields of a mapping: later ones win over earlier ones, those of `<<` as well (goyaml.v2, decode.go: mapping, merge)."""
    fields: dict[str, Node] = {}
    for key, value in node.value:
        if key.tag != MERGE:
            fields[_key(key)] = value
            continue
        for source in reversed(value.value) if isinstance(value, SequenceNode) else [value]:
            if not isinstance(source, MappingNode) or source is node:
                raise problem("<< needs another mapping, or a list of mappings", key)
            fields |= _fields(source)
    return fields


def _key(node: Node) -> str:
    if not isinstance(node, ScalarNode):
        raise problem("a key must be a text", node)
    value = value_of(node)
    return value if isinstance(value, str) else json.dumps(value)
