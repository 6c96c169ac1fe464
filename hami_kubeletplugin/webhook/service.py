"""The webhook: its parts, wired, in one task group.

API server ──reviews──> server ──> admission ──> convert
                          │           ├──> templates ──watch, create, stamp──> API server
                     certificates     ├──> sizes ──watch──> API server
                                      └─── version ──get──> API server
                                           collector ──unused templates──> API server
"""

import asyncio
import gc
import signal
import ssl
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

from hami_kubeletplugin import __version__
from hami_kubeletplugin.api.errors import SettingsError
from hami_kubeletplugin.api.webhook_settings import WebhookSettings
from hami_kubeletplugin.kube.certificate_api import CertificateClient
from hami_kubeletplugin.kube.config import load as load_kube_config
from hami_kubeletplugin.kube.template_api import TemplateClient
from hami_kubeletplugin.observe.log import get_logger
from hami_kubeletplugin.webhook.admission.answer import Admission
from hami_kubeletplugin.webhook.admission.metrics import Metrics
from hami_kubeletplugin.webhook.admission.server import AdmissionServer, Limits
from hami_kubeletplugin.webhook.certificate.clients import Clients
from hami_kubeletplugin.webhook.certificate.key_pair import KeyPair
from hami_kubeletplugin.webhook.certificate.source import CertificateSource, certificates_for
from hami_kubeletplugin.webhook.cluster.allowance import Allowance
from hami_kubeletplugin.webhook.cluster.collector import Collector
from hami_kubeletplugin.webhook.cluster.sizes import PublishedSizes
from hami_kubeletplugin.webhook.cluster.templates import Templates
from hami_kubeletplugin.webhook.cluster.version import ServerVersion

log = get_logger()
_T = TypeVar("_T")


class _Part(Protocol):
    """What goes on beside the reviews."""

    async def run(self) -> None:
        """Until cancelled."""


async def run(settings: WebhookSettings, *, started: Callable[[int], None] = lambda _: None) -> None:
    """Run until SIGTERM or SIGINT.

    Args:
        settings: All of them.
        started: Told the port once it is listened on.

    Raises:
        SettingsError: Something that was given can't be used.
        CertificateError: There is no certificate to serve with, and waiting would bring none; or the CA of clients can't be read.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    # Sent when a terminal goes, or by people who expect a reload. Its default would end us without an answer to anybody.
    loop.add_signal_handler(
        signal.SIGHUP, log.info, "SIGHUP ignored: files of certificates are watched, options are not"
    )
    access = load_kube_config(settings.kubeconfig)
    metrics = Metrics()
    asked = metrics.api_request
    async with TemplateClient(access, asked=asked) as api, CertificateClient(access, asked=asked) as trust:
        templates = Templates(api, Allowance(settings), count=metrics.template)
        sizes = PublishedSizes(api, settings.driver_name)
        collector = Collector(api, settings, count=metrics.template, looked=metrics.collection)
        certificates = certificates_for(settings, trust)
        clients = _clients(settings, certificates)
        metrics.watch_sizes(lambda: len(sizes.known()))
        metrics.watch_templates(lambda: templates.ours)
        metrics.watch_certificate(lambda: certificates.expires_at)
        admission = Admission(settings, settings.configuration, templates, sizes)

        version = None if settings.kubernetes else ServerVersion(api, admission.cluster_is)

        def missing() -> list[str]:
            # Both stay true when the API server goes away later: most pods are answered from what is known, the others are
            # told to try again, and if all replicas left the Service at once nobody would get even that.
            known = {
                "the list of ResourceClaimTemplates": templates.synced,
                "the list of ResourceSlices": sizes.synced,
                "the API server's version": version is None or version.synced,
            }
            return [what for what, is_there in known.items() if not is_there]

        metrics.watch_readiness(missing)
        server = AdmissionServer(
            {"/mutate": admission.mutate, "/validate": admission.validate},
            missing=missing,
            metrics=metrics,
            refusal=(lambda _: None) if clients is None else clients.refusal,
            limits=Limits(parting=settings.idle_grace),
        )
        log.info("starting", version=__version__, driver=settings.driver_name)
        try:
            async with asyncio.TaskGroup() as tasks:
                optional: list[_Part | None] = [version, clients]
                parts: list[_Part] = [templates, sizes, collector, *(part for part in optional if part)]
                running = [tasks.create_task(part.run(), name=type(part).__name__) for part in parts]
                tls = await _unless(stop, certificates.start())
                if tls is not None:
                    running.append(tasks.create_task(certificates.run(), name="Certificates"))
                    context = tls
                    await _listen(server, settings, (lambda: context) if clients is None else clients.context)
                    started(server.port)
                    await _serve(server, stop, settings.drain_delay)
                for task in running:
                    task.cancel()
        except ExceptionGroup as group:
            # The first failure ended all: its own words, or traceback, are what people need.
            raise group.exceptions[0] from None
    log.info("stopped")


async def _serve(server: AdmissionServer, stop: asyncio.Event, delay: float) -> None:
    """Answer until `stop`, then for `delay` more seconds, in which the cluster learns to send reviews elsewhere."""
    # What start-up made lives as long as the process: keep the collector from walking it again and again.
    gc.collect()
    gc.freeze()
    try:
        await stop.wait()
        log.info("stopping: answering until nobody asks any more", seconds=delay)
        server.drain()
        await asyncio.sleep(delay)
    finally:
        await server.stop(patient=stop.is_set())


async def _unless(stop: asyncio.Event, work: Coroutine[Any, Any, _T]) -> _T | None:
    """What `work` returns; None, and the end of it, if `stop` comes first."""
    working, stopping = asyncio.create_task(work), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        working.cancel()
        stopping.cancel()
        await asyncio.gather(working, stopping, return_exceptions=True)


def _clients(settings: WebhookSettings, certificates: CertificateSource) -> Clients | None:
    def serving() -> KeyPair:
        pair = certificates.serving
        if pair is None:
            raise RuntimeError("nothing is served yet")
        return pair

    return None if settings.client_ca is None else Clients(settings.client_ca, settings.client_name, serving)


async def _listen(server: AdmissionServer, settings: WebhookSettings, tls: Callable[[], ssl.SSLContext]) -> None:
    try:
        await server.start(settings.listen, settings.port, tls)
    except OSError as error:
        raise SettingsError(f"--listen {settings.listen} --port {settings.port}: {error.strerror or error}") from error
    log.info("listening", address=settings.listen, port=server.port)
