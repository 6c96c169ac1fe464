"""A certificate and its key: made, read from PEM, and put into a TLS context.

Ours are self-signed and no CA: there is no CA key to keep, and what such a certificate signs nobody trusts. The API server
takes them because each is itself among the roots of `caBundle`: Go's crypto/x509 verify.go, "if opts.Roots.contains(c)".
`cryptography` costs 12 MB, so it is loaded when the first certificate is read.
"""

import functools
import ipaddress
import os
import re
import ssl
from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hami_kubeletplugin.api import names
from hami_kubeletplugin.api.errors import CertificateError

if TYPE_CHECKING:
    from cryptography import x509

LIFETIME: Final = timedelta(days=90)
BACKDATED: Final = timedelta(hours=1)
"""A new certificate is valid since then, for API servers whose clock is behind."""
"""Subject of ours; who is meant is in the subjectAltName, as this has at most 64 letters."""
_BLOCK: Final = re.compile(rb"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Certificate:
    """What is in a certificate.

    Attributes:
        pem: Itself, always in the same form.
        fingerprint: SHA-256 of its DER form, hex.
        not_before: Valid from, UTC.
        not_after: Valid until, UTC.
        hosts: Its DNS names and IP addresses.
        authority: It can vouch for others. Ours never can; one that doesn't say counts as one, as for old clients.
    """

    pem: str
    fingerprint: str
    not_before: datetime
    not_after: datetime
    hosts: frozenset[str]
    authority: bool

    def valid(self, now: datetime) -> bool:
        """Whether a client whose clock says `now` takes it."""
        return self.not_before <= now < self.not_after


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A certificate that fits its key.

    Attributes:
        certificate: The server's own.
        chain: PEM of it and what comes with it, as sent to clients.
        key: PEM. Never logged.
    """

    certificate: Certificate
    chain: str
    key: str = field(repr=False)


def make(hosts: Collection[str], now: datetime) -> KeyPair:
    """A new pair for these DNS names and IP addresses: ECDSA P-256, for 90 days."""
    from cryptography import x509  # noqa: PLC0415
    from cryptography.hazmat.primitives import hashes, serialization  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, names.WEBHOOK)])
    key_id = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(now + LIFETIME)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_only_digital_signature(), critical=True)
        .add_extension(x509.ExtendedKeyUsage([x509.oid.ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([_general_name(host) for host in sorted(hosts)]), critical=False)
        .add_extension(key_id, critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(key_id), critical=False)
        .sign(key, hashes.SHA256())
    )
    read = _read(certificate)
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
    return KeyPair(read, read.pem, pem)


@functools.lru_cache(maxsize=8)  # the same bundles are seen each minute
def read_certificates(text: bytes) -> tuple[Certificate, ...]:
    """The certificates in a text; what is none, or a damaged one, is passed over, as Go does with a `caBundle`."""
    if b"-----BEGIN CERTIFICATE-----" not in text:
        return ()
    from cryptography import x509  # noqa: PLC0415

    unreadable = (ValueError, x509.InvalidVersion, x509.DuplicateExtension, x509.UnsupportedGeneralNameType)
    found = []
    for block in _BLOCK.findall(text):
        try:
            found.append(_read(x509.load_pem_x509_certificate(block)))
        except unreadable:
            continue
    return tuple(found)


def read_key_pair(chain: bytes, key: bytes, where: str) -> KeyPair:
    """The pair in two PEM texts.

    Args:
        chain: The server's certificate first, then others.
        key: Its key.
        where: What the texts come from, for the message.

    Raises:
        CertificateError: They can't be read, or don't fit together.
    """
    found = read_certificates(chain)
    if not found:
        raise CertificateError(f"{where}: there is no PEM certificate that can be read; make the pair anew")
    try:
        pair = KeyPair(found[0], chain.decode("ascii"), key.decode("ascii"))
    except UnicodeDecodeError:
        raise CertificateError(f"{where}: is not PEM text; make the pair anew") from None
    try:
        install(pair, ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
    except ssl.SSLError as error:
        reason = (error.reason or "they are damaged").lower().replace("_", " ")
        raise CertificateError(
            f"{where}: certificate and key can't be used together: {reason}; make the pair anew"
        ) from None
    except _Encrypted:
        raise CertificateError(f"{where}: the key is encrypted; it must not be, as nobody is there to ask") from None
    return pair


def install(pair: KeyPair, context: ssl.SSLContext) -> None:
    """Let a context serve the pair, from the next connection on.

    Raises:
        ssl.SSLError: It can't be used; the context may be unfit then, so try it with another one before.
    """
    # `load_cert_chain` reads files only. This one is in memory: no disk sees the key, and a read-only root is enough.
    with open(os.memfd_create("certificate"), "w", encoding="ascii") as file:
        file.write(f"{pair.chain.rstrip()}\n{pair.key}")
        file.flush()
        context.load_cert_chain(f"/proc/self/fd/{file.fileno()}", password=_no_password)


def server_context(pair: KeyPair) -> ssl.SSLContext:
    """A context for a server: TLS 1.2 or newer, HTTP/1.1."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["http/1.1"])
    install(pair, context)
    return context


def read_files(cert: Path, key: Path) -> KeyPair:
    """The pair in two files.

    Raises:
        CertificateError: Names the file and what is wrong.
    """
    return read_key_pair(_content(cert), _content(key), f"{cert} and {key}")


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise CertificateError(
            f"{path}: can't be read: {error.strerror}; look at --tls-cert-file, --tls-key-file and the volume"
        ) from error


class _Encrypted(Exception):
    """A key asks for a password."""


def _no_password() -> str:
    raise _Encrypted  # without this OpenSSL would ask at the terminal, and wait


def _read(certificate: "x509.Certificate") -> Certificate:
    from cryptography import x509  # noqa: PLC0415
    from cryptography.hazmat.primitives import hashes, serialization  # noqa: PLC0415

    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        hosts = [*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))]
    except x509.ExtensionNotFound:
        hosts = []
    return Certificate(
        pem=certificate.public_bytes(serialization.Encoding.PEM).decode(),
        fingerprint=certificate.fingerprint(hashes.SHA256()).hex(),
        not_before=certificate.not_valid_before_utc,
        not_after=certificate.not_valid_after_utc,
        hosts=frozenset(hosts),
        authority=_is_authority(certificate),
    )


def _is_authority(certificate: "x509.Certificate") -> bool:
    from cryptography import x509  # noqa: PLC0415

    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        return True


def _general_name(host: str) -> "x509.GeneralName":
    from cryptography import x509  # noqa: PLC0415

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _only_digital_signature() -> "x509.KeyUsage":
    from cryptography import x509  # noqa: PLC0415

    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=False,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )
