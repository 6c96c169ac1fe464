"""What the webhook knows of its own certificate, as findings: `hami-webhook certs` tells the same."""

import asyncio
from collections.abc import Iterator

from hami_kubeletplugin.api.webhook_settings import Certificates
from hami_kubeletplugin.findings import Finding, Level
from hami_kubeletplugin.kube.certificate_api import CertificateClient
from hami_kubeletplugin.kube.config import Access
from hami_kubeletplugin.webhook.certificate.report import Report, report


def certificate(settings: Certificates, access: Access) -> Iterator[Finding]:
    """Whether what is served is valid, and trusted by both configurations.

    Raises:
        ApiError: As it comes.
        SettingsError: `tls_hosts` is wrong.
    """

    async def look() -> Report:
        async with CertificateClient(access) as api:
            return await report(settings, api)

    found = asyncio.run(look())
    for problem in found.problems:
        yield Finding(
            check="certificate",
            level=Level.error,
            what=problem,
            why="the API server does not trust the webhook: pods that name nvidia.com/gpu are refused",
            mend="hami-webhook certs",
        )
    current = found.pairs.get("current")
    if current is not None and not found.problems:
        until = f"{current.certificate.not_after:%Y-%m-%d}"
        yield Finding(
            check="certificate",
            level=Level.ok,
            what=f"the certificate is good until {until}, and both configurations trust it",
        )
