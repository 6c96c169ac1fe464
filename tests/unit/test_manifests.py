"""The manifests, held against the program and against what else a cluster has."""

import re
from typing import Any

import pytest
import yaml

from hami_kubeletplugin.api import names
from hami_kubeletplugin.api.names import WEBHOOK_CONFIGURATION, WEBHOOKS
from hami_kubeletplugin.api.settings import Settings
from hami_kubeletplugin.api.webhook_settings import WebhookSettings
from hami_kubeletplugin.kubelet.standard import WITHIN
from hami_kubeletplugin.observe.endpoint import ALIVE, READY
from tests import REPOSITORY

MANIFESTS = ("daemonset.yaml", "claim-status.yaml", "webhook.yaml", "extended-resource.yaml")
NAMESPACED = {
    "ServiceAccount",
    "Secret",
    "Role",
    "RoleBinding",
    "Deployment",
    "DaemonSet",
    "Service",
    "PodDisruptionBudget",
    "NetworkPolicy",
}
OF_HAMI = {
    "ClusterRole": r".+-(scheduler|device-plugin-monitor|mock-device-plugin|admission|mcp-server|webhook|monitor"
    r"|clusterrole(-kubeletplugin)?)",
    "ClusterRoleBinding": r".+-(scheduler(-kube|-volume)?|device-plugin(-monitor)?|mock-device-plugin|admission|mcp-server"
    r"|webhook|monitor|clusterrole-binding-.+)",
    "MutatingWebhookConfiguration": r".+-(webhook|mutatingwebhookconfiguration)",
    "ValidatingWebhookConfiguration": r".+-(webhook|validatingwebhookconfiguration)",
    "DeviceClass": r"hami-core-gpu\.project-hami\.io",
}
"""The cluster's objects in the charts of HAMi (2.10.0), HAMi-DRA (0.2) and its driver (0.1.0), for any name of a release."""


def objects(*files: str) -> list[dict[str, Any]]:
    """All of some manifests."""
    return [item for file in files for item in yaml.safe_load_all((REPOSITORY / file).read_text())]


def one(kind: str, *files: str) -> dict[str, Any]:
    """The only object of a kind."""
    (found,) = (item for item in objects(*(files or MANIFESTS)) if item["kind"] == kind)
    return found


@pytest.mark.parametrize("item", objects(*MANIFESTS), ids=lambda item: f"{item['kind']}/{item['metadata']['name']}")
def test_no_object_of_the_cluster_is_called_as_one_of_hami(item: dict[str, Any]) -> None:
    """Applying ours never changes HAMi's, and removing either leaves the other."""
    name = item["metadata"]["name"]
    if item["kind"] not in NAMESPACED:
        assert "namespace" not in item["metadata"]
        assert not re.fullmatch(OF_HAMI.get(item["kind"], "never"), name)
    elif name != "hami-webhook-tls":
        # In HAMi's own namespace: its charts make <release>-dra-webhook, and <release>-hami-... else.
        assert name in {"hami-webhook", "hami-kubeletplugin"}


@pytest.mark.parametrize(
    "other",
    [
        "hami-webhook",
        "istio-sidecar-injector",
        "kueue-mutating-webhook-configuration",
        "kyverno-resource-mutating-webhook-cfg",
        "spark-operator-webhook",
        "vpa-webhook-config",
        "yunikorn-admission-controller-cfg",
    ],
)
def test_pods_come_to_us_after_others(other: str) -> None:
    """API servers call mutating webhooks by name, and ours sees what the others have put into a pod."""
    assert one("MutatingWebhookConfiguration")["metadata"]["name"] > other


def test_manifest_and_program_name_the_same_configurations() -> None:
    """What the webhook keeps by default, and may change by role and policy, are the objects of the manifest."""
    configurations = [one(f"{kind}WebhookConfiguration") for kind in ("Mutating", "Validating")]
    assert {item["metadata"]["name"] for item in configurations} == {WEBHOOK_CONFIGURATION}
    assert WebhookSettings().configuration == WEBHOOK_CONFIGURATION
    assert tuple(entry["name"] for item in configurations for entry in item["webhooks"]) == WEBHOOKS
    role = one("ClusterRole", "webhook.yaml")
    named = [rule["resourceNames"] for rule in role["rules"] if "resourceNames" in rule]
    assert named == [[WEBHOOK_CONFIGURATION]]
    policies = [item for item in objects("webhook.yaml") if item["kind"] == "ValidatingAdmissionPolicy"]
    (listed,) = re.findall(r"new\.name in \[(.*?)\]", str(policies))
    assert listed == ", ".join(f'"{name}"' for name in WEBHOOKS)


@pytest.mark.parametrize("kind", ["ClusterRoleBinding", "ValidatingAdmissionPolicyBinding"])
def test_bindings_bind_what_is_there(kind: str) -> None:
    """Each names a role or a policy of the same manifest."""
    for file in ("daemonset.yaml", "claim-status.yaml", "webhook.yaml"):
        every = objects(file)
        there = {(item["kind"], item["metadata"]["name"]) for item in every}
        for item in (item for item in every if item["kind"] == kind):
            bound = item.get("roleRef", {}).get("name") or item["spec"]["policyName"]
            assert (kind.removesuffix("Binding"), bound) in there


def test_the_rights_for_the_status_of_claims() -> None:
    """They are the account's that the DaemonSet has, and for the entries of its driver alone, in claims of the node itself."""
    role, binding = (one(kind, "claim-status.yaml") for kind in ("ClusterRole", "ClusterRoleBinding"))
    account = one("DaemonSet", "daemonset.yaml")["spec"]["template"]["spec"]["serviceAccountName"]
    assert [subject["name"] for subject in binding["subjects"]] == [account]
    rights = [(rule["resources"], rule.get("resourceNames"), rule["verbs"]) for rule in role["rules"]]
    assert rights == [
        (["resourceclaims/status"], None, ["patch"]),
        (["resourceclaims/driver"], [names.DRIVER], ["associated-node:patch"]),
    ]
    assert Settings.model_fields["device_status"].default == "none", "without these rights each write would fail"


def test_manifest_and_program_name_the_same_events() -> None:
    """The daemon's policy lets it write each Event that it writes, and no other."""
    (policy,) = (
        item
        for item in objects("daemonset.yaml")
        if (item["kind"], item["metadata"]["name"]) == ("ValidatingAdmissionPolicy", "hami-kubeletplugin-own-events")
    )
    ours = {names.LIMIT_NOT_IN_FORCE, names.GPU_CONDITION, names.GPU_CONDITION_ENDED}
    assert set(re.findall(r'"(Gpu\w+)"', str(policy["spec"]["validations"]))) == ours


def test_the_probes_of_the_daemon() -> None:
    """Each asks a path that the daemon serves, at the port that it listens on; liveness never asks for readiness.

    It answers within the time that gRPC's health service may take. In an update the new daemon is there beside the old one, so
    neither has a port of the host, and what ends the wait for the other comes later than what ends the other.
    """
    (container,) = one("DaemonSet", "daemonset.yaml")["spec"]["template"]["spec"]["containers"]
    env = {item["name"]: item.get("value") for item in container["env"]}
    (port,) = (item for item in container["ports"] if env["HAMI_METRICS_ADDRESS"] == f":{item['containerPort']}")
    probes = {name: container[f"{name}Probe"] for name in ("startup", "liveness", "readiness")}
    assert {name: probe["httpGet"] for name, probe in probes.items()} == {
        "startup": {"path": ALIVE, "port": port["name"]},
        "liveness": {"path": ALIVE, "port": port["name"]},
        "readiness": {"path": READY, "port": port["name"]},
    }
    spec = one("DaemonSet", "daemonset.yaml")["spec"]
    assert spec["updateStrategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    assert "hostPort" not in port
    assert "hostNetwork" not in spec["template"]["spec"]
    assert 2 * spec["template"]["spec"]["terminationGracePeriodSeconds"] < Settings.model_fields["lock_timeout"].default
    assert all(probe["timeoutSeconds"] > WITHIN for probe in probes.values())


def test_the_uninstall_sees_what_the_daemon_wrote() -> None:
    """It has the daemon's image and, of the node, the folders in which the daemon writes, mounted the same way."""
    daemon = one("DaemonSet", "daemonset.yaml")["spec"]["template"]["spec"]
    removal = one("DaemonSet", "deploy/uninstall.yaml")["spec"]["template"]["spec"]
    (runs,), (serves,) = removal["initContainers"], daemon["containers"]
    assert runs["image"] == serves["image"]
    assert all(mount in serves["volumeMounts"] for mount in runs["volumeMounts"])
    assert all(volume in daemon["volumes"] for volume in removal["volumes"])
    written = {"/var/lib/kubelet/plugins_registry", "/var/lib/kubelet/plugins", "/var/run/cdi", "/usr/local/vgpu"}
    assert {mount["mountPath"] for mount in runs["volumeMounts"]} == written
