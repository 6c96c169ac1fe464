"""An admission server in this process; the cluster behind it is played by fakes."""

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from typing import Any

from hami_kubeletplugin.api.webhook_settings import Conversion
from hami_kubeletplugin.port.room import Room
from hami_kubeletplugin.webhook.admission.answer import Admission
from hami_kubeletplugin.webhook.admission.metrics import Metrics
from hami_kubeletplugin.webhook.admission.server import AdmissionServer, Limits
from tests.unit.webhook.admission.https import ApiServerSide, CertificateFiles, FakeSizes, FakeTemplates, serve_with

Refusal = Callable[[Mapping[str, Any] | None], str | None]


class Webhook:
    """A server, who answers in it, and what it works with."""

    def __init__(self, limits: Limits | None = None, refusal: Refusal = lambda _: None) -> None:
        self.templates, self.sizes, self.metrics = FakeTemplates(), FakeSizes(), Metrics()
        self.missing: list[str] = []
        admission = Admission(Conversion.checked(), "hami-webhook", self.templates, self.sizes)
        judges = {"/mutate": admission.mutate, "/validate": admission.validate}
        self.server = AdmissionServer(
            judges, missing=lambda: self.missing, metrics=self.metrics, refusal=refusal, limits=limits
        )

    @property
    def room(self) -> Room:
        """The connections of its port."""
        assert self.server._listener is not None
        return self.server._listener.room

    def counted(self, result: str, endpoint: str = "/mutate") -> float:
        """How many requests had this result."""
        labels = {"endpoint": endpoint, "result": result}
        return self.metrics._registry.get_sample_value("hami_webhook_reviews_total", labels) or 0.0

    def refused(self, endpoint: str = "/mutate") -> dict[str, float]:
        """How many were denied, by why."""
        families = self.metrics._registry.collect()
        samples = (sample for family in families for sample in family.samples)
        return {
            sample.labels["reason"]: sample.value
            for sample in samples
            if sample.name == "hami_webhook_refusals_total" and sample.labels["endpoint"] == endpoint and sample.value
        }


@contextlib.asynccontextmanager
async def serving(
    files: CertificateFiles, limits: Limits | None = None
) -> AsyncIterator[tuple[Webhook, ApiServerSide]]:
    """A webhook that listens, and a client."""
    webhook = Webhook(replace(limits or Limits(), parting=0.01))
    await webhook.server.start("127.0.0.1", 0, serve_with(files))
    try:
        async with ApiServerSide(webhook.server.port, files) as api_server:
            yield webhook, api_server
    finally:
        await webhook.server.stop(within=5.0)


Both = tuple[Webhook, ApiServerSide]
