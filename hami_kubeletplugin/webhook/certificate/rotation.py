"""Our own certificate: kept in a Secret, renewed in time, and trusted by the API server before it is served.

What to do next is decided by `rotation_step.next_step`; here it is done, on the real objects, again and again.
"""

import asyncio
import ipaddress
import random
import re
import ssl
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Final

from hami_kubeletplugin.api.errors import (
    ApiConflict,
    ApiError,
    ApiForbidden,
    ApiNotFound,
    CertificateError,
    HamiError,
    SettingsError,
)
from hami_kubeletplugin.api.settings import DNS_SUBDOMAIN
from hami_kubeletplugin.api.webhook_settings import Certificates
from hami_kubeletplugin.kube.backoff import Backoff
from hami_kubeletplugin.kube.call import Object
from hami_kubeletplugin.kube.certificate_api import CONFIGURATIONS, CertificateClient
from hami_kubeletplugin.observe.log import get_logger
from hami_kubeletplugin.observe.once import Once
from hami_kubeletplugin.webhook.certificate import api_objects, rotation_step
from hami_kubeletplugin.webhook.certificate.key_pair import KeyPair, install, server_context
from hami_kubeletplugin.webhook.certificate.rotation_step import Configuration, Content, Publish, Serve, Store, View

INTERVAL: Final = 60.0
"""Seconds between looks, and so the longest that a caBundle which somebody overwrote stays wrong."""
START_TIMEOUT: Final = 60.0
"""Seconds in which `start` has to get a certificate."""
_MAX_STEPS: Final = 32
"""In one look. A look needs up to 7; each conflict with another replica takes one more."""


def _utc_now() -> datetime:
    return datetime.now(UTC)


def hosts(settings: Certificates) -> frozenset[str]:
    """The names and addresses that our own certificate must have.

    Raises:
        SettingsError: `tls_hosts` has something else in it.
    """
    service = f"{settings.service}.{settings.namespace}.svc"
    given = [host.strip() for host in settings.tls_hosts.split(",") if host.strip()]
    return frozenset({service, f"{service}.cluster.local", *map(_host, given)})


class Rotation:
    """Keeps the certificate of one replica, or does the same for somebody at a terminal.

    Args:
        settings: Which Secret, which configurations, which names.
        api: Open while this is used.
        serves: False: never serve, only keep the Secret and the configurations.
        now: The time, UTC.
        sleep: Waits for so many seconds.
    """

    def __init__(
        self,
        settings: Certificates,
        api: CertificateClient,
        *,
        serves: bool = True,
        now: Callable[[], datetime] = _utc_now,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._settings, self._api, self._serves, self._now, self._sleep = settings, api, serves, now, sleep
        self._hosts = hosts(settings)
        self._serving: KeyPair | None = None
        self._stored = Content()
        self._context: ssl.SSLContext | None = None
        self._told = Once[str]()
        self._log = get_logger()

    @property
    def serving(self) -> KeyPair | None:
        """The pair that new connections get."""
        return self._serving

    @property
    def expires_at(self) -> datetime | None:
        """When the certificate that is served ends."""
        return self._serving.certificate.not_after if self._serving is not None else None

    async def start(self) -> ssl.SSLContext:
        """Get a certificate that is trusted, and a context that serves it, now and after each renewal.

        Raises:
            CertificateError: There is none after `START_TIMEOUT`, with the reason.
        """
        deadline = asyncio.get_running_loop().time() + START_TIMEOUT
        wait = Backoff(1, 8)
        while self._context is None:
            try:
                await self.check()
            except (ApiError, CertificateError) as error:
                if asyncio.get_running_loop().time() + wait.delay >= deadline:
                    self._serve_untrusted(error)
                    continue
                self._log.warning("there is no certificate yet, trying again", error=str(error), seconds=wait.delay)
                await self._sleep(wait.delay)
                wait.grow()
        return self._context

    async def run(self) -> None:
        """Renew and publish for ever. What fails is logged, and tried again."""
        wait = Backoff(2, INTERVAL)
        delay = INTERVAL
        while True:
            await self._sleep(delay * random.uniform(0.8, 1.0))  # noqa: S311 - spreads replicas
            try:
                await self.check()
            except (ApiError, CertificateError) as error:
                if self._told.is_new(self._where, str(error)):
                    self._log.error(
                        "certificate can't be kept; trying again", error=str(error), expires_at=str(self.expires_at)
                    )
                delay = wait.delay
                wait.grow()
            else:
                wait.reset()
                delay = INTERVAL
                self._told.ended(self._where)

    async def check(self, *, renew: bool = False) -> None:
        """Look once, and do all that can be done now.

        Args:
            renew: Make a next pair even if none is due. One that waits already counts.

        Raises:
            ApiError: As it comes. What was done until then stays, and the next check goes on from there.
            CertificateError: Somebody else keeps changing it, or the Secret is not there and can't be created.
        """
        for _ in range(_MAX_STEPS):
            secret, view = await self._look()
            self._stored = view.content
            renew = renew and view.content.next is None
            step = rotation_step.next_step(view, self._hosts, serves=self._serves, renew=renew)
            if step is None:
                return
            try:
                await self._take(step, secret)
            except (ApiConflict, ApiNotFound):
                self._log.debug("somebody else was faster, looking again", step=type(step).__name__)
        raise CertificateError(
            f"Secret {self._where}: somebody else keeps changing it or the caBundle of the configurations "
            f"{self._settings.configuration}; look for another program that manages them, such as cert-manager"
        )

    async def _look(self) -> tuple[Object | None, View]:
        found = [await self._configuration(resource) for resource in CONFIGURATIONS]
        secret: Object | None
        try:
            secret = await self._api.get_secret(self._settings.namespace, self._settings.tls_secret)
        except ApiNotFound:
            secret = None
        content = api_objects.read_secret(secret)
        return secret, View(tuple(c for c in found if c is not None), content, self._serving, self._now())

    async def _configuration(self, resource: str) -> Configuration | None:
        try:
            obj = await self._api.get_configuration(resource, self._settings.configuration)
        except ApiNotFound:
            obj = {}
        if api_objects.our_webhooks(obj):
            self._told.ended(resource)
            return api_objects.read_configuration(resource, obj)
        if self._told.is_new(resource):
            what = "configuration has no webhook of ours" if obj else "configuration is missing"
            self._log.warning(
                f"{what}, so nobody calls this webhook by it; apply webhook.yaml",
                resource=resource,
                name=self._settings.configuration,
            )
        return None

    async def _take(self, step: rotation_step.Step, secret: Object | None) -> None:
        match step:
            case Serve(pair):
                self._serve(pair)
            case Publish(configurations, text):
                await self._publish(configurations, text)
            case Store(content, why):
                await self._store(api_objects.write_secret(secret, content, *self._name), exists=secret is not None)
                self._log.info("Secret of the certificate was written", secret=self._where, why=why)

    async def _store(self, obj: Object, *, exists: bool) -> None:
        if exists:
            await self._api.update_secret(obj)
            return
        try:
            await self._api.create_secret(obj)
        except (ApiForbidden, ApiNotFound) as error:  # ApiNotFound: of the namespace
            raise CertificateError(
                f"Secret {self._where} is missing, and can't be created: apply webhook.yaml, which has it, empty ({error})"
            ) from error

    async def _publish(self, configurations: tuple[Configuration, ...], text: bytes) -> None:
        errors: list[ApiError] = []
        for configuration in configurations:
            bundles = {name: rotation_step.encoded(text) for name, old in configuration.bundles.items() if old != text}
            try:
                await self._api.set_ca_bundles(
                    configuration.resource, self._settings.configuration, configuration.version, bundles
                )
            except ApiError as error:  # the other one is no worse for it
                errors.append(error)
            else:
                self._log.info("caBundle was written", resource=configuration.resource, webhooks=sorted(bundles))
        if errors:
            raise errors[0]

    def _serve(self, pair: KeyPair) -> None:
        if self._context is None:
            self._context = server_context(pair)
        else:
            install(pair, self._context)
        self._serving = pair
        certificate = pair.certificate
        self._log.info(
            "certificate is served",
            sha256=certificate.fingerprint,
            hosts=sorted(certificate.hosts),
            expires_at=certificate.not_after.isoformat(),
        )

    def _serve_untrusted(self, error: HamiError) -> None:
        # It has most probably been trusted for long, and then this is no reason to stay away.
        current = self._stored.current
        if current is None or not rotation_step.usable(current, self._now()):
            raise CertificateError(f"no certificate after {START_TIMEOUT:g} s: {error}") from error
        self._log.error("certificate is served, but perhaps not trusted", error=str(error))
        self._serve(current)

    @property
    def _name(self) -> tuple[str, str]:
        return self._settings.namespace, self._settings.tls_secret

    @property
    def _where(self) -> str:
        return "/".join(self._name)


def _host(text: str) -> str:
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        if re.match(DNS_SUBDOMAIN, text) and len(text) <= 253:
            return text
        raise SettingsError(
            f"--tls-hosts: {text!r} is no DNS name and no IP address; give names as in the host of clientConfig.url"
        ) from None
