"""Removes templates that nobody uses any more. One replica does it, the one that holds a Lease. Nothing goes on doubt.

Two replicas at once would do no harm, since a template is only deleted in the version that was seen unused; the Lease saves
the API server the work. So clocks that differ, which move it too early, do none either.
Contract: https://kubernetes.io/docs/concepts/architecture/leases/, k8s.io/api coordination/v1 types.go.
"""

import asyncio
import os
import random
import secrets
import socket
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NoReturn

from hami_kubeletplugin.api import fields, names
from hami_kubeletplugin.api.errors import ApiConflict, ApiError, ApiForbidden, ApiNotFound
from hami_kubeletplugin.api.webhook_settings import WebhookSettings
from hami_kubeletplugin.kube.call import Object
from hami_kubeletplugin.kube.retry import Sleep
from hami_kubeletplugin.kube.template_api import TEMPLATES, Namespaced, TemplateClient
from hami_kubeletplugin.observe.log import get_logger
from hami_kubeletplugin.observe.once import Once
from hami_kubeletplugin.webhook.cluster.templates import is_ours, last_used, utc_now

log = get_logger()

USERS: Final[Mapping[Namespaced, tuple[str, ...]]] = {
    Namespaced("pods"): ("spec",),
    Namespaced("deployments", "apps"): ("spec", "template", "spec"),
    Namespaced("statefulsets", "apps"): ("spec", "template", "spec"),
    Namespaced("daemonsets", "apps"): ("spec", "template", "spec"),
    Namespaced("replicasets", "apps"): ("spec", "template", "spec"),
    Namespaced("replicationcontrollers"): ("spec", "template", "spec"),
    Namespaced("jobs", "batch"): ("spec", "template", "spec"),
    Namespaced("cronjobs", "batch"): ("spec", "jobTemplate", "spec", "template", "spec"),
}
"""What can name a template, and where the pod's spec is in it. The collector may list all of these (webhook.yaml)."""


class Collector:
    """Looks for unused templates now and then.

    Args:
        client: Open for as long as `run` runs.
        settings: The namespace of the Lease, the interval and the lifetime.
        now: The time, UTC.
        count: Told `collected` for each template.
        looked: Told what came of each look: `ok`, `failed`, or `left` to another replica.
        identity: This replica's, in the Lease. Default: host, process and something random.
        sleep: Waits that many seconds.
    """

    def __init__(
        self,
        client: TemplateClient,
        settings: WebhookSettings,
        *,
        now: Callable[[], datetime] = utc_now,
        count: Callable[[str], None] = lambda _: None,
        looked: Callable[[str], None] = lambda _: None,
        identity: str = "",
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._client, self._namespace, self._interval = client, settings.namespace, settings.collect_interval
        self._lifetime = timedelta(seconds=settings.template_lifetime)
        self._now, self._count, self._looked, self._sleep = now, count, looked, sleep
        self._identity = identity or f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        self._told = Once[str]()

    async def run(self) -> NoReturn:
        """Collect in each interval, if this replica is the one to, until cancelled."""
        while True:
            await self._sleep(self._interval * random.uniform(0.9, 1.1))  # noqa: S311 - no secret
            try:
                if not await self.elected():
                    self._looked("left")
                    continue
                self._looked("ok" if await self.collect() else "failed")
            except ApiError as error:
                self._looked("failed")
                self._tell(error, "Unused templates can't be looked for")

    async def elected(self) -> bool:
        """Get or renew the Lease; False if another replica has it.

        Raises:
            ApiError: It can't be had.
        """
        try:
            lease = await self._client.get_lease(self._namespace, names.COLLECTOR_LEASE)
        except ApiNotFound:
            lease = None
        try:
            if lease is None:
                await self._client.create_lease(self._held(_lease(self._namespace)))
            elif self._is_free(lease):
                await self._client.update_lease(self._held(lease))
            else:
                return False
        except ApiConflict:  # another one was faster
            return False
        return True

    async def collect(self) -> bool:
        """Remove all templates that nobody uses; whether that went well in all namespaces.

        Raises:
            ApiError: The templates can't be listed. What goes wrong in one namespace is logged and leaves the others alone.
        """
        candidates: dict[str, list[Object]] = defaultdict(list)
        async with aclosing(self._client.pages(TEMPLATES)) as pages:
            async for page in pages:
                for obj in filter(self._is_old, page.items):
                    candidates[obj["metadata"]["namespace"]].append(_identity(obj))
        good = True
        for namespace, templates in candidates.items():
            try:
                await self._collect(namespace, templates)
            except ApiError as error:
                good = False
                self._tell(error, "Unused templates of a namespace can't be removed", namespace=namespace)
        return good

    async def _collect(self, namespace: str, templates: Iterable[Object]) -> None:
        unused = {template["metadata"]["name"]: template for template in templates}
        for resource, path in USERS.items():
            async with aclosing(self._client.pages(resource, namespace)) as pages:
                async for page in pages:
                    for name in _used(page.items, path):
                        unused.pop(name, None)
            if not unused:
                return
        for name, template in unused.items():
            try:
                await self._client.delete_template(template)
            except (ApiConflict, ApiNotFound):  # used again meanwhile, or gone
                continue
            self._count("collected")
            log.info("Unused ResourceClaimTemplate removed", namespace=namespace, template=name)

    def _is_old(self, template: Object) -> bool:
        metadata = template["metadata"]
        if (
            not metadata["name"].startswith(names.TEMPLATE_PREFIX)
            or not is_ours(template)
            or "deletionTimestamp" in metadata
        ):
            return False
        used = last_used(template) or datetime.fromisoformat(metadata["creationTimestamp"])
        return self._now() - used > self._lifetime

    def _is_free(self, lease: Object) -> bool:
        spec = lease.get("spec") or {}
        if spec.get("holderIdentity") in {None, "", self._identity}:
            return True
        try:
            renewed = datetime.fromisoformat(spec["renewTime"])
            return self._now() - renewed > timedelta(seconds=spec["leaseDurationSeconds"])
        except (KeyError, TypeError, ValueError):  # written by hand: nobody could ever renew it
            return True

    def _held(self, lease: Object) -> Object:
        now = self._now().astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        before = lease.get("spec") or {}
        spec = {
            **before,
            "holderIdentity": self._identity,
            "leaseDurationSeconds": max(1, round(2 * self._interval)),
            "renewTime": now,
        }
        if before.get("holderIdentity") != self._identity:
            spec |= {"acquireTime": now, "leaseTransitions": before.get("leaseTransitions", -1) + 1}
        return {**lease, "spec": spec}

    def _tell(self, error: ApiError, event: str, **where: str) -> None:
        """Rights that are missing, which they stay until somebody acts, are told once, and not for each namespace."""
        what_to_allow = str(error).rpartition("; ")[2]
        if not isinstance(error, ApiForbidden) or self._told.is_new(what_to_allow):
            log.warning(event, error=str(error), **where)


def _identity(template: Object) -> Object:
    """As much as it takes to delete it as it was seen: specs of ten thousand templates are not kept."""
    metadata = template["metadata"]
    return {"metadata": {field: metadata[field] for field in ("namespace", "name", "uid", "resourceVersion")}}


def _lease(namespace: str) -> Object:
    metadata = {"namespace": namespace, "name": names.COLLECTOR_LEASE}
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata}


def _used(objects: Iterable[Object], path: Iterable[str]) -> Iterator[Any]:
    """The templates that these pods, or their templates, name."""
    for obj in objects:
        for _, claim in fields.mappings(fields.at(obj, *path, "resourceClaims")):
            yield claim.get("resourceClaimTemplateName")
