"""An API server's side of the webhook: reviews, and HTTPS to a server in this process or another one."""

import asyncio
import io
import ipaddress
import json
import ssl
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple, Self

import aiohttp
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from hami_kubeletplugin.api.errors import HamiError
from hami_kubeletplugin.webhook.conversion.fleet import Kind, Node
from hami_kubeletplugin.webhook.conversion.template import GpuSize, Template

PODS = {"group": "", "version": "v1", "resource": "pods"}
CLAIMS = {"group": "resource.k8s.io", "version": "v1", "resource": "resourceclaims"}


class CertificateFiles(NamedTuple):
    """A certificate for 127.0.0.1 and its key, as PEM files."""

    cert: Path
    key: Path


def certificate(folder: Path) -> CertificateFiles:
    """Make one."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = _common_name("test")
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    return _written(CertificateFiles(folder / "tls.crt", folder / "tls.key"), made, key)


class Authority:
    """A CA that signs certificates of clients.

    Args:
        name: Its common name.
    """

    def __init__(self, name: str) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _common_name(name)
        self._made = 0
        usage = x509.BasicConstraints(ca=True, path_length=None)
        self.pem = self._signed(self._name, self._key, usage).public_bytes(serialization.Encoding.PEM).decode()

    def client(self, folder: Path, name: str, *, server: bool = False) -> CertificateFiles:
        """A certificate with this common name; `server`: that is for servers only."""
        self._made += 1
        key = ec.generate_private_key(ec.SECP256R1())
        purpose = ExtendedKeyUsageOID.SERVER_AUTH if server else ExtendedKeyUsageOID.CLIENT_AUTH
        made = self._signed(_common_name(name), key, x509.ExtendedKeyUsage([purpose]))
        stem = f"client-{id(self)}-{self._made}"
        return _written(CertificateFiles(folder / f"{stem}.crt", folder / f"{stem}.key"), made, key)

    def _signed(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, extension: x509.ExtensionType
    ) -> x509.Certificate:
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + timedelta(days=1))
            .add_extension(extension, critical=True)
            .sign(self._key, hashes.SHA256())
        )


def _common_name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _written(files: CertificateFiles, made: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> CertificateFiles:
    files.cert.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    files.key.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return files


def serve_with(files: CertificateFiles) -> Callable[[], ssl.SSLContext]:
    """A server's context with that certificate, the same for all connections."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(files.cert, files.key)
    return lambda: context


def pod(**limits: object) -> dict[str, Any]:
    """A pod whose container has these limits."""
    container = {"name": "main", "image": "cuda", "resources": {"limits": limits}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "train"}, "spec": {"containers": [container]}}


def gpu_pod(**limits: object) -> dict[str, Any]:
    """A pod with a GPU; limits are without `nvidia.com/`, and have `_` for `-`."""
    return pod(**{f"nvidia.com/{name.replace('_', '-')}": value for name, value in ({"gpu": "1"} | limits).items()})


def review(obj: Mapping[str, Any] | None, **changes: Any) -> dict[str, Any]:
    """An AdmissionReview for a pod that is created in the namespace `team`; `changes` are fields of its request."""
    request = {
        "uid": "705ab4f5",
        "kind": {"group": "", "version": "v1", "kind": (obj or {}).get("kind", "Pod")},
        "resource": PODS,
        "namespace": "team",
        "operation": "CREATE",
        "userInfo": {"username": "alice", "groups": ["system:authenticated"]},
        "object": obj,
        "oldObject": None,
        "dryRun": False,
        "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"},
    }
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request | changes}


MALFORMED = {
    "nothing": b"",
    "no JSON": b"{",
    "not UTF-8": b'{"kind": "\xff"}',
    "UTF-16": json.dumps(review(pod())).encode("utf-16"),
    "NaN": json.dumps(review(pod(cpu=float("nan")))).encode(),
    "Infinity": json.dumps(review(pod(cpu=float("inf")))).encode(),
    "a number beyond floats": json.dumps(review(pod())).replace('"cuda"', "1e999").encode(),
    "a number of 5000 digits": json.dumps(review(pod())).replace('"cuda"', "1" * 5000).encode(),
    "deep arrays": b"[" * 100_000,
    "deep objects": b'{"request":' * 100_000,
    "half a surrogate pair": json.dumps(review(pod(cpu="\ud800"))).encode(),
    "an array": b"[]",
    "null": b"null",
    "a string": b'"AdmissionReview"',
    "another kind": json.dumps(pod()).encode(),
    "another version": json.dumps(review(pod()) | {"apiVersion": "admission.k8s.io/v1beta1"}).encode(),
    "version of a wrong type": json.dumps(review(pod()) | {"apiVersion": ["admission.k8s.io/v1"]}).encode(),
    "no request": json.dumps(review(pod()) | {"request": None}).encode(),
    "request is a list": json.dumps(review(pod()) | {"request": []}).encode(),
    "no uid": json.dumps(review(pod(), uid=None)).encode(),
    "empty uid": json.dumps(review(pod(), uid="")).encode(),
    "uid is a number": json.dumps(review(pod(), uid=7)).encode(),
    "object is a string": json.dumps(review(pod(), object="pod")).encode(),
    "dryRun is a string": json.dumps(review(pod(), dryRun="false")).encode(),
    "namespace with a slash": json.dumps(review(pod(), namespace="a/../b")).encode(),
    "namespace of 64 letters": json.dumps(review(pod(), namespace="a" * 64)).encode(),
    "resource is a string": json.dumps(review(pod(), resource="pods")).encode(),
}
"""What is no AdmissionReview v1, by what is wrong with it."""


class Reply(NamedTuple):
    """What came back."""

    status: int
    headers: Mapping[str, str]
    text: str

    @property
    def response(self) -> dict[str, Any]:
        """The response of an AdmissionReview."""
        answer = json.loads(self.text)
        assert self.status == 200
        assert (answer["apiVersion"], answer["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
        response: dict[str, Any] = answer["response"]
        return response


class ApiServerSide:
    """A client like the API server's: HTTP/1.1 over TLS that trusts one certificate.

    Args:
        port: Of 127.0.0.1.
        files: The server's certificate.
        own: The client's.
    """

    def __init__(self, port: int, files: CertificateFiles, own: CertificateFiles | None = None) -> None:
        self.port, self.tls = port, ssl.create_default_context(cafile=str(files.cert))
        if own is not None:
            self.tls.load_cert_chain(own.cert, own.key)
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=self.tls, limit=0))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def ask(
        self, path: str, body: Any = None, method: str = "POST", content_type: str = "application/json", **headers: str
    ) -> Reply:
        """Send a request: bytes as they are, all else as JSON."""
        written = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        async with self._session.request(
            method,
            f"https://127.0.0.1:{self.port}{path}",
            data=None if written is None else io.BytesIO(written),
            headers={"Content-Type": content_type, **headers},
            timeout=aiohttp.ClientTimeout(total=20),
        ) as response:
            return Reply(response.status, response.headers, await response.text())

    async def raw(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection without HTTP."""
        return await asyncio.open_connection("127.0.0.1", self.port, ssl=self.tls)


class FakeTemplates:
    """Templates that are remembered, or go wrong, or wait."""

    def __init__(self) -> None:
        self.made: list[tuple[str, str]] = []
        self.asked = 0
        self.error: HamiError | Exception | None = None
        self.hold: asyncio.Event | None = None

    async def ensure(self, namespace: str, templates: Sequence[Template], *, dry_run: bool) -> None:
        """See `admission.Ensures`."""
        self.asked += 1
        if self.hold is not None:
            await self.hold.wait()
        if self.error is not None:
            raise self.error
        if not dry_run:
            self.made += [(namespace, template.name) for template in templates]


class FakeSizes:
    """A cluster of one kind of GPU."""

    synced = True

    def known(self) -> Sequence[GpuSize]:
        """See `admission.KnowsSizes`."""
        return (GpuSize("NVIDIA A100-SXM4-40GB", 40960),)

    @property
    def nodes(self) -> frozenset[Node]:
        """See `fleet.Fleet`: nodes of two."""
        return frozenset({((Kind("NVIDIA A100-SXM4-40GB", 40960), 2),)})

    def has(self, uuid: str) -> bool:
        """See `fleet.Fleet`."""
        return uuid in {"GPU-1", "GPU-2"}

    def slots(self) -> frozenset[int]:
        """See `admission.KnowsSizes`."""
        return frozenset({1000})
