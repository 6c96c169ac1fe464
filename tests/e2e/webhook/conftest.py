"""webhook.yaml on the cluster, and the process that its Deployment would run. Gone again after the last test in this folder."""

import shutil
from collections.abc import Iterator

import pytest
import yaml

from e2e.cluster import REPOSITORY, Cluster
from e2e.waiting import wait_for
from e2e.webhook.objects import dry_run, gpu_pod, wanting
from e2e.webhook.process import ADDRESS, Webhook

CONFIGURATIONS = "mutatingwebhookconfigurations,validatingwebhookconfigurations"


@pytest.fixture(scope="package")
def installed(cluster: Cluster) -> Iterator[Webhook]:
    """The webhook, with everything of webhook.yaml but the Deployment, and an URL for the Service."""
    folder = cluster.directory / "e2e-webhook"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    manifest = [*yaml.safe_load_all((REPOSITORY / "webhook.yaml").read_text())]
    cluster.apply(next(item for item in manifest if item["kind"] == "ServiceAccount"))
    token = cluster.node_token("hami-system", "hami-webhook")
    webhook = Webhook(folder, cluster.kubeconfig_for(token, folder / "kubeconfig"), str(cluster.directory))
    for item in manifest:
        for hook in item.get("webhooks", ()):
            path = hook["clientConfig"].pop("service")["path"]
            hook["clientConfig"]["url"] = f"https://{ADDRESS}:{webhook.port}{path}"
    cluster.apply(*(item for item in manifest if item["kind"] != "Deployment"))
    _serve(webhook, cluster)
    yield webhook
    if webhook.is_running:
        webhook.kill()
    cluster.kubectl("delete", CONFIGURATIONS, "hami-webhook")


@pytest.fixture
def webhook(installed: Webhook, cluster: Cluster) -> Webhook:
    """The webhook, running and called by the API server."""
    if not installed.is_running:
        _serve(installed, cluster)
    return installed


def _serve(webhook: Webhook, cluster: Cluster) -> None:
    webhook.start()

    def called() -> bool:
        return "resourceClaims" in dry_run(cluster, gpu_pod("called", wanting(gpu=1)))["spec"]

    wait_for("the API server to call the webhook", called)
