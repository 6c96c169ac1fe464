"""Pods as HAMi's users write them."""

import json
from collections.abc import Mapping
from typing import Any

from tests.e2e.cluster import NAMESPACE, Cluster
from tests.e2e.manifests import container, pod

Json = dict[str, Any]


def wanting(name: str = "main", *, script: str = "", **amounts: int | str) -> Json:
    """A container with limits: `gpu=1, gpumem=4000, gpumem_percentage=50, gpucores=30, priority=0`."""
    limits = {f"nvidia.com/{key.replace('_', '-')}": str(value) for key, value in amounts.items()}
    return {**container(name, script=script), "resources": {"limits": limits}}


def gpu_pod(
    name: str,
    *containers: Json,
    annotations: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    namespace: str = NAMESPACE,
    **spec: Any,
) -> Json:
    """A pod of such containers; annotations without a domain are HAMi's."""
    made = pod(name, *containers, **spec)
    named = {key if "/" in key else f"nvidia.com/{key}": value for key, value in (annotations or {}).items()}
    made["metadata"] |= {"annotations": named, "labels": dict(labels or {}), "namespace": namespace}
    return made


def pod_template(made: Json, app: str) -> Json:
    """A pod as the template of a workload, with the label app."""
    metadata = {"annotations": made["metadata"]["annotations"], "labels": {"app": app}}
    return {"metadata": metadata, "spec": made["spec"]}


def dry_run(cluster: Cluster, made: Json) -> Json:
    """What the API server would keep of an object."""
    text = cluster.kubectl("create", "--dry-run=server", "-o", "json", "-f", "-", stdin=json.dumps(made))
    answer: Json = json.loads(text)
    return answer


def templates(cluster: Cluster, namespace: str = NAMESPACE) -> dict[str, Json]:
    """The namespace's ResourceClaimTemplates by name."""
    return {found["metadata"]["name"]: found for found in cluster.all("resourceclaimtemplates", namespace)}


def results(cluster: Cluster, name: str) -> dict[str, list[Json]]:
    """What was allocated to a pod, by the pod's names for its claims."""
    found = cluster.get("pod", name)
    assert found is not None, f"no pod {name}"
    made = {}
    for status in found["status"].get("resourceClaimStatuses", []):
        claim = cluster.get("resourceclaim", status["resourceClaimName"])
        assert claim is not None, status
        made[status["name"]] = claim["status"]["allocation"]["devices"]["results"]
    return made


def devices(cluster: Cluster, name: str) -> list[str]:
    """The devices that a pod has, in the order of its claims and their requests."""
    return [result["device"] for claim in results(cluster, name).values() for result in claim]
