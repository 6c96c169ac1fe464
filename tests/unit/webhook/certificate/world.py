"""A cluster in memory for the tests of certificates: each request of a replica can be let through, lost or held."""

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, cast

from hami_kubeletplugin.api.errors import ApiConflict, ApiNotFound, ApiUnavailable
from hami_kubeletplugin.api.names import WEBHOOK_CONFIGURATION, WEBHOOKS
from hami_kubeletplugin.api.webhook_settings import Certificates
from hami_kubeletplugin.fake.api_patch import STRATEGIC, patched
from hami_kubeletplugin.fake.api_store import Key, Refusal, Store
from hami_kubeletplugin.kube.certificate_api import CONFIGURATIONS, CertificateClient
from hami_kubeletplugin.webhook.certificate import api_objects
from hami_kubeletplugin.webhook.certificate.key_pair import KeyPair
from hami_kubeletplugin.webhook.certificate.rotation import Rotation
from hami_kubeletplugin.webhook.certificate.rotation_step import Content

START = datetime(2026, 1, 1, tzinfo=UTC)
SERVICE = "hami-webhook.hami-system.svc"
_SECRET = Key("secrets", "hami-system", "hami-webhook-tls")


THEIRS = {
    "name": "vgpu.hami.io",
    "clientConfig": {"service": {"namespace": "kube-system", "name": "hami-scheduler"}, "caBundle": "dGhlaXJz"},
}
"""An entry that isn't ours: HAMi's, as 0.1.0's manifest came into one object with it."""


def configuration() -> dict[str, Any]:
    """A webhook configuration as it is applied: without caBundle. It has an entry of somebody else's too."""
    service = {"namespace": "hami-system", "name": "hami-webhook"}
    ours = [{"name": name, "clientConfig": {"service": service}} for name in WEBHOOKS]
    return {"metadata": {"name": WEBHOOK_CONFIGURATION}, "webhooks": [*ours, THEIRS]}


class World:
    """The Secret, both configurations, and the time."""

    def __init__(self) -> None:
        self.store, self.now, self.writes = Store(), START, 0
        self.store.create(_SECRET, {"metadata": {"name": _SECRET.name, "namespace": _SECRET.namespace}})
        for resource in CONFIGURATIONS:
            self.store.create(Key(resource, "", WEBHOOK_CONFIGURATION), configuration())

    @property
    def secret(self) -> dict[str, Any] | None:
        """The Secret."""
        try:
            return self.store.get(_SECRET)
        except Refusal:
            return None

    @property
    def content(self) -> Content:
        """What is in it."""
        return api_objects.read_secret(self.secret)

    def put_data(self, data: Mapping[str, str] | None) -> None:
        """Somebody replaces what is in the Secret, or deletes it (None)."""
        secret = self.secret
        if data is None:
            if secret is not None:
                self.store.delete(_SECRET)
        elif secret is None:
            metadata = {"name": _SECRET.name, "namespace": _SECRET.namespace}
            self.store.create(_SECRET, {"metadata": metadata, "data": dict(data)})
        else:
            self.store.update(_SECRET, {**secret, "data": dict(data)})

    def wipe(self) -> None:
        """Somebody replaces both configurations by their manifest."""
        for resource in CONFIGURATIONS:
            self.store.update(Key(resource, "", WEBHOOK_CONFIGURATION), configuration())

    def configurations(self) -> list[dict[str, Any]]:
        """Both."""
        return [self.store.get(Key(resource, "", WEBHOOK_CONFIGURATION)) for resource in CONFIGURATIONS]

    def bundles(self) -> list[str]:
        """The caBundle of every webhook of ours, PEM."""
        return [
            text.decode()
            for resource, obj in zip(CONFIGURATIONS, self.configurations(), strict=True)
            for text in api_objects.read_configuration(resource, obj).bundles.values()
        ]

    def trusted(self, pair: KeyPair) -> bool:
        """Whether every webhook of ours trusts it."""
        return all(pair.certificate.pem in text for text in self.bundles())


class Replica:
    """A webhook's rotation, which stops before and after each request until `step`. Stands for its `CertificateClient` too."""

    def __init__(self, world: World, loop: asyncio.AbstractEventLoop, more_hosts: str = "") -> None:
        self._world, self._loop, self._gate = world, loop, loop.create_future()
        self._wake: datetime | None = None
        api = cast(CertificateClient, self)
        self.rotation = Rotation(Certificates(tls_hosts=more_hosts), api, now=lambda: world.now, sleep=self._sleep)
        self._task = loop.create_task(self._live())

    @property
    def asleep(self) -> bool:
        """Whether it waits for its next look."""
        return self._wake is not None

    def step(self, *, lost: bool = False) -> None:
        """Let it go on to its next stop; lost: the request, or if that was done already its answer, is."""
        if self._wake is not None and self._wake > self._world.now:
            return
        if not self._gate.done():
            if lost and self._wake is None:
                self._gate.set_exception(ApiUnavailable("lost"))
            else:
                self._gate.set_result(None)
        self._turn()

    def kill(self) -> None:
        """End it where it stands."""
        self._task.cancel()
        self._turn()

    def _turn(self) -> None:
        for _ in range(4):
            self._loop.call_soon(self._loop.stop)
            self._loop.run_forever()
        if self._task.done() and not self._task.cancelled():
            self._task.result()

    async def _live(self) -> None:
        await self.rotation.start()
        await self.rotation.run()

    async def _stop(self) -> None:
        self._gate = self._loop.create_future()
        await self._gate

    async def _sleep(self, seconds: float) -> None:
        self._wake = self._world.now + timedelta(seconds=seconds)
        await self._stop()
        self._wake = None

    async def _ask(self, verb: str, key: Key, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        await self._stop()
        store = self._world.store
        try:
            match verb:
                case "get":
                    answer = store.get(key)
                case "create":
                    answer = store.create(key, dict(body or {}))
                case "update":
                    answer = store.update(key, dict(body or {}))
                case _:
                    answer = store.update(key, patched(store.get(key), body, STRATEGIC))
        except Refusal as refusal:
            raise {404: ApiNotFound, 409: ApiConflict}[refusal.code](refusal.message) from None
        self._world.writes += verb != "get"
        await self._stop()
        return answer

    async def get_secret(self, namespace: str, name: str) -> dict[str, Any]:
        """As the client."""
        return await self._ask("get", Key("secrets", namespace, name))

    async def create_secret(self, obj: Mapping[str, Any]) -> dict[str, Any]:
        """As the client."""
        return await self._ask("create", _SECRET, obj)

    async def update_secret(self, obj: Mapping[str, Any]) -> dict[str, Any]:
        """As the client."""
        return await self._ask("update", _SECRET, obj)

    async def get_configuration(self, resource: str, name: str) -> dict[str, Any]:
        """As the client."""
        return await self._ask("get", Key(resource, "", name))

    async def set_ca_bundles(
        self, resource: str, name: str, version: str, bundles: Mapping[str, str]
    ) -> dict[str, Any]:
        """As the client."""
        webhooks = [{"name": webhook, "clientConfig": {"caBundle": text}} for webhook, text in bundles.items()]
        patch = {"metadata": {"resourceVersion": version}, "webhooks": webhooks}
        return await self._ask("patch", Key(resource, "", name), patch)
