"""Sees to it that the templates of a pod exist before the pod does, at the price of no API call for nearly all pods.

What the cluster has is known from a watch. A template of ours carries the hour of its last use, for the collector to go by.
"""

import asyncio
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Self

from hami_kubeletplugin.api.errors import AdmissionError, ApiConflict, ApiError, ApiNotFound
from hami_kubeletplugin.api.names import LAST_USED, TEMPLATE_PREFIX
from hami_kubeletplugin.kube.call import Object
from hami_kubeletplugin.kube.client import Event
from hami_kubeletplugin.kube.informer import list_and_watch
from hami_kubeletplugin.kube.resource_api import Listed, kept
from hami_kubeletplugin.kube.template_api import TEMPLATES, TemplateClient, key_of
from hami_kubeletplugin.webhook.cluster.allowance import Allowance
from hami_kubeletplugin.webhook.cluster.flight import Flight
from hami_kubeletplugin.webhook.conversion.template import MANAGED_BY, Template

STAMP_EVERY: Final = timedelta(hours=1)
"""A stamp that is younger is good enough. No template is collected at less than twice that age (template_lifetime)."""
_TRIES: Final = 4
"""Steps until a template is given up that others create and delete all the while."""

ObjectKey = tuple[str, str]
"""Namespace and name."""


def utc_now() -> datetime:
    """The time."""
    return datetime.now(UTC)


def is_ours(obj: Mapping[str, Any]) -> bool:
    """Whether the webhook made this template."""
    return MANAGED_BY.items() <= (obj["metadata"].get("labels") or {}).items()


def last_used(obj: Mapping[str, Any]) -> datetime | None:
    """The time stamp of a template; None if it has none, or one that can't be read."""
    try:
        stamp = datetime.fromisoformat((obj["metadata"].get("annotations") or {})[LAST_USED])
    except (KeyError, ValueError):
        return None
    return stamp if stamp.tzinfo else None


@dataclass(frozen=True, slots=True)
class _Known:
    """A template as the cluster has it."""

    version: int
    content: bytes
    """Digest of its claims' spec: specs of ten thousand templates are not kept."""
    ours: bool
    stamp: datetime | None

    @classmethod
    def of(cls, obj: Object) -> Self:
        return cls(int(obj["metadata"]["resourceVersion"]), _digest(_claim_spec(obj)), is_ours(obj), last_used(obj))

    def is_fresh(self, now: datetime) -> bool:
        """Needs no stamp now. One from the future, by somebody's clock or hand, would not be renewed for too long."""
        return not self.ours or (self.stamp is not None and abs(now - self.stamp) < STAMP_EVERY)


class Templates:
    """The templates of all namespaces.

    Args:
        client: Open for as long as this is used.
        allowance: How much may be made.
        now: The time, UTC.
        count: Told of each write: `created` or `stamped`.
    """

    def __init__(
        self,
        client: TemplateClient,
        allowance: Allowance,
        *,
        now: Callable[[], datetime] = utc_now,
        count: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._client, self._allowance, self._now, self._count = client, allowance, now, count
        self._known: dict[ObjectKey, _Known] = {}
        self._ours = Counter[str]()
        """Templates that the webhook made, by namespace; those that it is just making are not among them."""
        self._seen = 0
        """Resource version up to which the watch has come."""
        self._flights: dict[ObjectKey, Flight] = {}

    @property
    def synced(self) -> bool:
        """Whether the first list is in. `ensure` works before, only with more calls."""
        return self._seen > 0

    @property
    def ours(self) -> int:
        """How many of ours there are in the cluster."""
        return self._ours.total()

    async def run(self) -> None:
        """Follow the cluster's templates until cancelled."""
        await list_and_watch("ResourceClaimTemplates", self.listed, self._client.watch_templates, self)

    async def ensure(self, namespace: str, templates: Sequence[Template], *, dry_run: bool) -> None:
        """Return when all these exist in the namespace, and will for an hour at least.

        A template that others made, such as from the output of `hami-webhook convert`, will do, but is left as it is. Only
        the claims' spec is compared: labels that somebody gives to claims (`spec.metadata`) change nothing that is allocated.

        Args:
            namespace: The pod's.
            templates: With different names.
            dry_run: Write nothing; what isn't there is taken to be made by the real run.

        Raises:
            AdmissionError: An object of that name has other content, or the namespace has as many templates as it may have.
                Nothing was written then.
            TooSoon: Much was made a moment ago; nothing was written.
            ApiError: As it comes, e.g. ApiForbidden for a namespace that is being deleted.
        """
        lacking = list(self._lacking(namespace, templates))
        new = [template for template in lacking if not self._is_coming(namespace, template)]
        if new:
            making = sum(place[0] == namespace and place not in self._known for place in self._flights)
            self._allowance.check(namespace, self._ours[namespace] + making, len(new))
        if lacking and not dry_run:
            self._allowance.take(namespace, [template.size for template in new])
            await self._write(namespace, lacking)

    def _lacking(self, namespace: str, templates: Sequence[Template]) -> Iterator[Template]:
        """Those that are not there, or need a stamp.

        Raises:
            AdmissionError: An object of that name has other content.
        """
        now = self._now()
        for template in templates:
            known = self._known.get((namespace, template.name))
            if known is not None:
                _check(known, namespace, template)
            if known is None or not known.is_fresh(now):
                yield template

    def _is_coming(self, namespace: str, template: Template) -> bool:
        """Whether it is there, or is just being made."""
        place = namespace, template.name
        return place in self._known or place in self._flights

    async def _write(self, namespace: str, templates: Sequence[Template]) -> None:
        # All of them are under way before anything is waited for, so that the next review counts them.
        flights = [self._joined(namespace, template) for template in templates]
        try:
            work = (asyncio.shield(flight.task) for flight in flights)
            results = await asyncio.gather(*work, return_exceptions=True)
        finally:
            for flight in flights:
                flight.leave()
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def listed(self) -> Listed[tuple[ObjectKey, _Known]]:
        """What the API server has now, as `replace` takes it.

        Raises:
            ApiError: As it comes.
        """
        return await kept(
            self._client.pages(TEMPLATES),
            lambda obj: (key_of(obj), _Known.of(obj)) if _is_interesting(obj) else None,
        )

    def replace(self, listed: Listed[tuple[ObjectKey, _Known]]) -> None:
        """Take a list in."""
        version = int(listed.resource_version)
        newer = {place: known for place, known in self._known.items() if known.version > version}
        self._known, self._seen = dict(listed.items) | newer, version
        self._ours = Counter(namespace for (namespace, _), known in self._known.items() if known.ours)

    def take(self, event: Event) -> None:
        """Take an event of the watch in."""
        self._seen = int(event.object["metadata"]["resourceVersion"])
        if event.type == "BOOKMARK" or not event.object["metadata"]["name"].startswith(TEMPLATE_PREFIX):
            return
        place = key_of(event.object)
        known = self._known.get(place)
        if known is not None and known.version > self._seen:
            return  # from before our own write
        if event.type == "DELETED" or not _is_interesting(event.object):
            self._keep(place, None)
        else:
            self._keep(place, _Known.of(event.object))

    def _keep(self, place: ObjectKey, known: _Known | None) -> None:
        """What is known of a template now; None: it is gone."""
        before = self._known.pop(place, None)
        if before is not None and before.ours:
            self._ours[place[0]] -= 1
        if known is not None:
            self._known[place] = known
            self._ours[place[0]] += known.ours

    def _joined(self, namespace: str, template: Template) -> Flight:
        """Concurrent pods that need the same cost one write, and none of them fails because another one's client left."""
        place = namespace, template.name
        flight = self._flights.get(place)
        if flight is None:

            def over() -> None:
                if self._flights.get(place) is flight:
                    del self._flights[place]

            flight = self._flights[place] = Flight(self._make_sure(namespace, template), over)
        flight.waiting += 1
        return flight

    async def _make_sure(self, namespace: str, template: Template) -> None:
        now = self._now()
        known = self._known.get((namespace, template.name))
        for _ in range(_TRIES):
            if known is None:
                known = await self._create(namespace, template, now)
            elif not known.is_fresh(now):
                # Stamp first, and create if there is nothing to stamp: the collector deletes only the version that it saw
                # unused. Either it is faster and we find nothing, or the stamp is and it finds another version.
                known = await self._stamp(namespace, template, now)
            if known is not None:
                _check(known, namespace, template)
                if known.is_fresh(now):
                    return
        raise ApiConflict(
            f"ResourceClaimTemplate {namespace}/{template.name} is changed or deleted by others all the while: try again, and "
            "look who does that"
        )

    async def _create(self, namespace: str, template: Template, now: datetime) -> _Known | None:
        """Create it; or find the one that is there already; or None, if that is gone again."""
        obj = template.object(namespace, labels=MANAGED_BY)
        obj["metadata"]["annotations"] = _stamped(now)
        try:
            created = await self._client.create_template(obj)
        except ApiConflict:
            try:
                found = await self._client.get_template(namespace, template.name)
            except ApiNotFound:
                return None
            return self._note(found)
        if _claim_spec(created) != template.spec:
            with suppress(ApiError):  # the next one with this need would find it and think that somebody else wrote it
                await self._client.delete_template(created)
            raise AdmissionError(
                f"ResourceClaimTemplate {namespace}/{template.name}: the API server did not keep it as it was sent: turn on the "
                "feature gates DRAConsumableCapacity and DRAPrioritizedList, or look for another webhook that changes it"
            )
        self._count("created")
        return self._note(created)

    async def _stamp(self, namespace: str, template: Template, now: datetime) -> _Known | None:
        """Renew the stamp; None if the template is gone."""
        try:
            stamped = await self._client.annotate_template(namespace, template.name, _stamped(now))
        except ApiNotFound:
            return None
        self._count("stamped")
        return self._note(stamped)

    def _note(self, obj: Object) -> _Known:
        """Take in what the API server answered, unless the watch has been past it: it may be gone by now."""
        if _is_leaving(obj):
            raise ApiConflict(f"ResourceClaimTemplate {'/'.join(key_of(obj))} is being deleted: try again")
        known = _Known.of(obj)
        if known.version > self._seen:
            self._keep(key_of(obj), known)
        return known


def _check(known: _Known, namespace: str, template: Template) -> None:
    if known.content != _digest(template.spec):
        raise AdmissionError(
            f"ResourceClaimTemplate {namespace}/{template.name} has other content than the one that this pod needs and "
            "that gets this name: delete it, or create it under another name"
        )


def _stamped(now: datetime) -> dict[str, str]:
    return {LAST_USED: now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")}


def _claim_spec(obj: Mapping[str, Any]) -> Any:
    return obj.get("spec", {}).get("spec")


def _digest(spec: Any) -> bytes:
    return hashlib.sha256(json.dumps(spec, sort_keys=True, separators=(",", ":")).encode()).digest()


def _is_interesting(obj: Mapping[str, Any]) -> bool:
    return obj["metadata"]["name"].startswith(TEMPLATE_PREFIX) and not _is_leaving(obj)


def _is_leaving(obj: Mapping[str, Any]) -> bool:
    """Deleted, only a finalizer still holds it; names of such are not free, and pods must not rely on it."""
    return "deletionTimestamp" in obj["metadata"]
