"""daemon.door over real TLS: certificate and token of the port for metrics, and what is wrong with them."""

import asyncio
import ssl
from pathlib import Path

import aiohttp
import pytest
from structlog.testing import capture_logs

from hami_kubeletplugin.api.errors import CertificateError, SettingsError
from hami_kubeletplugin.api.metrics_settings import MetricsSettings
from hami_kubeletplugin.daemon.door import door
from hami_kubeletplugin.observe import bearer
from hami_kubeletplugin.observe.bearer import TokenFile
from hami_kubeletplugin.observe.endpoint import served
from hami_kubeletplugin.webhook.certificate import files
from tests.unit.webhook.admission.https import CertificateFiles, certificate

TOKEN = "0123456789abcdef"


@pytest.fixture
def given(tmp_path: Path) -> MetricsSettings:
    """Certificate, key and token in files."""
    pair = certificate(tmp_path)
    token = tmp_path / "token"
    token.write_text(TOKEN)
    return MetricsSettings(
        metrics_address="127.0.0.1:0", tls_cert_file=pair.cert, tls_key_file=pair.key, metrics_token_file=token
    )


async def asked(port: int, path: str, trusted: Path | None, token: str = "") -> int:
    """The status that somebody gets who trusts that certificate alone; None: who trusts any, as the kubelet's probes do."""
    context = ssl.create_default_context(cafile=trusted)
    if trusted is None:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context)) as session,
        session.get(f"https://127.0.0.1:{port}{path}", headers=headers) as response,
    ):
        return response.status


async def test_prometheus_gets_in_with_the_token_and_the_kubelet_without(given: MetricsSettings) -> None:
    """Over TLS; in plain HTTP nobody does."""

    async def well() -> tuple[bool, str]:
        return True, ""

    async with door(given) as way, served(given.metrics_address, [], {"/healthz": well}, door=way) as port:
        assert await asked(port, "/metrics", given.tls_cert_file, TOKEN) == 200
        assert await asked(port, "/metrics", given.tls_cert_file) == 401
        assert await asked(port, "/healthz", None) == 200
        async with aiohttp.ClientSession() as session:
            with pytest.raises(aiohttp.ClientError):
                await session.get(f"http://127.0.0.1:{port}/healthz")


async def test_renewed_files_are_used_without_a_restart(
    given: MetricsSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another certificate and another token, for the next connection."""
    assert given.tls_cert_file is not None
    assert given.tls_key_file is not None
    assert given.metrics_token_file is not None
    monkeypatch.setattr(files, "INTERVAL", 0.01)
    monkeypatch.setattr(bearer, "INTERVAL", 0.01)
    (tmp_path / "new").mkdir()
    renewed: CertificateFiles = certificate(tmp_path / "new")
    async with door(given) as way, served(given.metrics_address, [], door=way) as port:
        assert await asked(port, "/metrics", given.tls_cert_file, TOKEN) == 200
        renewed.key.rename(given.tls_key_file)
        given.tls_cert_file.write_bytes(renewed.cert.read_bytes())
        given.metrics_token_file.write_text(TOKEN[::-1])
        async with asyncio.timeout(20):
            while True:
                try:
                    if await asked(port, "/metrics", renewed.cert, TOKEN[::-1]) == 200:
                        break
                except aiohttp.ClientError:
                    await asyncio.sleep(0.02)
        assert await asked(port, "/metrics", renewed.cert, TOKEN) == 401


async def test_a_look_that_fails_is_not_the_last_one(given: MetricsSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it fails at, as where the process may have no more threads: a token that is changed later is used."""
    assert given.metrics_token_file is not None
    monkeypatch.setattr(bearer, "INTERVAL", 0.01)
    failed = asyncio.Event()
    check = TokenFile.check

    async def fails_once(token: TokenFile) -> None:
        if not failed.is_set():
            failed.set()
            raise RuntimeError("can't start new thread")
        await check(token)

    monkeypatch.setattr(TokenFile, "check", fails_once)
    with capture_logs() as logs:
        async with door(given) as way, asyncio.timeout(20):
            assert way.allows is not None
            await failed.wait()
            given.metrics_token_file.write_text(TOKEN[::-1])
            while not way.allows(f"Bearer {TOKEN[::-1]}"):  # noqa: ASYNC110 - nobody tells of it
                await asyncio.sleep(0.01)
    assert "can't start new thread" in str(logs)


@pytest.mark.parametrize(
    ("field", "error", "words"),
    [
        ("tls_cert_file", CertificateError, "can't be read: No such file or directory; look at --tls-cert-file"),
        (
            "tls_key_file",
            CertificateError,
            "can't be read: No such file or directory; look at --tls-cert-file, --tls-key",
        ),
        ("metrics_token_file", SettingsError, "--metrics-token-file .*/none: can't be read: No such file"),
    ],
)
async def test_a_missing_file(
    given: MetricsSettings, tmp_path: Path, field: str, error: type[Exception], words: str
) -> None:
    """Names it; nothing is served then."""
    with pytest.raises(error, match=words):
        async with door(given.model_copy(update={field: tmp_path / "none"})):
            raise AssertionError("the door is open")


async def test_a_door_for_everybody() -> None:
    """Nothing is asked for: plain HTTP, without a token."""
    async with door(MetricsSettings(metrics_address=":0")) as way:
        assert (way.tls, way.allows) == (None, None)
