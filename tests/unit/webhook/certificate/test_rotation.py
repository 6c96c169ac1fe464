"""webhook.rotation over HTTP against an API server, with real TLS on what it serves."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from hami_kubeletplugin.api.errors import ApiConflict, CertificateError, SettingsError
from hami_kubeletplugin.api.names import WEBHOOK_CONFIGURATION
from hami_kubeletplugin.api.webhook_settings import Certificates
from hami_kubeletplugin.fake.api_server import ApiServer
from hami_kubeletplugin.kube.certificate_api import CONFIGURATIONS, CertificateClient
from hami_kubeletplugin.kube.config import Access
from hami_kubeletplugin.webhook.certificate import api_objects, rotation_step
from hami_kubeletplugin.webhook.certificate.files import CertificateFiles
from hami_kubeletplugin.webhook.certificate.rotation import Rotation, hosts
from hami_kubeletplugin.webhook.certificate.rotation_step import Content
from hami_kubeletplugin.webhook.certificate.source import certificates_for
from tests import REPOSITORY
from tests.unit.webhook.certificate.tls import listening, met
from tests.unit.webhook.certificate.world import SERVICE, THEIRS, configuration

EMPTY = {"metadata": {"namespace": "hami-system", "name": "hami-webhook-tls"}, "type": "Opaque"}


class Clock:
    """The time, which the tests move."""

    def __init__(self) -> None:
        self.now = datetime.now(UTC)

    def __call__(self) -> datetime:
        """What it says."""
        return self.now

    def go_on(self, **time: float) -> None:
        """Let time pass."""
        self.now += timedelta(**time)


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    """An API server to which webhook.yaml was applied."""
    async with ApiServer() as api:
        api.put("secrets", EMPTY)
        for resource in CONFIGURATIONS:
            api.put(resource, configuration())
        yield api


@pytest.fixture
async def client(server: ApiServer) -> AsyncIterator[CertificateClient]:
    """A client of it."""
    async with CertificateClient(Access(server.url)) as api:
        yield api


@pytest.fixture
def clock() -> Clock:
    """The time."""
    return Clock()


async def no_wait(_: float) -> None:
    """Waiting takes no time."""


def bundles(server: ApiServer) -> set[str]:
    """All different caBundles, PEM."""
    return {
        text.decode()
        for resource in CONFIGURATIONS
        for obj in server.all(resource)
        for text in api_objects.read_configuration(resource, obj).bundles.values()
    }


def content(server: ApiServer) -> Content:
    """What is in the Secret."""
    return api_objects.read_secret(server.all("secrets")[0])


async def test_first_start(server: ApiServer, client: CertificateClient, clock: Clock) -> None:
    """A certificate is made, trusted by our webhooks, and served under the Service's name; then nothing more is written."""
    rotation = Rotation(Certificates(), client, now=clock)
    context = await rotation.start()
    (bundle,) = bundles(server)
    async with listening(context) as port:
        current = content(server).current
        assert current is not None
        assert await met(port, bundle, SERVICE) == current.certificate.fingerprint
    assert rotation.expires_at == current.certificate.not_after
    writes = server.writes
    await rotation.check()
    await Rotation(Certificates(), client, now=clock).start()
    assert server.writes == writes
    assert server.all("secrets")[0]["type"] == "Opaque"
    for resource in CONFIGURATIONS:
        *ours, others = server.all(resource)[0]["webhooks"]
        assert all(webhook["clientConfig"]["caBundle"] for webhook in ours)
        assert others == THEIRS
        assert server.all(resource)[0]["webhooks"][0]["clientConfig"]["service"]


async def test_renewal_without_a_moment_of_distrust(server: ApiServer, client: CertificateClient, clock: Clock) -> None:
    """30 days before its end a certificate gets a follower; at each step all bundles trust what both replicas serve."""
    clock.go_on(days=-61)  # so that what is made then, and what follows it, are valid for real clients now
    one, two = (Rotation(Certificates(), client, now=clock) for _ in range(2))
    async with listening(await one.start()) as port, listening(await two.start()) as other_port:
        first = one.serving
        assert first is not None

        async def everybody_is_trusted() -> None:
            (bundle,) = bundles(server)
            for each in (port, other_port):
                await met(each, bundle, SERVICE)

        clock.go_on(days=60, hours=1)
        for _ in range(3):
            await one.check()
            await everybody_is_trusted()
            assert one.serving == two.serving == first
            clock.go_on(minutes=1)
        clock.go_on(minutes=5)
        await two.check()
        assert two.serving != first
        await everybody_is_trusted()
        await one.check()
        assert one.serving == two.serving == content(server).current
        await everybody_is_trusted()
        (bundle,) = bundles(server)
        assert first.chain in bundle
        clock.go_on(days=30)
        await one.check()
        (bundle,) = bundles(server)
        assert first.chain not in bundle


async def test_an_overwritten_bundle_is_repaired(server: ApiServer, client: CertificateClient, clock: Clock) -> None:
    """With one patch of the configuration that is wrong; other fields that people changed stay."""
    rotation = Rotation(Certificates(), client, now=clock)
    await rotation.start()
    (before,) = bundles(server)
    changed = configuration()
    changed["webhooks"].reverse()
    changed["webhooks"][0]["timeoutSeconds"] = 3
    server.put(CONFIGURATIONS[0], changed)
    server.requests.clear()
    await rotation.check()
    assert bundles(server) == {before}
    assert server.all(CONFIGURATIONS[0])[0]["webhooks"][0]["timeoutSeconds"] == 3
    assert sum(server.requests["patch", resource] for resource in CONFIGURATIONS) == 1


async def test_a_webhook_that_was_removed_does_not_come_back(server: ApiServer, client: CertificateClient) -> None:
    """A patch made from an older configuration is a conflict."""
    seen = await client.get_configuration(CONFIGURATIONS[0], WEBHOOK_CONFIGURATION)
    server.put(CONFIGURATIONS[0], {**configuration(), "webhooks": configuration()["webhooks"][:1]})
    with pytest.raises(ApiConflict):
        await client.set_ca_bundles(
            CONFIGURATIONS[0], WEBHOOK_CONFIGURATION, seen["metadata"]["resourceVersion"], {"claims.hami.io": "YQ=="}
        )
    assert len(server.all(CONFIGURATIONS[0])[0]["webhooks"]) == 1


async def test_after_a_long_sleep_a_new_one_is_made_at_once(
    server: ApiServer, client: CertificateClient, clock: Clock
) -> None:
    """Nobody ran for 100 days: the expired certificate goes, and the start serves a new one."""
    await Rotation(Certificates(), client, now=clock).start()
    (old,) = bundles(server)
    clock.go_on(days=100)
    rotation = Rotation(Certificates(), client, now=clock)
    await rotation.start()
    assert rotation.expires_at == clock.now.replace(microsecond=0) + timedelta(days=90)
    (new,) = bundles(server)
    assert old not in new


async def test_a_missing_secret_is_created_or_asked_for(
    server: ApiServer, client: CertificateClient, clock: Clock
) -> None:
    """Where RBAC allows it; else the error says what to apply."""
    server.remove("secrets", "hami-webhook-tls", "hami-system")
    server.fail(403, verb="create", resource="secrets")
    rotation = Rotation(Certificates(), client, now=clock)
    with pytest.raises(CertificateError, match=r"Secret hami-system/hami-webhook-tls is missing.* apply webhook\.yaml"):
        await rotation.check()
    server.mend()
    await rotation.check()
    assert content(server).current == rotation.serving


async def test_a_lost_secret_gets_the_served_pair_back(
    server: ApiServer, client: CertificateClient, clock: Clock
) -> None:
    """Whatever happens to it, running webhooks go on with the pair that is trusted."""
    rotation = Rotation(Certificates(), client, now=clock)
    await rotation.start()
    served, trusted = rotation.serving, bundles(server)
    server.put("secrets", {**EMPTY, "data": {"tls.crt": "bm9pc2U=", "other": "YQ=="}})
    await rotation.check()
    assert content(server).current == rotation.serving == served
    assert server.all("secrets")[0]["data"]["other"] == "YQ=="
    assert bundles(server) == trusted


async def test_configurations_that_come_later(server: ApiServer, client: CertificateClient, clock: Clock) -> None:
    """Without them the start serves all the same, says so once, and they get their caBundle at the next look."""
    for resource in CONFIGURATIONS:
        server.remove(resource, WEBHOOK_CONFIGURATION)
    rotation = Rotation(Certificates(), client, now=clock)
    with capture_logs() as logs:
        await rotation.start()
        await rotation.check()
    assert sum(line["event"].startswith("configuration is missing") for line in logs) == 2
    server.put(CONFIGURATIONS[0], configuration())
    await rotation.check()
    assert rotation.serving is not None
    assert bundles(server) == {rotation.serving.chain}


async def test_an_object_of_somebody_else(server: ApiServer, client: CertificateClient, clock: Clock) -> None:
    """`--configuration` names an object in which nothing is ours: it is not written, and that is said once."""
    theirs = {"metadata": {"name": "hami-webhook"}, "webhooks": [THEIRS]}
    server.put(CONFIGURATIONS[0], theirs)
    rotation = Rotation(Certificates(configuration="hami-webhook"), client, now=clock)
    with capture_logs() as logs:
        await rotation.start()
        await rotation.check()
    said = [line["event"] for line in logs if line.get("name") == "hami-webhook"]
    assert [event.partition(",")[0] for event in said] == [
        "configuration has no webhook of ours",
        "configuration is missing",
    ]
    assert server.requests["patch", CONFIGURATIONS[0]] == 0
    (kept,) = (found for found in server.all(CONFIGURATIONS[0]) if found["metadata"]["name"] == "hami-webhook")
    assert kept["webhooks"] == [THEIRS]


async def test_one_configuration_that_cannot_be_written_does_not_stop_the_other(
    server: ApiServer, client: CertificateClient, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error is told; a start with a pair that was stored goes on with it in the end, for it is trusted by one."""
    server.fail(403, verb="patch", resource=CONFIGURATIONS[0])
    monkeypatch.setattr("hami_kubeletplugin.webhook.certificate.rotation.START_TIMEOUT", 0.0)
    rotation = Rotation(Certificates(), client, now=clock, sleep=no_wait)
    with capture_logs() as logs:
        await rotation.start()
    assert rotation.serving is not None
    assert rotation.serving.chain in bundles(server)
    assert any("perhaps not trusted" in line["event"] and "allow verb patch" in line["error"] for line in logs)


async def test_a_start_without_api_server_ends(
    server: ApiServer, client: CertificateClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a while, with the reason."""
    await server.down()
    monkeypatch.setattr("hami_kubeletplugin.webhook.certificate.rotation.START_TIMEOUT", 0.5)
    with pytest.raises(CertificateError, match=r"no certificate after 0\.5 s: .*can't be reached"):
        await Rotation(Certificates(), client, sleep=no_wait).start()


async def test_it_outlives_a_bad_api_server(server: ApiServer, client: CertificateClient, clock: Clock) -> None:
    """Errors of every kind are logged, each once while it lasts, tried again soon, and no key is in the log."""
    statuses = [500, 500, 403, 422, 429, 429, 409]
    delays: list[float] = []

    async def sleep(seconds: float) -> None:
        delays.append(seconds)
        server.mend()
        if not statuses:
            raise asyncio.CancelledError
        server.fail(statuses.pop(0), resource="secrets")

    rotation = Rotation(Certificates(), client, now=clock, sleep=sleep)
    with capture_logs() as logs:
        await rotation.start()
        with pytest.raises(asyncio.CancelledError):
            await rotation.run()
    assert sum(line["log_level"] == "error" for line in logs) == 5
    assert 48 <= delays[0] <= 60
    assert delays[1] <= 2
    current = content(server).current
    assert current is not None
    assert "PRIVATE" not in str(logs)
    assert current.key.splitlines()[1] not in str(logs)


async def test_a_ca_that_was_there_before_is_not_kept(
    server: ApiServer, client: CertificateClient, clock: Clock
) -> None:
    """The bundle becomes ours: what an old CA signs is no longer trusted."""
    ca = (REPOSITORY / "tests/unit/kube/pki/ca.crt").read_bytes()
    with_ca = configuration()
    for webhook in with_ca["webhooks"]:
        webhook["clientConfig"]["caBundle"] = rotation_step.encoded(ca)
    server.put(CONFIGURATIONS[1], with_ca)
    rotation = Rotation(Certificates(), client, now=clock)
    await rotation.start()
    assert rotation.serving is not None
    assert bundles(server) == {rotation.serving.chain}


async def test_names_and_addresses_that_the_settings_add(
    server: ApiServer, client: CertificateClient, clock: Clock
) -> None:
    """A client that calls us by clientConfig.url meets its name; wrong ones are refused with the option's name."""
    rotation = Rotation(Certificates(tls_hosts="localhost, 127.0.0.1,::1"), client, now=clock)
    async with listening(await rotation.start()) as port:
        (bundle,) = bundles(server)
        for host in (SERVICE, f"{SERVICE}.cluster.local", "localhost", "127.0.0.1"):
            await met(port, bundle, host)
        with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
            await met(port, bundle, "example.com")
    with pytest.raises(SettingsError, match=r"--tls-hosts: 'https://x' is no DNS name"):
        hosts(Certificates(tls_hosts="https://x"))


async def test_the_settings_choose_the_source(client: CertificateClient, tmp_path: Path) -> None:
    """Two files, or the Secret."""
    files: Any = {"tls_cert_file": tmp_path / "a", "tls_key_file": tmp_path / "b"}
    assert isinstance(certificates_for(Certificates(**files), client), CertificateFiles)
    assert isinstance(certificates_for(Certificates(), client), Rotation)
