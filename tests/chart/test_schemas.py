"""What is rendered is what API servers take, by the schemas of each Kubernetes that the chart is for."""

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from hack.openapi_schemas import schemas
from tests.chart.rendering import CERT_MANAGER, MONITORING, OPENSHIFT, Chart
from tests.chart.values import RICH

OF_OTHERS = ("PodMonitor", "ServiceMonitor", "PrometheusRule", "Issuer", "Certificate", "SecurityContextConstraints")
"""Kinds of CRDs and OpenShift, whose schemas Kubernetes' module doesn't have."""


def conform(programs: Path, folder: Path, text: str) -> str:
    """What kubeconform says; nothing if all is well."""
    location = f"{folder}/{{{{.ResourceKind}}}}{{{{.KindSuffix}}}}.json"
    ended = subprocess.run(
        [programs / "kubeconform", "-strict", "-schema-location", location, "-skip", ",".join(OF_OTHERS)],
        input=text,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return ended.stdout + ended.stderr


@pytest.mark.parametrize("minor", ["1.35", "1.36", "1.37"])
def test_what_is_rendered_is_valid(minor: str, programs: Path, chart: Chart) -> None:
    """By default, and with many values at once; and what no API server would take is found."""
    (folder,) = Path(os.environ["SCHEMAS"]).glob(f"v{minor}.*")
    confirmed: dict[str, Any] = {"confirm": {"consumableCapacityGate": True}}
    old: dict[str, Any] = {"extendedResource": {"enabled": False}} if minor == "1.35" else {}
    apis = [CERT_MANAGER, MONITORING, OPENSHIFT]
    for values in (confirmed, {**RICH, **confirmed, **old}):
        text = chart.text(values, kubernetes=f"{minor}.0", apis=apis)
        assert conform(programs, folder, text) == ""
    wrong = text.replace("hostPID:", "hostPid:", 1)
    assert "additional properties 'hostPid' not allowed" in conform(programs, folder, wrong)


def test_a_schema_stands_alone_and_is_strict() -> None:
    """All types that a kind names come along; a field that is called as a keyword of schemas stays; types for maps stay open."""
    reference = {"allOf": [{"$ref": "#/components/schemas/Spec"}], "default": {}}
    thing = {
        "properties": {"apiVersion": {"type": "string"}, "kind": {"type": "string"}, "spec": reference},
        "x-kubernetes-group-version-kind": [{"group": "resource.k8s.io", "version": "v1", "kind": "Thing"}],
    }
    spec = {"properties": {"description": {"type": "string"}, "labels": {"additionalProperties": {"type": "string"}}}}
    ((name, schema),) = schemas({"components": {"schemas": {"Thing": thing, "Spec": spec, "Unused": spec}}})
    assert name == "thing-resource-v1.json"
    assert schema["definitions"].keys() == {"Thing", "Spec"}
    assert schema["definitions"]["Spec"]["additionalProperties"] is False
    assert schema["definitions"]["Spec"]["properties"].keys() == {"description", "labels"}
    assert schema["definitions"]["Spec"]["properties"]["labels"]["additionalProperties"] == {"type": "string"}
