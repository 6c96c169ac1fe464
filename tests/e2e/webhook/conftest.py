"""webhook.yaml on the cluster, and the process that its Deployment would run. Gone again after the last test in this folder."""

import shutil
import socket
from collections.abc import Iterator

import pytest
import yaml

from hami_kubeletplugin.api.names import WEBHOOK_CONFIGURATION
from tests.e2e.cluster import REPOSITORY, Cluster, Json
from tests.e2e.webhook.objects import dry_run, gpu_pod, wanting
from tests.e2e.webhook.process import ADDRESS, Webhook
from tests.waiting import wait_for

CONFIGURATIONS = "mutatingwebhookconfigurations,validatingwebhookconfigurations"


@pytest.fixture(scope="package")
def port() -> int:
    """A free one."""
    with socket.socket() as unused:
        unused.bind((ADDRESS, 0))
        number: int = unused.getsockname()[1]
        return number


@pytest.fixture(scope="package")
def manifest(port: int) -> list[Json]:
    """webhook.yaml without the Deployment, for which the process stands, and with its URL instead of the Service's name."""
    items = [*yaml.safe_load_all((REPOSITORY / "webhook.yaml").read_text())]
    for item in items:
        for hook in item.get("webhooks", ()):
            path = hook["clientConfig"].pop("service")["path"]
            hook["clientConfig"]["url"] = f"https://{ADDRESS}:{port}{path}"
    return [item for item in items if item["kind"] != "Deployment"]


@pytest.fixture(scope="package")
def installed(cluster: Cluster, manifest: list[Json], port: int) -> Iterator[Webhook]:
    """The webhook, and all that it needs, on the cluster."""
    folder = cluster.directory / "e2e-webhook"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    cluster.apply(*manifest)
    token = cluster.node_token("hami-system", "hami-webhook")
    kubeconfig = cluster.kubeconfig_for(token, folder / "kubeconfig")
    webhook = Webhook(folder, kubeconfig, port, mark=str(cluster.directory))
    serve(webhook, cluster)
    yield webhook
    if webhook.is_running:
        webhook.kill()
    cluster.kubectl("delete", CONFIGURATIONS, WEBHOOK_CONFIGURATION)


@pytest.fixture
def webhook(installed: Webhook, cluster: Cluster) -> Webhook:
    """The webhook, running and called by the API server."""
    if not installed.is_running:
        serve(installed, cluster)
    return installed


def serve(webhook: Webhook, cluster: Cluster) -> None:
    """Start it, and wait until the API server calls it."""
    webhook.start()

    def called() -> bool:
        return "resourceClaims" in dry_run(cluster, gpu_pod("called", wanting(gpu=1)))["spec"]

    wait_for("the API server to call the webhook", called)
