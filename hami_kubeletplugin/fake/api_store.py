"""The objects of the fake API server: versions, conflicts, selectors and a log of changes. No network in here.

All is kept in the form of the newest version; `api_kinds` turns it into the form of an older one and back.
Contract: https://kubernetes.io/docs/reference/using-api/api-concepts/ (resource versions, watch, field selectors).
"""

import asyncio
import copy
import secrets
import uuid
from collections.abc import AsyncGenerator, Mapping
from http import HTTPStatus
from typing import Any, Final, Literal, NamedTuple

from hami_kubeletplugin.fake.api_kinds import RESOURCES, Object

EventType = Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK"]
_SUFFIX_LETTERS: Final = "bcdfghjklmnpqrstvwxz2456789"
_GENERATED_BASE: Final = 58
"""`generateName` is cut to this before 5 random letters are added: k8s.io/apiserver pkg/storage/names."""


class Refusal(Exception):
    """An answer that is not 2xx, as a `Status` object."""

    def __init__(self, code: int, reason: str, message: str, details: Mapping[str, Any] | None = None) -> None:
        self.code, self.reason, self.message, self.details = code, reason, message, dict(details or {})
        super().__init__(message)

    @property
    def status(self) -> Object:
        """The body: `meta/v1 Status`."""
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "details": self.details,
            "code": self.code,
        }


class Key(NamedTuple):
    """Where an object is kept."""

    resource: str
    namespace: str
    name: str


class Change(NamedTuple):
    """One entry of the log that watches read."""

    version: int
    type: EventType
    resource: str
    object: Object


class Store:
    """Objects by key, in memory, with one counter for the resource versions of all."""

    def __init__(self) -> None:
        self.version = 1
        self.changes: list[Change] = []
        self.forgotten = 0
        """Changes up to this version are no longer known; a watch from before it has expired."""
        self._objects: dict[Key, Object] = {}
        self._watchers: set[asyncio.Event] = set()

    def all(self, resource: str, namespace: str = "", selector: str = "") -> list[Object]:
        """Objects by name, as copies."""
        found = [
            obj
            for key, obj in sorted(self._objects.items())
            if key.resource == resource and namespace in {"", key.namespace} and selected(obj, selector)
        ]
        return copy.deepcopy(found)

    def get(self, key: Key) -> Object:
        """One object, as a copy.

        Raises:
            Refusal: 404.
        """
        if key not in self._objects:
            raise not_found(key)
        return copy.deepcopy(self._objects[key])

    def create(self, key: Key, obj: Object) -> Object:
        """Add an object; an empty `key.name` takes `generateName`.

        Raises:
            Refusal: 409 if it is there already.
        """
        obj = copy.deepcopy(obj)
        metadata = obj.setdefault("metadata", {})
        if not key.name and "generateName" in metadata:
            letters = "".join(secrets.choice(_SUFFIX_LETTERS) for _ in range(5))
            key = key._replace(name=metadata["generateName"][:_GENERATED_BASE] + letters)
        if not key.name:
            raise Refusal(HTTPStatus.UNPROCESSABLE_ENTITY, "Invalid", "name or generateName is required")
        if key in self._objects:
            raise Refusal(
                HTTPStatus.CONFLICT, "AlreadyExists", f'{_what(key)} "{key.name}" already exists', _details(key)
            )
        metadata["name"] = key.name
        if key.namespace:
            metadata["namespace"] = key.namespace
        metadata.setdefault("uid", str(uuid.uuid4()))
        metadata.setdefault("creationTimestamp", "2026-01-01T00:00:00Z")
        return self._write(key, obj, "ADDED")

    def update(self, key: Key, obj: Object) -> Object:
        """Replace an object; writing what is there already changes no version, as in the real one.

        Raises:
            Refusal: 404, or 409 if `metadata.resourceVersion` or `uid` is set and no longer right.
        """
        old = self.get(key)
        obj = copy.deepcopy(obj)
        metadata = obj.setdefault("metadata", {})
        for field in ("resourceVersion", "uid"):
            if metadata.get(field, old["metadata"][field]) != old["metadata"][field]:
                raise _conflict(key, "the object has been modified; please apply your changes to the latest version")
        metadata |= {k: old["metadata"][k] for k in ("name", "uid", "resourceVersion", "creationTimestamp")}
        return old if obj == old else self._write(key, obj, "MODIFIED")

    def delete(self, key: Key, preconditions: Mapping[str, str] | None = None) -> Object:
        """Remove an object.

        Raises:
            Refusal: 404, or 409 if a precondition (`uid`, `resourceVersion`) does not hold.
        """
        obj = self.get(key)
        for field, expected in (preconditions or {}).items():
            if obj["metadata"][field] != expected:
                raise _conflict(key, f"Precondition failed: {field} in precondition: {expected}")
        del self._objects[key]
        return self._log(obj, "DELETED", key.resource)

    async def watch(self, resource: str, since: int, selector: str = "", namespace: str = "") -> AsyncGenerator[Change]:
        """Changes after version `since`, forever; 0 starts with what is there.

        Raises:
            Refusal: 410 if they are forgotten.
        """
        if since and since < self.forgotten:
            message = f"too old resource version: {since} ({self.forgotten})"
            raise Refusal(HTTPStatus.GONE, "Expired", message)
        found = [] if since else self.all(resource, namespace, selector)
        there = [Change(self.version, "ADDED", resource, obj) for obj in found]
        read, since = 0, since or self.version
        news = asyncio.Event()
        self._watchers.add(news)
        try:
            for change in there:
                yield change
            while True:
                news.clear()
                unread, read = self.changes[read:], len(self.changes)
                for change in unread:
                    fits = change.resource == resource and selected(change.object, selector)
                    fits = fits and namespace in {"", change.object["metadata"].get("namespace", "")}
                    if change.version > since and (fits or change.type == "BOOKMARK"):
                        yield change
                await news.wait()
        finally:
            self._watchers.discard(news)

    def bookmark(self) -> None:
        """Tell watches the newest version, as the real one does about once a minute."""
        bookmark = Change(self.version, "BOOKMARK", "", {"metadata": {"resourceVersion": str(self.version)}})
        self._append(bookmark)

    def compact(self) -> None:
        """Forget all changes, as etcd does after 5 minutes: watches that start from an older version get 410."""
        self.version += 1
        self.forgotten = self.version

    def _write(self, key: Key, obj: Object, event: EventType) -> Object:
        self._objects[key] = obj
        return self._log(obj, event, key.resource)

    def _log(self, obj: Object, event: EventType, resource: str) -> Object:
        self.version += 1
        obj["metadata"]["resourceVersion"] = str(self.version)
        self._append(Change(self.version, event, resource, copy.deepcopy(obj)))
        return copy.deepcopy(obj)

    def _append(self, change: Change) -> None:
        self.changes.append(change)
        for watcher in self._watchers:
            watcher.set()


def not_found(key: Key) -> Refusal:
    """The 404 of an object, as opposed to the one of an unknown path."""
    return Refusal(HTTPStatus.NOT_FOUND, "NotFound", f'{_what(key)} "{key.name}" not found', _details(key))


def selected(obj: Mapping[str, Any], selector: str) -> bool:
    """Whether a field selector such as `spec.driver!=gpu.hami.io,spec.nodeName=n1` holds; what isn't there is empty."""
    for term in filter(None, selector.split(",")):
        path, _, expected = term.partition("=")
        unequal = path.endswith("!")
        value: Any = obj
        for part in path.removesuffix("!").split("."):
            value = value.get(part, "") if isinstance(value, Mapping) else ""
        if (value != expected.removeprefix("=")) != unequal:
            return False
    return True


def _what(key: Key) -> str:
    group = RESOURCES[key.resource].group
    return f"{key.resource}.{group}" if group else key.resource


def _details(key: Key) -> Object:
    return {"name": key.name, "kind": key.resource, "group": RESOURCES[key.resource].group}


def _conflict(key: Key, message: str) -> Refusal:
    text = f'Operation cannot be fulfilled on {_what(key)} "{key.name}": {message}'
    return Refusal(HTTPStatus.CONFLICT, "Conflict", text, _details(key))
