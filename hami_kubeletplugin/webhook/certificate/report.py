"""What `hami-webhook certs` tells: which certificate is served, until when, and whether the API server trusts it."""

import ssl
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.parse import urlsplit

from hami_kubeletplugin.api import names
from hami_kubeletplugin.api.errors import ApiNotFound, CertificateError
from hami_kubeletplugin.api.webhook_settings import Certificates
from hami_kubeletplugin.kube.call import Object
from hami_kubeletplugin.kube.certificate_api import CONFIGURATIONS, CertificateClient
from hami_kubeletplugin.program import table
from hami_kubeletplugin.webhook.certificate import api_objects, rotation, rotation_step
from hami_kubeletplugin.webhook.certificate.key_pair import KeyPair, read_files, server_context

_OVERDUE: Final = timedelta(days=1)
_REPAIR: Final = "a running webhook repairs it within a minute, else run `hami-webhook certs --renew`"


@dataclass(slots=True)
class Report:
    """What was found.

    Attributes:
        pairs: Role (current, next) -> the pair.
        webhooks: Each webhook of the configurations, and whether it trusts the current pair.
        problems: What is wrong, and what to do; empty: nothing.
        notes: What is going on besides.
    """

    pairs: dict[str, KeyPair] = field(default_factory=dict)
    webhooks: list[dict[str, Any]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def as_json(self) -> Object:
        """For programs. No keys."""
        certificates = [
            {
                "role": role,
                "sha256": pair.certificate.fingerprint,
                "hosts": sorted(pair.certificate.hosts),
                "notBefore": pair.certificate.not_before.isoformat(),
                "notAfter": pair.certificate.not_after.isoformat(),
            }
            for role, pair in self.pairs.items()
        ]
        return {
            "certificates": certificates,
            "webhooks": self.webhooks,
            "problems": self.problems,
            "notes": self.notes,
        }

    def as_text(self, now: datetime) -> str:
        """For people; without the problems."""
        certificates = [["CERTIFICATE", "SHA-256", "EXPIRES", "NAMES"]]
        for role, pair in self.pairs.items():
            it = pair.certificate
            left = f"{it.not_after:%Y-%m-%d %H:%M}Z ({(it.not_after - now).days} days)"
            certificates.append([role, it.fingerprint[:16], left, ", ".join(sorted(it.hosts))])
        webhooks = [["CONFIGURATION", "WEBHOOK", "CALLS", "TRUSTS"]]
        webhooks += [
            [each["configuration"], each["webhook"], each["host"], ", ".join(each["trusts"]) or "-"]
            for each in self.webhooks
        ]
        return "\n\n".join([table(certificates), table(webhooks), *self.notes])


async def report(settings: Certificates, api: CertificateClient, now: datetime | None = None) -> Report:
    """Look at the source of the certificate and at both configurations; writes nothing.

    Raises:
        ApiError: As it comes.
        SettingsError: `tls_hosts` is wrong.
    """
    found = Report()
    now = now or datetime.now(UTC)
    if settings.tls_cert_file is not None and settings.tls_key_file is not None:
        try:
            found.pairs["current"] = read_files(settings.tls_cert_file, settings.tls_key_file)
        except CertificateError as error:
            found.problems.append(str(error))
        remedy = "put its CA into caBundle, with cert-manager by the annotation cert-manager.io/inject-ca-from"
    else:
        await _look_at_secret(found, settings, api, now)
        remedy = _REPAIR
    _look_at_time(found, now)
    for resource in CONFIGURATIONS:
        await _look_at_configuration(found, resource, settings.configuration, api, remedy)
    return found


async def renew(settings: Certificates, api: CertificateClient) -> None:
    """Do the next step of a rotation now, though none is due: make a next pair and have it trusted, or let it become current.

    Raises:
        ApiError: As it comes; the rotation goes on from there next time.
        CertificateError: The certificate comes from files, or somebody else keeps changing the objects.
    """
    if settings.tls_cert_file is not None:
        raise CertificateError("--renew: the certificate comes from files; renew it where they come from")
    await rotation.Rotation(settings, api, serves=False).check(renew=True)


async def _look_at_secret(found: Report, settings: Certificates, api: CertificateClient, now: datetime) -> None:
    where = f"Secret {settings.namespace}/{settings.tls_secret}"
    try:
        content = api_objects.read_secret(await api.get_secret(settings.namespace, settings.tls_secret))
    except ApiNotFound:
        found.problems.append(f"{where} does not exist; apply webhook.yaml, or look at --namespace and --tls-secret")
        return
    found.problems += [f"{where}: {damage}; {_REPAIR}" for damage in content.damage]
    if content.current is None and not content.damage:
        found.problems.append(f"{where} has no certificate yet; {_REPAIR}")
    if content.current is not None:
        found.pairs["current"] = content.current
        lacking = rotation.hosts(settings) - content.current.certificate.hosts
        if lacking and content.next is None:
            found.problems.append(f"{where}: the certificate lacks {', '.join(sorted(lacking))}; {_REPAIR}")
        overdue = content.current.certificate.not_after - now < rotation_step.RENEW_BEFORE - _OVERDUE
        if overdue and content.next is None:
            found.problems.append(f"{where}: its renewal is overdue; {_REPAIR}")
    if content.next is not None:
        found.pairs["next"] = content.next
        found.notes.append(_what_next_waits_for(content))


def _what_next_waits_for(content: rotation_step.Content) -> str:
    if content.trusted_since is None:
        return "The next one becomes current when both configurations have trusted it for 5 minutes."
    due = content.trusted_since + rotation_step.SETTLE
    return (
        f"The next one becomes current at {due:%Y-%m-%d %H:%M:%S}Z, "
        "when a webhook, or `hami-webhook certs --renew`, looks at it then."
    )


def _look_at_time(found: Report, now: datetime) -> None:
    current = found.pairs.get("current")
    if current is None or current.certificate.valid(now):
        return
    until, since = current.certificate.not_after, current.certificate.not_before
    found.problems.append(
        f"the current certificate is valid from {since:%Y-%m-%d %H:%M}Z to {until:%Y-%m-%d %H:%M}Z, and now it is "
        f"{now:%Y-%m-%d %H:%M}Z; start the webhook or whatever renews it, and look at the clocks"
    )


async def _look_at_configuration(found: Report, resource: str, name: str, api: CertificateClient, remedy: str) -> None:
    where = f"{resource.removesuffix('s')}/{name}"
    try:
        obj = await api.get_configuration(resource, name)
    except ApiNotFound:
        found.problems.append(f"{where} does not exist; apply webhook.yaml, or look at --configuration")
        return
    bundles = api_objects.read_configuration(resource, obj).bundles
    if not bundles:
        ours = " or ".join(names.WEBHOOKS)
        found.problems.append(f"{where} has no webhook {ours}; apply webhook.yaml, or look at --configuration")
    for webhook in api_objects.our_webhooks(obj):
        host, text = _host(webhook.get("clientConfig") or {}), bundles[webhook["name"]]
        faults = {role: _fault(pair, text, host) for role, pair in found.pairs.items()}
        found.webhooks.append(
            {
                "configuration": where,
                "webhook": webhook["name"],
                "host": host,
                "trusts": [role for role, fault in faults.items() if fault is None],
            }
        )
        if (fault := faults.get("current")) is not None:
            found.problems.append(
                f"{where}: webhook {webhook['name']}: does not trust the current certificate: {fault}; {remedy}"
            )


def _host(client: Mapping[str, Any]) -> str:
    """The name that the API server expects in the certificate: k8s.io/apiserver pkg/util/webhook/client.go."""
    if service := client.get("service"):
        return f"{service['name']}.{service['namespace']}.svc"
    return urlsplit(client.get("url") or "").hostname or ""


def _fault(pair: KeyPair, bundle: bytes, host: str) -> str | None:
    """Why a client that trusts the bundle, as Go's does, refuses the pair under this name; None: it takes it."""
    if not bundle.strip():
        return "it has no caBundle"
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # Go takes each certificate in a pool as a root, whether or not it is self-signed.
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    try:
        client.load_verify_locations(cadata=bundle.decode("ascii", "replace"))
        _shake_hands(client, server_context(pair), host)
    except ssl.SSLCertVerificationError as error:
        return error.verify_message
    except (ssl.SSLError, ValueError) as error:
        return f"its caBundle can't be used: {error}"
    return None


def _shake_hands(client: ssl.SSLContext, server: ssl.SSLContext, host: str) -> None:
    """A TLS handshake in memory."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends: Iterable[ssl.SSLObject] = (
        client.wrap_bio(to_client, to_server, server_hostname=host),
        server.wrap_bio(to_server, to_client, server_side=True),
    )
    for _ in range(4):  # each end has its turn; TLS 1.3 needs two
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
