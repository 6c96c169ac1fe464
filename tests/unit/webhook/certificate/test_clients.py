"""webhook.certificate.clients: whose certificates are taken, met over real TLS."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from hami_kubeletplugin.api.errors import CertificateError
from hami_kubeletplugin.webhook.certificate.clients import Clients
from hami_kubeletplugin.webhook.certificate.key_pair import KeyPair, read_files
from tests.unit.webhook.admission.https import ApiServerSide, Authority, CertificateFiles, pod, review
from tests.unit.webhook.server import Webhook


class World:
    """A webhook that takes clients of the CA in a file."""

    def __init__(self, folder: Path, files: CertificateFiles, name: str = "") -> None:
        self.folder, self.files, self.path = folder, files, folder / "clients.crt"
        self.authority = Authority("ours")
        self.path.write_text(self.authority.pem)
        self.pair: KeyPair = read_files(*files)
        self.clients = Clients(self.path, name, lambda: self.pair)
        self.webhook = Webhook(refusal=self.clients.refusal)

    def client(self, authority: Authority, name: str = "kube-apiserver") -> ApiServerSide:
        """One with a certificate."""
        return ApiServerSide(self.webhook.server.port, self.files, authority.client(self.folder, name))

    def stranger(self) -> ApiServerSide:
        """One without."""
        return ApiServerSide(self.webhook.server.port, self.files)


@contextlib.asynccontextmanager
async def world(folder: Path, files: CertificateFiles, name: str = "") -> AsyncIterator[World]:
    """One that listens."""
    made = World(folder, files, name)
    await made.webhook.server.start("127.0.0.1", 0, made.clients.context)
    try:
        yield made
    finally:
        await made.webhook.server.stop(within=5.0)


async def test_who_may_ask(tmp_path: Path, files: CertificateFiles) -> None:
    """A client of the CA is answered. One without a certificate is told what to do, and gets health, readiness and metrics."""
    async with world(tmp_path, files) as made, made.client(made.authority) as api_server, made.stranger() as stranger:
        for path in ("/mutate", "/validate"):
            assert (await api_server.ask(path, review(pod()))).status == 200
            refused = await stranger.ask(path, review(pod()))
            assert (refused.status, made.webhook.counted("stranger", path)) == (403, 1)
            assert "--client-ca: give the API server one, with the kubeConfigFile" in refused.text
        for path in ("/healthz", "/readyz", "/metrics"):
            assert (await stranger.ask(path, method="GET")).status == 200


async def test_a_body_of_a_stranger_is_not_read(tmp_path: Path, files: CertificateFiles) -> None:
    """He is refused by his header: what he sends costs no room."""
    async with world(tmp_path, files) as made, made.stranger() as stranger:
        reader, writer = await stranger.raw()
        writer.write(b"POST /mutate HTTP/1.1\r\nHost: w\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n")
        assert b" 403 " in await reader.readline()
        writer.close()


async def test_certificates_of_others(tmp_path: Path, files: CertificateFiles) -> None:
    """One of another CA, of the same name too, or for servers, is no certificate: TLS fails, and no review is looked at."""
    async with world(tmp_path, files) as made:
        for certificate in (
            Authority("ours").client(tmp_path, "kube-apiserver"),
            made.authority.client(tmp_path, "kube-apiserver", server=True),
        ):
            async with ApiServerSide(made.webhook.server.port, files, certificate) as other:
                with pytest.raises((OSError, ssl.SSLError)):
                    await other.ask("/mutate", review(pod()))
        assert made.webhook.counted("allowed") == 0


async def test_the_name(tmp_path: Path, files: CertificateFiles) -> None:
    """With --client-name others of the CA, such as its kubelets, are refused, and told whom it takes."""
    async with world(tmp_path, files, "kube-apiserver") as made:
        async with made.client(made.authority) as api_server, made.client(made.authority, "system:node:a") as kubelet:
            assert (await api_server.ask("/mutate", review(pod()))).response["allowed"]
            refused = await kubelet.ask("/mutate", review(pod()))
        assert refused.status == 403
        assert refused.text.startswith(
            "reviews are for the client 'kube-apiserver' (--client-name), not for 'system:node:a'"
        )


async def test_another_ca_in_the_file(tmp_path: Path, files: CertificateFiles) -> None:
    """New connections are taken by it alone, and one from before is closed with its next answer."""
    other = Authority("other")
    async with world(tmp_path, files) as made, made.client(made.authority) as before:
        assert "Connection" not in (await before.ask("/mutate", review(pod()))).headers
        made.path.write_text(other.pem)
        await made.clients.check()
        async with made.client(other) as after:
            assert (await after.ask("/mutate", review(pod()))).response["allowed"]
        assert (await before.ask("/mutate", review(pod()))).headers["Connection"] == "close"
        with pytest.raises((OSError, ssl.SSLError)):
            await before.ask("/mutate", review(pod()))


async def test_another_certificate_of_the_server(tmp_path: Path, files: CertificateFiles) -> None:
    """It is served, and clients are asked for theirs as before."""
    async with world(tmp_path, files) as made, made.client(made.authority) as api_server, made.stranger() as stranger:
        made.pair = read_files(*files)
        assert (await api_server.ask("/mutate", review(pod()))).response["allowed"]
        assert (await stranger.ask("/mutate", review(pod()))).status == 403


BAD = {
    "missing": (None, "can't be read: No such file or directory"),
    "empty": ("", "has no certificate that can be read"),
    "noise": ("-----BEGIN CERTIFICATE-----\n\xff\n-----END CERTIFICATE-----\n", "has no certificate that can be read"),
    "large": ("\n" * (1024 * 1024 + 1), "is larger than 1048576 bytes"),
}


@pytest.mark.parametrize(("text", "what"), BAD.values(), ids=BAD.keys())
async def test_a_file_that_cannot_be_used(tmp_path: Path, files: CertificateFiles, text: str | None, what: str) -> None:
    """It ends the start, with option, path, reason and what to do; later it is logged once, and the CA before stays."""
    path = tmp_path / "clients.crt"
    if text is not None:
        path.write_text(text, encoding="latin-1")
    with pytest.raises(
        CertificateError, match=rf"--client-ca {path}: {what}; name a PEM file with the certificate of the CA"
    ):
        Clients(path, "", lambda: read_files(*files))
    async with world(tmp_path, files) as made:
        if text is None:
            made.path.unlink()
        else:
            made.path.write_text(text, encoding="latin-1")
        with capture_logs() as logs:
            await made.clients.check()
            await made.clients.check()
        assert [(line["event"], what in line["error"]) for line in logs] == [
            ("changed CA of clients is not used", True)
        ]
        async with made.client(made.authority) as api_server:
            assert (await api_server.ask("/mutate", review(pod()))).response["allowed"]


async def test_a_certificate_that_is_no_cas(tmp_path: Path, files: CertificateFiles) -> None:
    """A client's own certificate in the file is a mistake that is named."""
    certificate = Authority("ours").client(tmp_path, "kube-apiserver").cert
    with pytest.raises(CertificateError, match=r"the certificate in it is no CA's; name a PEM file"):
        Clients(certificate, "", lambda: read_files(*files))


async def test_it_looks_for_ever(tmp_path: Path, files: CertificateFiles) -> None:
    """`run` finds a change by itself."""
    path, waited = tmp_path / "clients.crt", list[float]()
    path.write_text(Authority("ours").pem)

    async def sleep(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 2:
            raise asyncio.CancelledError
        path.write_text(Authority("other").pem)

    pair = read_files(*files)
    clients = Clients(path, "", lambda: pair, sleep=sleep)
    before = clients.context()
    assert clients.context() is before
    with pytest.raises(asyncio.CancelledError):
        await clients.run()
    assert waited == [10.0] * 2
    assert clients.context() is not before
