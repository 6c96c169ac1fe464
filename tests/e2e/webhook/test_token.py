"""What the webhook's token can do to webhook configurations: renew its certificate, and nothing else."""

import base64
import json
from pathlib import Path

import pytest

from hami_kubeletplugin.api.names import WEBHOOK_CONFIGURATION
from tests.e2e.cluster import Cluster, Json, KubectlFailed
from tests.e2e.webhook.process import Webhook

MUTATING, VALIDATING = "mutatingwebhookconfiguration", "validatingwebhookconfiguration"
ONLY = "the webhook may change the caBundle of its webhooks only"


@pytest.fixture
def token(cluster: Cluster, webhook: Webhook, tmp_path: Path) -> Path:
    """A kubeconfig with the webhook's token."""
    return cluster.kubeconfig_for(cluster.node_token("hami-system", "hami-webhook"), tmp_path / "kubeconfig")


def patch(cluster: Cluster, token: Path, kind: str, *operations: Json) -> None:
    """Patch the configuration with the token."""
    words = (
        "--kubeconfig",
        str(token),
        "patch",
        kind,
        WEBHOOK_CONFIGURATION,
        "--type=json",
        "-p",
        json.dumps(operations),
    )
    cluster.kubectl(*words)


def add(path: str, value: object) -> Json:
    """Set a field, or add one."""
    return {"op": "add", "path": path, "value": value}


EVERYTHING = [{"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["*"], "resources": ["*/*"]}]
ATTACKER = {
    "name": "attacker.example.com",
    "admissionReviewVersions": ["v1"],
    "clientConfig": {"url": "https://attacker.example.com"},
    "rules": EVERYTHING,
    "sideEffects": "None",
}


@pytest.mark.parametrize("kind", [MUTATING, VALIDATING])
@pytest.mark.parametrize(
    "operation",
    [
        add("/webhooks/0/rules", EVERYTHING),
        add("/webhooks/0/rules/-", EVERYTHING[0]),
        add("/webhooks/0/clientConfig", {"url": "https://attacker.example.com"}),
        add("/webhooks/0/clientConfig", {"service": {"namespace": "default", "name": "attacker"}}),
        add("/webhooks/-", ATTACKER),
        add("/webhooks/0", ATTACKER),
        {"op": "remove", "path": "/webhooks/0"},
        add("/webhooks/0/name", "attacker.example.com"),
        add("/webhooks/0/objectSelector", {}),
        add("/webhooks/0/namespaceSelector", {}),
        {"op": "remove", "path": "/webhooks/0/matchConditions"},
        add("/webhooks/0/matchConditions", [{"name": "all", "expression": "true"}]),
        add("/webhooks/0/matchPolicy", "Exact"),
        add("/webhooks/0/timeoutSeconds", 30),
        add("/webhooks/0/admissionReviewVersions", ["v1beta1", "v1"]),
        add("/metadata/labels", {"a": "b"}),
        add("/metadata/annotations", {"cert-manager.io/inject-ca-from": "default/attacker"}),
        add("/metadata/finalizers", ["example.com/stays"]),
    ],
    ids=lambda operation: f"{operation['op']} {operation['path']}",
)
def test_what_would_let_it_read_everything(cluster: Cluster, token: Path, kind: str, operation: Json) -> None:
    """Rules, addresses, selectors, conditions, other webhooks, metadata: who steals the token can change none of them."""
    before = cluster.get(kind, WEBHOOK_CONFIGURATION)
    with pytest.raises(KubectlFailed, match=ONLY):
        patch(cluster, token, kind, operation)
    assert cluster.get(kind, WEBHOOK_CONFIGURATION) == before


@pytest.mark.parametrize(
    ("kind", "name", "field", "value"),
    [
        (MUTATING, "pods.hami.io", "failurePolicy", "Ignore"),
        (MUTATING, "names.hami.io", "failurePolicy", "Fail"),
        (VALIDATING, "claims.hami.io", "failurePolicy", "Fail"),
        (MUTATING, "pods.hami.io", "sideEffects", "None"),
        (VALIDATING, "claims.hami.io", "sideEffects", "NoneOnDryRun"),
        (MUTATING, "pods.hami.io", "reinvocationPolicy", "Never"),
    ],
)
def test_it_can_not_be_switched_off(
    cluster: Cluster, token: Path, kind: str, name: str, field: str, value: str
) -> None:
    """Nor what happens without an answer: pods would be created as they are, or others, or claims, would depend on it."""
    found = cluster.get(kind, WEBHOOK_CONFIGURATION)
    assert found is not None
    number = [entry["name"] for entry in found["webhooks"]].index(name)
    with pytest.raises(KubectlFailed, match=ONLY):
        patch(cluster, token, kind, add(f"/webhooks/{number}/{field}", value))


@pytest.mark.parametrize("kind", [MUTATING, VALIDATING])
def test_the_certificate_can_be_renewed(cluster: Cluster, token: Path, kind: str) -> None:
    """The `caBundle` is its own to change; a webhook of another name in the same object keeps its."""
    before = cluster.get(kind, WEBHOOK_CONFIGURATION)
    assert before is not None
    bundle = before["webhooks"][0]["clientConfig"]["caBundle"]
    twice = base64.b64encode(2 * base64.b64decode(bundle)).decode()
    for value in (twice, bundle):
        patch(cluster, token, kind, add("/webhooks/0/clientConfig/caBundle", value))
    last = len(before["webhooks"])
    other = ATTACKER | {"name": "other.example.com", "failurePolicy": "Ignore", "rules": []}
    try:
        admin = json.dumps([add("/webhooks/-", other)])
        cluster.kubectl("patch", kind, WEBHOOK_CONFIGURATION, "--type=json", "-p", admin)
        with pytest.raises(KubectlFailed, match=ONLY):
            patch(cluster, token, kind, add(f"/webhooks/{last}/clientConfig/caBundle", bundle))
        patch(cluster, token, kind, add("/webhooks/0/clientConfig/caBundle", bundle))
    finally:
        cluster.kubectl(
            "patch",
            kind,
            WEBHOOK_CONFIGURATION,
            "--type=json",
            "-p",
            json.dumps([{"op": "remove", "path": f"/webhooks/{last}"}]),
        )


@pytest.mark.parametrize("kind", [MUTATING, VALIDATING])
def test_other_configurations(cluster: Cluster, token: Path, kind: str) -> None:
    """Neither others' nor new ones, and its own can't be deleted."""
    new: Json = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration" if kind == MUTATING else "ValidatingWebhookConfiguration",
        "metadata": {"name": "attacker"},
        "webhooks": [],
    }
    with pytest.raises(KubectlFailed, match="forbidden"):
        cluster.kubectl("--kubeconfig", str(token), "create", "-f", "-", stdin=json.dumps(new))
    with pytest.raises(KubectlFailed, match="forbidden"):
        cluster.kubectl("--kubeconfig", str(token), "delete", kind, WEBHOOK_CONFIGURATION)
    with pytest.raises(KubectlFailed, match="forbidden"):
        cluster.kubectl("--kubeconfig", str(token), "get", kind, "--ignore-not-found")


@pytest.mark.parametrize(
    ("verb", "resource", "namespace", "allowed"),
    [
        ("list", "pods", "default", True),
        ("get", "pods", "default", False),
        ("create", "pods", "default", False),
        ("get", "secrets", "default", False),
        ("list", "secrets", "hami-system", False),
        ("get", "secrets/hami-webhook-tls", "hami-system", True),
        ("create", "secrets", "hami-system", False),
        ("create", "serviceaccounts/token", "hami-system", False),
        ("update", "resourceclaims", "default", False),
        ("create", "clusterrolebindings", "default", False),
        ("patch", f"mutatingwebhookconfigurations/{WEBHOOK_CONFIGURATION}", "default", True),
        ("patch", "mutatingwebhookconfigurations/hami-webhook", "default", False),
        ("update", "validatingadmissionpolicies", "default", False),
        ("list", "nodes", "default", False),
    ],
)
def test_rights(cluster: Cluster, token: Path, verb: str, resource: str, namespace: str, *, allowed: bool) -> None:
    """It reads what it needs to know about pods and their templates, and its own Secret, and nothing that gives it more."""
    assert cluster.may(token, verb, resource, namespace) == allowed
