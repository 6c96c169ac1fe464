"""What can't go well is refused, with a sentence that says what to do."""

from collections.abc import Mapping
from typing import Any

import pytest

from tests.chart.rendering import Chart

REFUSED: dict[str, tuple[Mapping[str, Any], str]] = {
    "unknown value": ({"kubletPlugin": {}}, "additional properties 'kubletPlugin' not allowed"),
    "unknown option": (
        {"kubeletPlugin": {"options": {"health-pol": 3}}},
        "additional properties 'health-pol' not allowed",
    ),
    "an option's bounds": (
        {"kubeletPlugin": {"options": {"prepare-timeout": 60}}},
        "prepare-timeout': exclusiveMaximum: got 60, want 45",
    ),
    "an option of its own": (
        {"kubeletPlugin": {"options": {"driver-name": "x"}}},
        "additional properties 'driver-name' not allowed",
    ),
    "two names, two values": (
        {"kubeletPlugin": {"deviceSplitCount": 4}, "devicePlugin": {"deviceSplitCount": 5}},
        "kubeletPlugin.deviceSplitCount is 4 and devicePlugin.deviceSplitCount, HAMi's name of the same, is 5: set one of them",
    ),
    "two folders": (
        {"kubeletPlugin": {"hamiDirectoryPath": "/a/vgpu"}, "global": {"gpuHookPath": "/b"}},
        "kubeletPlugin.hamiDirectoryPath and global.gpuHookPath, HAMi's name for the folder above it, are both set",
    ),
    "legacy metrics twice": (
        {"legacyMetrics": True, "kubeletPlugin": {"options": {"legacy-metrics": False}}},
        "kubeletPlugin.options.legacy-metrics and legacyMetrics, HAMi's name of it, are both set",
    ),
    "HAMi's scheduler": (
        {"scheduler": {"defaultSchedulerPolicy": {"gpuSchedulerPolicy": "spread"}}},
        "scheduler.defaultSchedulerPolicy: hami-dra has no scheduler of its own",
    ),
    "its Service": (
        {"scheduler": {"service": {"type": "NodePort"}}},
        "scheduler.service.type: hami-dra has no scheduler",
    ),
    "a variable twice": (
        {"kubeletPlugin": {"containers": {"plugin": {"env": [{"name": "HAMI_DRIVER_ROOT", "value": "/x"}]}}}},
        "kubeletPlugin.containers.plugin.env: HAMI_DRIVER_ROOT is set by the chart already",
    ),
    "a variable of the webhook twice": (
        {"webhook": {"containers": {"webhook": {"env": [{"name": "HAMI_NAMESPACE", "value": "x"}]}}}},
        "webhook.containers.webhook.env: HAMI_NAMESPACE is set by the chart already",
    ),
    "a label by which pods are found": (
        {"kubeletPlugin": {"podLabels": {"app.kubernetes.io/name": "x"}}},
        "kubeletPlugin.podLabels: the label app.kubernetes.io/name is the chart's own",
    ),
    "a label by which helm finds its objects": (
        {"commonLabels": {"app.kubernetes.io/managed-by": "me"}},
        "commonLabels: the label app.kubernetes.io/managed-by is the chart's own",
    ),
    "any free port": ({"webhook": {"options": {"port": 0}}}, "webhook.options.port: 0 would be any free port"),
    "the root as a folder": (
        {"kubeletPlugin": {"cdiDirectoryPath": "/"}},
        "cdiDirectoryPath': '/' does not match pattern",
    ),
    "the root as a profile's folder": (
        {"nodeProfiles": {"a": {"nodeSelector": {"a": "b"}, "hamiDirectoryPath": "/"}}},
        "hamiDirectoryPath': '/' does not match pattern",
    ),
    "a section without anything": ({"webhook": None}, "missing property 'webhook'"),
    "a switch that is neither on nor off": ({"kubeletPlugin": {"hostPID": None}}, "missing property 'hostPID'"),
    "a name that is needed": ({"driverName": None}, "missing property 'driverName'"),
    "a token without TLS": (
        {"kubeletPlugin": {"metrics": {"tokenSecretName": "t"}}},
        "tokenSecretName needs tlsSecretName: without TLS the token could be read on its way",
    ),
    "monitors of nothing": (
        {"kubeletPlugin": {"metrics": {"enabled": False}}, "monitoring": {"hamiNames": True}},
        "kubeletPlugin.metrics.enabled is false, so there is nothing for monitoring to read",
    ),
    "no Prometheus operator": ({"monitoring": {"enabled": True}}, "this cluster has no monitoring.coreos.com/v1"),
    "no cert-manager": ({"webhook": {"tls": {"mode": "cert-manager"}}}, "this cluster has no cert-manager.io/v1"),
    "a certificate without its CA": (
        {"webhook": {"tls": {"mode": "secret", "secretName": "mine"}}},
        "set webhook.tls.secretName (with tls.crt and tls.key) and webhook.tls.caBundle (the CA, PEM)",
    ),
    "a certificate that isn't used": (
        {"webhook": {"tls": {"secretName": "mine"}}},
        "webhook.tls.secretName and webhook.tls.caBundle are for webhook.tls.mode=secret, and it is self-managed",
    ),
    "a budget that stops drains": (
        {"webhook": {"podDisruptionBudget": {"minAvailable": 2}}},
        "webhook.podDisruptionBudget.minAvailable is 2 of 2 replicas: no node with one of them could be drained",
    ),
    "one name for two resources": (
        {"resourceMem": "nvidia.com/gpu"},
        "webhook.resources: two of them have the same name",
    ),
    "profiles that overlap": (
        {"nodeProfiles": {"a": {"nodeSelector": {"kind": "x"}}, "b": {"nodeSelector": {"zone": "y"}}}},
        "nodeProfiles.a and nodeProfiles.b: a node could be in both. Give their nodeSelectors one label in common",
    ),
    "a profile outside of all": (
        {"kubeletPlugin": {"nodeSelector": {"gpu": "on"}}, "nodeProfiles": {"a": {"nodeSelector": {"gpu": "off"}}}},
        "nodeProfiles.a.nodeSelector wants gpu=off, and kubeletPlugin.nodeSelector, which counts for all, another value",
    ),
    "a profile without nodes": ({"nodeProfiles": {"a": {}}}, "missing property 'nodeSelector'"),
    "too many alternatives": (
        {"nodeProfiles": {f"p{i}": {"nodeSelector": {"p": f"{i}", "a": "1", "b": "1", "c": "1"}} for i in range(4)}},
        "their labels make more than 100 alternatives",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(case: str, chart: Chart) -> None:
    """Each in words that name the value."""
    values, sentence = REFUSED[case]
    assert sentence in chart.refusal(values)


def test_the_namespace_default(chart: Chart) -> None:
    """Nothing is installed among everybody's pods, whichever way it is named."""
    assert "the namespace is `default`" in chart.refusal(namespace="default")
    assert "the namespace is `default`" in chart.refusal({"namespaceOverride": "default"})
    assert "Install with `-n hami-system --create-namespace`" in chart.refusal(namespace="default")


def test_old_clusters(chart: Chart) -> None:
    """Before 1.35 nothing; 1.35 only by who says that the gate is on, and without what it drops."""
    assert "requires kubeVersion: >=1.35.0-0" in chart.refusal(kubernetes="1.34.9")
    assert "only with the feature gate DRAConsumableCapacity" in chart.refusal(kubernetes="1.35.4-eks-1")
    confirmed = {"confirm": {"consumableCapacityGate": True}}
    assert chart.objects(confirmed, kubernetes="1.35.4-eks-1") == chart.objects()
    extended = {**confirmed, "extendedResource": {"enabled": True}}
    assert "drops a DeviceClass's extendedResourceName" in chart.refusal(extended, kubernetes="1.35.4")
