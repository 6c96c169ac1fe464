"""Files of manifests in, their DRA form out: every pod, and every template of one, wherever it is. Pure.

Documents that need no change come out as they are in the file, byte by byte.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from yaml.nodes import Node

from hami_kubeletplugin.api import fields
from hami_kubeletplugin.api.errors import AdmissionError
from hami_kubeletplugin.api.webhook_settings import Conversion
from hami_kubeletplugin.webhook.conversion.convert import Converted, convert
from hami_kubeletplugin.webhook.conversion.template import SizeLookup
from hami_kubeletplugin.webhook.offline import manifest
from hami_kubeletplugin.webhook.offline.manifest import Document, Path


class Owner(NamedTuple):
    """The object that something is in."""

    kind: str = ""
    namespace: str | None = None
    name: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace + '/' if self.namespace else ''}{self.name}".strip() or "no kind"


@dataclass(frozen=True, slots=True)
class Change:
    """A pod, or a template of one, that was converted.

    Attributes:
        document: The file, and the number of the document in it, for people.
        owner: The object that it is, or is in.
        path: Where it is in the document; empty for a pod.
        pod: As it was.
        converted: What became of it.
    """

    document: str
    owner: Owner
    path: Path
    pod: Mapping[str, Any]
    converted: Converted

    @property
    def where(self) -> str:
        """The beginning of field paths in it: empty, or with a dot at the end."""
        return _dotted(self.path) + "." if self.path else ""

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the conversion could not keep, each with the document."""
        return tuple(f"{self.document} ({self.owner}): {warning}" for warning in self.converted.warnings)


class Result(NamedTuple):
    """What became of the files.

    Attributes:
        text: To be applied.
        changes: What was converted.
        notes: What names our resources, but is no pod template, and so was left as it is.
    """

    text: str
    changes: tuple[Change, ...]
    notes: tuple[str, ...]


class _Found(NamedTuple):
    path: Path
    owner: Owner
    pod: Mapping[str, Any] | None
    """None: no pod, but one of our resources is named there."""


def convert_files(files: Mapping[str, str], rules: Conversion, sizes: SizeLookup) -> Result:
    """Convert all documents of all files.

    Args:
        files: Name, for messages, and text: YAML or JSON, any number of documents.
        rules: Names and defaults.
        sizes: Called for percentages of memory.

    Raises:
        SettingsError: A file is not YAML.
        AdmissionError: Something can't be converted so that it keeps its meaning; one line for each.
    """
    work = _Work(rules, sizes)
    for source, text in files.items():
        for document in manifest.read(text, source):
            work.take(document, f"{source}, document {document.number}")
    if work.errors:
        raise AdmissionError("\n".join(work.errors))
    # A single file that needs no change is not put together again.
    text = _joined(work.parts) if work.changes or len(files) > 1 else "".join(files.values())
    return Result(text, tuple(work.changes), tuple(work.notes))


class _Work:
    """What has come together so far."""

    def __init__(self, rules: Conversion, sizes: SizeLookup) -> None:
        self._rules, self._sizes = rules, sizes
        self._written: set[tuple[str | None, str]] = set()
        self.parts: list[str] = []
        self.changes: list[Change] = []
        self.notes: list[str] = []
        self.errors: list[str] = []

    def take(self, document: Document, called: str) -> None:
        changes: list[Change] = []
        for found in _Search(self._rules).run(document.value):
            change = Change(called, found.owner, found.path, found.pod or {}, Converted())
            if found.pod is None:
                self.notes.append(f"{called} ({found.owner}): {_dotted(found.path)} {_why_left(found.owner)}")
                continue
            try:
                converted = convert(found.pod, self._rules, self._sizes, where=change.where)
            except AdmissionError as error:
                self.errors.append(f"{called} ({found.owner}): {error}{manifest.unrendered(str(error))}")
                continue
            if converted.patch:
                changes.append(replace(change, converted=converted))
        self.changes += changes
        if changes and document.root is not None:
            self.parts += self._templates(changes)
            self.parts.append(f"---\n{document.heading}{manifest.write(_patched(document.root, changes))}")
        else:
            self.parts.append(document.text)

    def _templates(self, changes: Iterable[Change]) -> Iterator[str]:
        """Those that were not written before, as people apply them: without the label by which the webhook removes its own."""
        for change in changes:
            namespace = change.owner.namespace
            for template in change.converted.templates:
                if (namespace, template.name) not in self._written:
                    self._written.add((namespace, template.name))
                    yield f"---\n{manifest.write(manifest.tree(template.object(namespace)))}"


def _patched(root: Node, changes: Iterable[Change]) -> Node:
    edits: dict[Path, Node] = {
        (*change.path, *operation["path"].removeprefix("/").split("/")): manifest.tree(operation["value"])
        for change in changes
        for operation in change.converted.patch
    }
    return manifest.replaced(root, edits)


def _joined(parts: Iterable[str]) -> str:
    text: list[str] = []
    for part in filter(None, parts):
        if text and not text[-1].endswith("\n"):
            text.append("\n")
        # kubectl takes a file that begins with { for JSON, to its end.
        if not part.startswith("---") and (text or part.startswith("{")):
            text.append("---\n")
        text.append(part)
    return "".join(text)


def _dotted(path: Path) -> str:
    """A field path as messages have it: `spec.template`, `items[0]`, `limits[nvidia.com/gpu]`."""
    steps = (f".{step}" if str(step).isidentifier() else f"[{step}]" for step in path)
    return "".join(steps).removeprefix(".")


class _Search:
    """Looks for pods by their form, so that it finds them in custom resources too."""

    def __init__(self, rules: Conversion) -> None:
        self._resources = {f"{kind}{name}" for kind in ("", "limits.", "requests.") for name in rules.resources}

    def run(self, value: Any) -> Iterator[_Found]:
        return self._below(value, (), "", Owner())

    def _below(self, value: Any, path: tuple[str | int, ...], field: str, owner: Owner) -> Iterator[_Found]:
        if isinstance(value, list):
            for index, item in enumerate(value):
                yield from self._below(item, (*path, index), "", owner)
        if not isinstance(value, Mapping):
            return
        if isinstance(value.get("kind"), str) and isinstance(value.get("apiVersion"), str):
            owner = _owner(value, owner)
        if _is_pod(value, field):
            yield _Found(path, owner, value)
            return
        for name, child in value.items():
            if name in self._resources:
                yield _Found((*path, name), owner, None)
            yield from self._below(child, (*path, name), name, owner)


def _is_pod(value: Mapping[str, Any], field: str) -> bool:
    if value.get("kind") == "Pod" and value.get("apiVersion") == "v1":
        return True
    spec = value.get("spec")
    # Besides `template` there are a LeaderWorkerSet's `workerTemplate` and others of the kind.
    return field.lower().endswith("template") and isinstance(spec, Mapping) and isinstance(spec.get("containers"), list)


def _owner(value: Mapping[str, Any], around: Owner) -> Owner:
    names = fields.mapping(value.get("metadata"))
    namespace = names.get("namespace") or around.namespace
    name = names.get("name") or names.get("generateName") or ""
    return Owner(str(value["kind"]), str(namespace) if namespace else None, str(name))


def _why_left(owner: Owner) -> str:
    if owner.kind == "ResourceQuota":
        return "will count nothing, since pods no longer name it: limit claims instead (docs/migrating-from-hami.md, Quotas)"
    return "is not in a pod template, so it is left as it is: pods made from it are converted when they are created"
