"""Files of manifests in, their DRA form out: every pod, and every template of one, wherever it is. Pure.

Documents that need no change come out as they are in the file, byte by byte.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from yaml.nodes import Node

from hami_kubeletplugin.api import fields
from hami_kubeletplugin.api.errors import AdmissionError
from hami_kubeletplugin.api.webhook_settings import Conversion
from hami_kubeletplugin.webhook.conversion.convert import Converted, convert
from hami_kubeletplugin.webhook.conversion.fleet import Fleet
from hami_kubeletplugin.webhook.conversion.template import PRINTED, SizeLookup
from hami_kubeletplugin.webhook.conversion.toleration import without_plugin
from hami_kubeletplugin.webhook.offline import kinds, manifest
from hami_kubeletplugin.webhook.offline.above import AMOUNT, above_the_pod, dotted, is_annotation
from hami_kubeletplugin.webhook.offline.manifest import Document, Path


class Owner(NamedTuple):
    """The object that something is in."""

    group: str = ""
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
        return dotted(self.path) + "." if self.path else ""

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
    pod: Mapping[str, Any] | None = None
    """None: no pod, but one of our resources is named there."""
    left: str | None = None
    """Why whole pods that are there are left as they are, if they are."""


def convert_files(
    files: Mapping[str, str],
    rules: Conversion,
    sizes: SizeLookup,
    fleet: Fleet | None = None,
    leave: Collection[str] = (),
) -> Result:
    """Convert all documents of all files.

    Args:
        files: Name, for messages, and text: YAML or JSON, any number of documents.
        rules: Names and defaults.
        sizes: Called for percentages of memory.
        fleet: The GPUs that amounts are held against.
        leave: Patterns of GROUP/KIND that are left as they are, beside those of `kinds`.

    Raises:
        SettingsError: A file is not YAML, or a pattern is none.
        AdmissionError: Something can't be converted so that it keeps its meaning; one line for each.
    """
    kinds.check(leave)
    work = _Work(_Search(rules, leave), rules, sizes, fleet)
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

    def __init__(self, search: "_Search", rules: Conversion, sizes: SizeLookup, fleet: Fleet | None) -> None:
        self._search, self._rules, self._sizes, self._fleet = search, rules, sizes, fleet
        self._written: set[tuple[str | None, str]] = set()
        self.parts: list[str] = []
        self.changes: list[Change] = []
        self.notes: list[str] = []
        self.errors: list[str] = []

    def take(self, document: Document, called: str) -> None:
        changes: list[Change] = []
        named: dict[tuple[Owner, str], list[Path]] = defaultdict(list)
        for found in self._search.run(document.value):
            if found.pod is None:
                what = AMOUNT if is_annotation(found.path) else _what_of(found)
                named[found.owner, what].append(found.path)
                continue
            change = Change(called, found.owner, found.path, found.pod, Converted())
            try:
                converted = convert(found.pod, self._rules, self._sizes, where=change.where, fleet=self._fleet)
                tolerated = tuple(without_plugin(found.pod, converted, self._rules, change.where))
            except AdmissionError as error:
                self.errors.append(f"{called} ({found.owner}): {error}{manifest.unrendered(str(error))}")
                continue
            change = replace(change, converted=converted)
            above = above_the_pod(document.value, found.path)
            self.notes += (f"{called} ({found.owner}): {note}" for note in above)
            if converted.patch:
                patch = (*converted.patch, *tolerated)
                changes.append(replace(change, converted=replace(converted, patch=patch)))
            else:
                self.notes += change.warnings
        for (owner, what), paths in named.items():
            more = f" (and {len(paths) - 1} more)" if len(paths) > 1 else ""
            self.notes.append(f"{called} ({owner}): {dotted(paths[0])}{more} {what}")
        self.changes += changes
        if changes and document.root is not None:
            self.parts += self._templates(changes)
            self.parts.append(f"---\n{document.heading}{manifest.write(_patched(document.root, changes))}")
        else:
            self.parts.append(document.text)

    def _templates(self, changes: Iterable[Change]) -> Iterator[str]:
        """Those that were not written before, as people apply them: not with the label by which the webhook removes its own."""
        for change in changes:
            namespace = change.owner.namespace
            for template in change.converted.templates:
                if (namespace, template.name) not in self._written:
                    self._written.add((namespace, template.name))
                    yield f"---\n{manifest.write(manifest.tree(template.object(namespace, PRINTED)))}"


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


class _Search:
    """Looks for pods by their form, so that it finds them in custom resources too; and for our names in everything else."""

    def __init__(self, rules: Conversion, leave: Collection[str]) -> None:
        self._resources = {f"{kind}{name}" for kind in ("", "limits.", "requests.") for name in rules.resources}
        self._leave = leave

    def run(self, value: Any) -> Iterator[_Found]:
        return self._below(value, (), "", Owner(), None)

    def _below(self, value: Any, path: Path, field: str, owner: Owner, left: str | None) -> Iterator[_Found]:
        if isinstance(value, list):
            for index, item in enumerate(value):
                yield from self._below(item, (*path, index), field if isinstance(item, str) else "", owner, left)
        # As the value of a field, too; not the key of a toleration, which stays.
        if isinstance(value, str) and value in self._resources and field != "key":
            yield _Found(path, owner, left=left)
        if not isinstance(value, Mapping):
            return
        if isinstance(value.get("kind"), str) and isinstance(value.get("apiVersion"), str):
            owner = _owner(value, owner)
            if kinds.has_no_pods(owner.group, owner.kind):
                return
            named = bool(fields.at(value, "metadata", "namespace"))
            left = left or kinds.why_left(owner.group, owner.kind, self._leave, in_namespace=named)
        if left is None and _is_pod(value, field):
            yield _Found(path, owner, value)
            return
        for name, child in value.items():
            if name in self._resources:
                yield _Found((*path, name), owner, left=left)
            yield from self._below(child, (*path, name), name, owner, left)


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
    group = str(value["apiVersion"]).rpartition("/")[0]
    return Owner(group, str(value["kind"]), str(namespace) if namespace else None, str(name))


def _what_of(found: _Found) -> str:
    """What becomes of a place that names one of our resources and is no pod of which we make another."""
    counts = kinds.what_of_count(found.owner.group, found.owner.kind, found.path)
    if counts is not None:
        return counts
    why = f"is left as it is, since {found.left}" if found.left else "is not in a pod template, so it is left as it is"
    return f"{why}: the webhook converts its pods when they are created, and has to be in the cluster for that"
