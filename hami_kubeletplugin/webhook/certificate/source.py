"""Where the webhook's certificate comes from, by the settings."""

import ssl
from datetime import datetime
from typing import Protocol

from hami_kubeletplugin.api.webhook_settings import Certificates
from hami_kubeletplugin.kube.certificate_api import CertificateClient
from hami_kubeletplugin.webhook.certificate.files import CertificateFiles
from hami_kubeletplugin.webhook.certificate.key_pair import KeyPair
from hami_kubeletplugin.webhook.certificate.rotation import Rotation


class CertificateSource(Protocol):
    """A certificate that is kept fresh."""

    @property
    def serving(self) -> KeyPair | None:
        """The pair that new connections get; None before `start`."""

    @property
    def expires_at(self) -> datetime | None:
        """When the certificate that is served ends; None before `start`."""

    async def start(self) -> ssl.SSLContext:
        """A server's context that has a certificate, and will have the next ones.

        Raises:
            CertificateError: There is none.
        """

    async def run(self) -> None:
        """Keep it fresh, until cancelled."""


def certificates_for(settings: Certificates, api: CertificateClient) -> CertificateSource:
    """The certificate's source.

    Args:
        settings: Files, or the Secret.
        api: Open while the source is used; not asked anything for files.

    Raises:
        SettingsError: `tls_hosts` is wrong.
    """
    if settings.tls_cert_file is not None and settings.tls_key_file is not None:
        return CertificateFiles(settings.tls_cert_file, settings.tls_key_file)
    return Rotation(settings, api)
