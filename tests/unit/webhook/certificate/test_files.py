"""webhook.certificate_files: a certificate that others renew, met over real TLS."""

import asyncio
import ssl
from datetime import UTC, datetime
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from hami_kubeletplugin.api.errors import CertificateError
from hami_kubeletplugin.webhook.certificate.files import CertificateFiles
from hami_kubeletplugin.webhook.certificate.key_pair import KeyPair, make
from tests.unit.webhook.certificate.tls import listening, met

HOST = "hami-webhook.hami-system.svc"


class Volume:
    """A mounted Secret, as the kubelet writes it: files are links through `..data`, which is swapped as a whole."""

    def __init__(self, path: Path) -> None:
        self.path, self._number = path, 0
        for name in ("tls.crt", "tls.key"):
            (path / name).symlink_to(Path("..data") / name)

    def swap(self, cert: str, key: str) -> None:
        """New content."""
        self._number += 1
        new = self.path / f"..{self._number}"
        new.mkdir()
        (new / "tls.crt").write_text(cert)
        (new / "tls.key").write_text(key)
        (self.path / "..tmp").symlink_to(new.name)
        (self.path / "..tmp").rename(self.path / "..data")

    def source(self) -> CertificateFiles:
        """The certificate in it."""
        return CertificateFiles(self.path / "tls.crt", self.path / "tls.key")


@pytest.fixture
def volume(tmp_path: Path) -> Volume:
    """A volume without content."""
    return Volume(tmp_path)


def new() -> KeyPair:
    """A new pair."""
    return make({HOST}, datetime.now(UTC))


async def test_a_swapped_pair_is_served_to_new_connections(volume: Volume) -> None:
    """The same context serves it, without a restart; until the swap the old one is served."""
    old, pair = new(), new()
    volume.swap(old.chain, old.key)
    source = volume.source()
    assert source.expires_at is None
    async with listening(await source.start()) as port:
        await source.check()
        assert await met(port, old.chain, HOST) == old.certificate.fingerprint
        volume.swap(pair.chain, pair.key)
        await source.check()
        assert await met(port, pair.chain, HOST) == pair.certificate.fingerprint
        assert source.expires_at == pair.certificate.not_after
        with pytest.raises(ssl.SSLCertVerificationError):
            await met(port, old.chain, HOST)


async def test_a_broken_pair_leaves_the_old_one_in_use(volume: Volume) -> None:
    """What doesn't fit, or is gone, is logged once and not used; when it has been mended that is served."""
    old, pair = new(), new()
    volume.swap(old.chain, old.key)
    source = volume.source()
    async with listening(await source.start()) as port:
        for cert, key in ((pair.chain, old.key), ("", ""), (pair.chain, "noise")):
            volume.swap(cert, key)
            with capture_logs() as logs:
                await source.check()
                await source.check()
            assert [(line["event"], line["log_level"]) for line in logs] == [
                ("changed certificate is not used", "error")
            ]
            assert "tls.crt" in logs[0]["error"]
            assert await met(port, old.chain, HOST) == old.certificate.fingerprint
        (volume.path / "..data").unlink()
        await source.check()
        assert source.expires_at == old.certificate.not_after
        volume.swap(pair.chain, pair.key)
        await source.check()
        assert await met(port, pair.chain, HOST) == pair.certificate.fingerprint


async def test_files_that_cannot_be_used_stop_the_start(volume: Volume) -> None:
    """With the file's name, as nobody could call us anyway."""
    with pytest.raises(CertificateError, match=r"tls\.crt: can't be read: No such file"):
        await volume.source().start()
    volume.swap(new().chain, new().key)
    with pytest.raises(CertificateError, match=r"tls\.crt and .*tls\.key: .*mismatch"):
        await volume.source().start()


async def test_a_swap_between_two_readings_is_read_again(volume: Volume, monkeypatch: pytest.MonkeyPatch) -> None:
    """A certificate from before and a key from after it are no broken pair."""
    pair, volume_read = new(), Path.read_bytes
    other = new()
    volume.swap(other.chain, other.key)

    def read(path: Path) -> bytes:
        content = volume_read(path)
        if content == other.chain.encode():
            volume.swap(pair.chain, pair.key)
        return content

    monkeypatch.setattr(Path, "read_bytes", read)
    source = volume.source()
    await source.start()
    assert source.expires_at == pair.certificate.not_after


async def test_it_looks_for_ever(volume: Volume) -> None:
    """`run` finds a change by itself, after one that could not be used too."""
    old, pair = new(), new()
    volume.swap(old.chain, old.key)
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)
        match len(waited):
            case 2:
                volume.swap("", "")
            case 3:
                volume.swap(pair.chain, pair.key)
            case 4:
                raise asyncio.CancelledError

    source = CertificateFiles(volume.path / "tls.crt", volume.path / "tls.key", sleep=sleep)
    context = await source.start()
    with pytest.raises(asyncio.CancelledError):
        await source.run()
    assert waited == [10.0] * 4
    async with listening(context) as port:
        assert await met(port, pair.chain, HOST) == pair.certificate.fingerprint


async def test_old_tls_is_refused(volume: Volume) -> None:
    """TLS 1.2 is the least."""
    pair = new()
    volume.swap(pair.chain, pair.key)
    assert (await volume.source().start()).minimum_version == ssl.TLSVersion.TLSv1_2
