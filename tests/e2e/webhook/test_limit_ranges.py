"""LimitRanges that name our resources, which Kubernetes fills in before the webhook is asked, and once more after it."""

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.cluster import NAMESPACE, Cluster, KubectlFailed
from tests.e2e.daemon import Daemon
from tests.e2e.inside import look
from tests.e2e.webhook.objects import dry_run, gpu_pod, wanting
from tests.e2e.webhook.process import Webhook
from tests.waiting import wait_for

NAME = "e2e-gpus"
GPU, MEMORY = "nvidia.com/gpu", "nvidia.com/gpumem"


@pytest.fixture
def limit(cluster: Cluster) -> Iterator[Any]:
    """Sets the namespace's LimitRange, and waits until the API server goes by it; in the end there is none."""
    numbers = itertools.count(1000)

    def put(kind: str, **item: Any) -> None:
        # A default of another size each time: by it the pods show which LimitRange the API server knows of.
        memory = f"{next(numbers)}Mi"
        items: dict[str, Any] = {"Container": {}, kind: item}
        items["Container"] = {
            **items["Container"],
            "default": {**items["Container"].get("default", {}), "memory": memory},
        }
        limits = [{"type": each, **said} for each, said in items.items()]
        metadata = {"name": NAME, "namespace": NAMESPACE}
        cluster.apply({"apiVersion": "v1", "kind": "LimitRange", "metadata": metadata, "spec": {"limits": limits}})

        def heeded() -> bool:
            try:
                found = dry_run(cluster, gpu_pod("plain", wanting(gpu=1)))["spec"]["containers"][0]["resources"]
            except KubectlFailed:
                return True
            return bool(found.get("limits", {}).get("memory") == memory)

        wait_for("the LimitRange to be heeded", heeded)

    yield put
    cluster.delete("limitrange", NAME)


def test_a_maximum_for_containers(daemon: Daemon, cluster: Cluster, webhook: Webhook, limit: Any) -> None:
    """Pods run with what they ask for, and once: Kubernetes' maximum, which is a default as well, is met by a limit of zero."""
    limit("Container", max={GPU: "2"})
    cluster.apply(gpu_pod("p", wanting(gpu=1, gpumem=4000)))
    [running] = cluster.running("p")
    assert len(running["spec"]["resourceClaims"]) == 1
    assert running["spec"]["containers"][0]["resources"]["limits"][GPU] == "0"
    assert look(cluster, "p").limits == [(4000, 0)]
    cluster.delete("pod", "p")


def test_defaults(daemon: Daemon, cluster: Cluster, webhook: Webhook, limit: Any) -> None:
    """A default is for who names nothing, and gives nobody a second claim."""
    limit("Container", default={MEMORY: "4k"})
    for made in (gpu_pod("p", wanting(gpu=1, gpumem=100)), gpu_pod("p", wanting())):
        spec = dry_run(cluster, made)["spec"]
        assert [claim["name"] for claim in spec["resourceClaims"]] == ["gpu-main"]
        assert spec["containers"][0]["resources"]["claims"] == [{"name": "gpu-main"}]


@pytest.mark.parametrize(
    ("kind", "item", "message"),
    [
        ("Pod", {"max": {GPU: "2"}}, "maximum nvidia.com/gpu usage per Pod is 2.  No limit is specified"),
        ("Container", {"min": {GPU: "1"}}, "minimum nvidia.com/gpu usage per Container is 1.  No request is specified"),
        ("Container", {"maxLimitRequestRatio": {GPU: "1"}}, "but no request is specified or request is 0"),
    ],
)
def test_what_refuses_all_pods(
    daemon: Daemon, cluster: Cluster, webhook: Webhook, limit: Any, kind: str, item: Any, message: str
) -> None:
    """As docs/migrating-from-hami.md says: such LimitRanges have to go."""
    limit(kind, **item)
    with pytest.raises(KubectlFailed, match=message):
        dry_run(cluster, gpu_pod("p", wanting(gpu=1, gpumem=4000)))
