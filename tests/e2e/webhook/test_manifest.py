"""webhook.yaml on the API server."""

import json
from collections.abc import Iterator

import pytest
import yaml

from hami_kubeletplugin.api.names import WEBHOOK_CONFIGURATION
from tests.e2e.cluster import REPOSITORY, Cluster, Json
from tests.e2e.webhook.process import Webhook

MANIFEST = REPOSITORY / "webhook.yaml"


def test_it_can_be_applied(cluster: Cluster) -> None:
    """All of it is accepted as it is, without a warning."""
    cluster.kubectl("apply", "--dry-run=server", "--warnings-as-errors", "-f", str(MANIFEST))


def kept(cluster: Cluster) -> list[object]:
    """What the webhook has put into objects of the manifest."""
    secret = cluster.get("secret", "hami-webhook-tls", "hami-system") or {}
    kinds = ("mutatingwebhookconfiguration", "validatingwebhookconfiguration")
    found = [json.loads(cluster.kubectl("get", kind, WEBHOOK_CONFIGURATION, "-o", "json")) for kind in kinds]
    return [secret.get("data"), *(hook["clientConfig"]["caBundle"] for each in found for hook in each["webhooks"])]


def test_it_can_be_applied_again(cluster: Cluster, webhook: Webhook, manifest: list[Json]) -> None:
    """To apply it once more, as for an update, leaves the certificate and the trust in it."""
    before = kept(cluster)
    assert all(before)
    cluster.apply(*manifest)
    assert kept(cluster) == before


@pytest.fixture
def restricted(cluster: Cluster) -> Iterator[str]:
    """A namespace that takes pods only if they can do as little as Kubernetes' strictest standard wants."""
    name = "e2e-restricted"
    cluster.make_namespace(name, {"pod-security.kubernetes.io/enforce": "restricted"})
    yield name
    cluster.kubectl("delete", "namespace", name, "--wait=false")


def test_its_pods_are_restricted(cluster: Cluster, restricted: str) -> None:
    """The webhook's pods meet the restricted Pod Security Standard, with a root file system that nobody can write."""
    [deployment] = [item for item in yaml.safe_load_all(MANIFEST.read_text()) if item["kind"] == "Deployment"]
    spec = deployment["spec"]["template"]["spec"]
    assert all(one["securityContext"]["readOnlyRootFilesystem"] for one in spec["containers"])
    # Its own account is in its own namespace.
    spec = {**spec, "serviceAccountName": "default", "automountServiceAccountToken": False}
    made = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": restricted}, "spec": spec}
    cluster.kubectl("create", "--dry-run=server", "-f", "-", stdin=json.dumps(made))
