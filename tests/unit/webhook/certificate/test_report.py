"""`hami-webhook certs`: what people see, against an API server."""

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from hami_kubeletplugin.api.names import WEBHOOK_CONFIGURATION as CONFIGURATION
from hami_kubeletplugin.api.names import WEBHOOKS
from hami_kubeletplugin.api.webhook_settings import Certificates
from hami_kubeletplugin.fake.api_server import ApiServer
from hami_kubeletplugin.kube.certificate_api import CONFIGURATIONS, CertificateClient
from hami_kubeletplugin.kube.config import Access
from hami_kubeletplugin.webhook.certificate import api_objects
from hami_kubeletplugin.webhook.certificate.key_pair import make
from hami_kubeletplugin.webhook.certificate.rotation import Rotation
from hami_kubeletplugin.webhook.certificate.rotation_step import encoded
from hami_kubeletplugin.webhook.cli import app
from tests.unit.webhook.certificate.world import SERVICE, THEIRS, configuration


@contextmanager
def serving() -> Iterator[ApiServer]:
    """An API server in a thread, as the command has an event loop of its own."""
    loop, api = asyncio.new_event_loop(), ApiServer()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(api.up(), loop).result(20)
        yield api
        asyncio.run_coroutine_threadsafe(api.down(), loop).result(20)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@pytest.fixture
def server() -> Iterator[ApiServer]:
    """An API server to which webhook.yaml was applied."""
    with serving() as api:
        api.put("secrets", {"metadata": {"namespace": "hami-system", "name": "hami-webhook-tls"}})
        for resource in CONFIGURATIONS:
            api.put(resource, configuration())
        yield api


def keep(server: ApiServer, now: datetime | None = None) -> None:
    """A webhook looks once."""

    async def look() -> None:
        async with CertificateClient(Access(server.url)) as api:
            await Rotation(api=api, settings=Certificates(), now=lambda: now or datetime.now(UTC)).check()

    asyncio.run(look())


def certs(server: ApiServer, directory: Path, *arguments: str) -> Result:
    """Run the command."""
    config = directory / "kubeconfig"
    config.write_text(
        json.dumps(
            {
                "current-context": "c",
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
                "clusters": [{"name": "c", "cluster": {"server": server.url}}],
                "users": [{"name": "u", "user": {}}],
            }
        )
    )
    return CliRunner().invoke(app, ["certs", "--kubeconfig", str(config), *arguments])


def test_all_is_right(server: ApiServer, tmp_path: Path) -> None:
    """What is served, names, expiry and who trusts it; nothing is written, no key is shown, exit 0."""
    keep(server)
    writes = server.writes
    shown = certs(server, tmp_path)
    assert shown.exit_code == 0, shown.output
    for text in ("(89 days)", SERVICE, f"mutatingwebhookconfiguration/{CONFIGURATION}", "pods.hami.io", "current"):
        assert text in shown.output
    found = json.loads(certs(server, tmp_path, "-o", "json").stdout)
    assert [each["trusts"] for each in found["webhooks"]] == [["current"]] * 2 * len(WEBHOOKS)
    assert found["problems"] == []
    assert "PRIVATE" not in str(found)
    assert server.writes == writes


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("empty", "Secret hami-system/hami-webhook-tls has no certificate yet"),
        ("gone", "Secret hami-system/hami-webhook-tls does not exist; apply webhook.yaml"),
        ("noise", "there is no PEM certificate that can be read"),
        (
            "overwritten",
            "webhook pods.hami.io: does not trust the current certificate: it has no caBundle; a running webhook",
        ),
        ("other", "does not trust the current certificate: self-signed certificate"),
        ("garbage", "its caBundle can't be used"),
        ("url", "does not trust the current certificate: Hostname mismatch"),
        ("no configuration", f"validatingwebhookconfiguration/{CONFIGURATION} does not exist; apply webhook.yaml"),
        ("others only", f"mutatingwebhookconfiguration/{CONFIGURATION} has no webhook {' or '.join(WEBHOOKS)}"),
        ("expired", "certificate has expired"),
        ("overdue", "its renewal is overdue"),
        ("names", "the certificate lacks localhost"),
    ],
)
def test_what_is_wrong_is_told(server: ApiServer, tmp_path: Path, what: str, says: str) -> None:
    """Exit 1, and on stderr where, what and what to do."""
    ago = {"expired": timedelta(days=91), "overdue": timedelta(days=62)}.get(what, timedelta())
    secret: dict[str, Any] = {"metadata": {"namespace": "hami-system", "name": "hami-webhook-tls"}}
    if what != "empty":
        keep(server, datetime.now(UTC) - ago)
    changed = configuration()
    bundle = {
        "other": encoded(make({SERVICE}, datetime.now(UTC)).chain.encode()),
        "garbage": encoded(b"garbage"),
        "url": server.all(CONFIGURATIONS[0])[0]["webhooks"][0]["clientConfig"].get("caBundle"),
    }.get(what)
    for webhook in changed["webhooks"]:
        if what == "url":
            webhook["clientConfig"] = {"url": "https://hami.example.com:8443/mutate"}
        if bundle:
            webhook["clientConfig"]["caBundle"] = bundle
    match what:
        case "gone":
            server.remove("secrets", "hami-webhook-tls", "hami-system")
        case "noise":
            server.put("secrets", {**secret, "data": {"tls.crt": "YQ==", "tls.key": "YQ=="}})
        case "overwritten" | "other" | "garbage" | "url":
            server.put(CONFIGURATIONS[0], changed)
        case "no configuration":
            server.remove(CONFIGURATIONS[1], CONFIGURATION)
        case "others only":
            server.put(CONFIGURATIONS[0], {**changed, "webhooks": [THEIRS]})
    shown = certs(server, tmp_path, *(["--tls-hosts", "localhost"] if what == "names" else []))
    assert shown.exit_code == 1
    assert says in shown.stderr


def test_renewal_by_hand(server: ApiServer, tmp_path: Path) -> None:
    """First a trusted next one; asked again at once nothing more; when it is trusted for long enough it becomes current."""
    keep(server)
    first = certs(server, tmp_path, "--renew")
    assert first.exit_code == 0, first.output
    assert "The next one becomes current at" in first.output
    content = api_objects.read_secret(server.all("secrets")[0])
    assert content.next is not None
    found = json.loads(certs(server, tmp_path, "--renew", "-o", "json").stdout)
    assert [each["trusts"] for each in found["webhooks"]] == [["current", "next"]] * 2 * len(WEBHOOKS)
    assert api_objects.read_secret(server.all("secrets")[0]) == content
    keep(server, datetime.now(UTC) + timedelta(minutes=6))
    after = api_objects.read_secret(server.all("secrets")[0])
    assert (after.current, after.next) == (content.next, None)
    assert certs(server, tmp_path).exit_code == 0


def test_certificates_from_files(server: ApiServer, tmp_path: Path) -> None:
    """Those are looked at instead of the Secret; renewing them is others' work."""
    pair = make({SERVICE}, datetime.now(UTC))
    (tmp_path / "tls.crt").write_text(pair.chain)
    (tmp_path / "tls.key").write_text(pair.key)
    options = ["--tls-cert-file", str(tmp_path / "tls.crt"), "--tls-key-file", str(tmp_path / "tls.key")]
    shown = certs(server, tmp_path, *options)
    assert shown.exit_code == 1
    assert "cert-manager.io/inject-ca-from" in shown.stderr
    with_bundle = configuration()
    for webhook in with_bundle["webhooks"]:
        webhook["clientConfig"]["caBundle"] = encoded(pair.chain.encode())
    for resource in CONFIGURATIONS:
        server.put(resource, with_bundle)
    assert certs(server, tmp_path, *options).exit_code == 0
    refused = certs(server, tmp_path, *options, "--renew")
    assert "--renew: the certificate comes from files" in str(refused.exception)
    assert server.requests["get", "secrets"] == 0
