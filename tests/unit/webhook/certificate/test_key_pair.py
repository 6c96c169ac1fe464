"""webhook.pair: certificates as the API server needs them, and keys that nobody sees."""

import ssl
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from hami_kubeletplugin.api.errors import CertificateError
from hami_kubeletplugin.webhook.certificate.key_pair import KeyPair, make, read_certificates, read_files, read_key_pair

HOSTS = {"hami-webhook.hami-system.svc", "10.0.0.1"}
NOW = datetime.now(UTC).replace(microsecond=0)


def files(directory: Path, pair: KeyPair, name: str = "tls") -> tuple[Path, Path]:
    """The pair's files."""
    cert, key = directory / f"{name}.crt", directory / f"{name}.key"
    cert.write_text(pair.chain)
    key.write_text(pair.key)
    return cert, key


def test_a_new_certificate_serves_and_vouches_for_nobody() -> None:
    """ECDSA P-256, for 90 days and all names, for servers only, no CA: trust in it is trust in nothing else."""
    pair = make(HOSTS, NOW)
    found = x509.load_pem_x509_certificate(pair.chain.encode())
    key = found.public_key()
    assert isinstance(key, ec.EllipticCurvePublicKey)
    assert isinstance(key.curve, ec.SECP256R1)
    assert found.extensions.get_extension_for_class(x509.BasicConstraints).value.ca is False
    usage = found.extensions.get_extension_for_class(x509.KeyUsage).value
    assert (usage.digital_signature, usage.key_cert_sign) == (True, False)
    assert list(found.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value) == [
        x509.oid.ExtendedKeyUsageOID.SERVER_AUTH
    ]
    assert pair.certificate.hosts == HOSTS
    assert pair.certificate.not_after == NOW + timedelta(days=90)
    assert pair.certificate.not_before == NOW - timedelta(hours=1)
    assert not pair.certificate.authority
    assert "PRIVATE" not in repr(pair)


@pytest.mark.parametrize(("name", "trusted"), [("own", True), ("both", True), ("other", False)])
def test_openssl_trusts_it_where_it_is_listed(tmp_path: Path, name: str, trusted: bool) -> None:
    """Strictly verified against a bundle that has it, by DNS name; against one that lacks it, it is refused."""
    pair, other = make(HOSTS, NOW), make(HOSTS, NOW)
    bundle = tmp_path / "bundle"
    bundle.write_text({"own": pair.chain, "both": other.chain + pair.chain, "other": other.chain}[name])
    cert, _ = files(tmp_path, pair)
    command = ["openssl", "verify", "-x509_strict", "-purpose", "sslserver", "-verify_hostname"]
    done = subprocess.run(
        [*command, "hami-webhook.hami-system.svc", "-CAfile", bundle, cert],
        capture_output=True,
        timeout=20,
        check=False,
    )
    assert (done.returncode == 0) is trusted, done.stderr


def test_a_pair_reads_back_as_it_was_made(tmp_path: Path) -> None:
    """From PEM texts, and from files."""
    pair = make(HOSTS, NOW)
    assert read_key_pair(pair.chain.encode(), pair.key.encode(), "x") == pair
    assert read_files(*files(tmp_path, pair)) == pair


def test_a_bundle_is_read_as_go_reads_it() -> None:
    """Damaged certificates, and text between them, are passed over."""
    one, two = make(HOSTS, NOW), make(HOSTS, NOW)
    noise = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
    found = read_certificates(f"# a\n{one.chain}{noise}b{two.chain}".encode())
    assert found == (one.certificate, two.certificate)
    assert read_certificates(b"\xff\xfe") == ()


def encrypted(pair: KeyPair) -> str:
    """The pair's key under a password."""
    key = serialization.load_pem_private_key(pair.key.encode(), None)
    form = serialization.BestAvailableEncryption(b"x")
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, form).decode()


def odd(what: str) -> bytes:
    """A certificate that cryptography refuses to look into, each in a way of its own."""
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([])
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(5).not_valid_before(NOW).not_valid_after(NOW + timedelta(days=1))
    # The first name has no type that anybody knows; the others are two extensions that will have one number.
    extensions = {"2.5.29.17": bytes.fromhex("3002a500")} if what == "names" else {"1.2.3.4": b"a", "1.2.3.5": b"b"}
    for oid, value in extensions.items():
        builder = builder.add_extension(x509.UnrecognizedExtension(x509.ObjectIdentifier(oid), value), critical=False)
    der = builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.DER)
    replaced = {
        "twice": (b"\x2a\x03\x05", b"\x2a\x03\x04"),
        "version": (b"\xa0\x03\x02\x01\x02", b"\xa0\x03\x02\x01\x07"),
    }
    return ssl.DER_cert_to_PEM_cert(der.replace(*replaced.get(what, (b"", b"")), 1)).encode()


@pytest.mark.parametrize("what", ["names", "twice", "version"])
def test_a_certificate_that_nobody_can_read(what: str) -> None:
    """Is passed over in a bundle, and refused as one's own; it is never a crash."""
    good = make(HOSTS, NOW)
    assert read_certificates(odd(what) + good.chain.encode()) == (good.certificate,)
    with pytest.raises(CertificateError, match="there is no PEM certificate that can be read"):
        read_key_pair(odd(what), good.key.encode(), "here")


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("no cert", "no PEM certificate that can be read"),
        ("no key", "can't be used together"),
        ("other key", "key values mismatch"),
        ("cut key", "can't be used together"),
        ("encrypted", "the key is encrypted"),
        ("binary", "no PEM certificate|is not PEM text"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path: Path, what: str, says: str) -> None:
    """The message names the files and the reason, and never has the key in it."""
    pair, other = make(HOSTS, NOW), make(HOSTS, NOW)
    cert, key = files(tmp_path, pair)
    match what:
        case "no cert":
            cert.write_text("")
        case "no key":
            key.write_text("")
        case "other key":
            key.write_text(other.key)
        case "cut key":
            key.write_text(pair.key[:120])
        case "encrypted":
            key.write_text(encrypted(pair))
        case _:
            key.write_bytes(b"\xff\x00\x80")
    with pytest.raises(CertificateError, match=says) as raised:
        read_files(cert, key)
    assert str(cert) in str(raised.value)
    assert pair.key.splitlines()[1] not in str(raised.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """And so are the options to look at."""
    cert, key = files(tmp_path, make(HOSTS, NOW))
    key.unlink()
    with pytest.raises(CertificateError, match=rf"{key}: can't be read: No such file.*--tls-key-file"):
        read_files(cert, key)


def test_no_key_stays_on_a_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pair from the Secret gets into TLS without a file that has a name."""
    opened: list[str] = []
    load = ssl.SSLContext.load_cert_chain

    def spy(self: ssl.SSLContext, certfile: str, *args: object, **kwargs: object) -> None:
        opened.append(certfile)
        load(self, certfile, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", spy)
    monkeypatch.chdir(tmp_path)
    pair = make(HOSTS, NOW)
    read_key_pair(pair.chain.encode(), pair.key.encode(), "x")
    assert opened
    assert all(path.startswith("/proc/self/fd/") for path in opened)
    assert list(tmp_path.iterdir()) == []
