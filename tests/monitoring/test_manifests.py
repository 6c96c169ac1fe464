"""The monitors find what daemonset.yaml and webhook.yaml make, and give nobody a right."""

from typing import Any

import yaml

from tests import REPOSITORY
from tests.monitoring.reading import MONITORING


def objects(path: str) -> list[dict[str, Any]]:
    """All of a manifest."""
    return [*yaml.safe_load_all((REPOSITORY / path).read_text())]


def one(path: str, kind: str) -> dict[str, Any]:
    """The only object of a kind, of ours."""
    (found,) = (item for item in objects(path) if item["kind"] == kind)
    return found


POD = one("daemonset.yaml", "DaemonSet")["spec"]["template"]
(PORT,) = POD["spec"]["containers"][0]["ports"]


def test_nothing_gives_a_right() -> None:
    """Prometheus needs none but to reach the ports; nothing here has a role, a Secret or a port on nodes."""
    files = sorted(path.name for path in MONITORING.glob("*.yaml"))
    kinds = {item["kind"] for name in files for item in objects(f"deploy/monitoring/{name}")}
    assert kinds == {"Kustomization", "PodMonitor", "ServiceMonitor", "PrometheusRule", "Service"}
    service = one("deploy/monitoring/hami-names.yaml", "Service")["spec"]
    assert service["clusterIP"] == "None"
    assert "type" not in service


def test_kustomize_takes_one_way_to_the_daemons() -> None:
    """With both each GPU would be counted twice."""
    resources = one("deploy/monitoring/kustomization.yaml", "Kustomization")["resources"]
    assert all((MONITORING / name).is_file() for name in resources)
    assert "podmonitor.yaml" in resources
    assert "hami-names.yaml" not in resources


def test_the_podmonitor_finds_the_daemons() -> None:
    """By the pods' labels and their port's name; whose pod uses a GPU is not overwritten by whose daemon it is."""
    monitor = one("deploy/monitoring/podmonitor.yaml", "PodMonitor")["spec"]
    assert monitor["selector"]["matchLabels"].items() <= POD["metadata"]["labels"].items()
    (endpoint,) = monitor["podMetricsEndpoints"]
    assert endpoint["port"] == PORT["name"]
    assert endpoint["honorLabels"] is True


def test_the_servicemonitor_finds_the_webhook() -> None:
    """By the Service's labels and its port's name."""
    monitor = one("deploy/monitoring/servicemonitor.yaml", "ServiceMonitor")["spec"]
    service = one("webhook.yaml", "Service")
    assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert [endpoint["port"] for endpoint in monitor["endpoints"]] == [
        port["name"] for port in service["spec"]["ports"]
    ]


def test_by_hamis_names_others_find_the_daemons() -> None:
    """The label and the port's name that HAMi-WebUI 1.2 and HAMi 2.10 look for, on a Service of the daemons' pods."""
    service = one("deploy/monitoring/hami-names.yaml", "Service")
    assert service["metadata"]["labels"]["app.kubernetes.io/component"] == "hami-device-plugin"
    assert service["spec"]["selector"].items() <= POD["metadata"]["labels"].items()
    (port,) = service["spec"]["ports"]
    assert (port["name"], port["targetPort"]) == ("monitorport", PORT["name"])
    assert port["port"] == PORT["containerPort"]
