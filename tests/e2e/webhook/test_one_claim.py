"""One claim where HAMi counts one need: init containers before others, and amounts beside the claim that they made.

On a node with one GPU of 24 GiB, so that a second claim would have no room.
"""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from hami_kubeletplugin.api.webhook_settings import Conversion
from hami_kubeletplugin.webhook.offline.documents import convert_files
from tests.e2e.cluster import NAMESPACE, Cluster
from tests.e2e.conftest import clean
from tests.e2e.daemon import Daemon
from tests.e2e.inside import look, read
from tests.e2e.manifests import LOOK
from tests.e2e.webhook.objects import gpu_pod, pod_template, results, wanting
from tests.e2e.webhook.process import Webhook
from tests.e2e.webhook.test_pods import uuids
from tests.waiting import wait_for

NODE = """\
gpus:
  - {name: NVIDIA A10, brand: Nvidia, architecture: Ampere, memoryMiB: 24576}
"""


@pytest.fixture(scope="module")
def one_gpu(
    session_daemon: Daemon, installed: Webhook, cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """Another node."""
    file = tmp_path_factory.mktemp("node") / "node.yaml"
    file.write_text(NODE)
    if session_daemon.is_running:
        assert session_daemon.stop() == 0
    session_daemon.start("--simulate", str(file))
    wait_for("the only GPU", lambda: len(uuids(cluster)) == 1)
    yield
    clean(cluster, session_daemon)
    assert session_daemon.stop() == 0


@pytest.fixture(autouse=True)
def cleaned(one_gpu: None, webhook: Webhook, session_daemon: Daemon, cluster: Cluster) -> Iterator[None]:
    """The GPU is free again."""
    yield
    clean(cluster, session_daemon, "deployments.apps")


def init(name: str = "i", **amounts: Any) -> dict[str, Any]:
    """An init container that tells what it has."""
    return {**wanting(name, **amounts), "command": ["sh", "-c", LOOK]}


def test_the_larger_of_both(cluster: Cluster) -> None:
    """20 GiB for the init container and 10 for the other fit on 24: both have 20, one after the other."""
    cluster.apply(gpu_pod("p", wanting(gpu=1, gpumem=10240), initContainers=[init(gpu=1, gpumem=20480)]))
    [running] = cluster.running("p")
    assert len(running["spec"]["resourceClaims"]) == 1
    assert read(cluster.logs("p", "i")).limits == [(20480, 0)]
    assert look(cluster, "p").limits == [(20480, 0)]


def test_a_share_before_a_whole_gpu(cluster: Cluster) -> None:
    """The whole GPU of the container is there for its init container, too."""
    cluster.apply(gpu_pod("q", wanting(gpu=1), initContainers=[init(gpu=1, gpumem=1000)]))
    cluster.running("q")
    [[result]] = results(cluster, "q").values()
    assert result["consumedCapacity"] == {"memory": "24Gi", "cores": "100", "shares": "10k"}


def test_compute_of_an_init_container(cluster: Cluster) -> None:
    """It is set aside, and no limit for the container, which has none; one that has a limit keeps it."""
    cluster.apply(
        gpu_pod("free", wanting(gpu=1, gpumem=1000), initContainers=[init(gpu=1, gpumem=1000, gpucores=30)]),
        gpu_pod("bound", wanting(gpu=1, gpumem=1000, gpucores=40), initContainers=[init(gpu=1, gpumem=1000)]),
    )
    cluster.running("free", "bound")
    consumed = {name: next(iter(results(cluster, name).values()))[0]["consumedCapacity"] for name in ("free", "bound")}
    assert (consumed["free"]["cores"], consumed["bound"]["cores"]) == ("30", "40")
    reports = {name: look(cluster, name) for name in consumed}
    assert {name: inside.report["policy"] for name, inside in reports.items()} == {
        "free": "disable",
        "bound": "default",
    }
    assert reports["bound"].limits == [(1000, 40)]


def test_converted_output_over_what_was_created(cluster: Cluster) -> None:
    """`kubectl apply` of it leaves the limits in the object; the pods have one claim all the same, and run."""
    made = gpu_pod("d", wanting(gpu=1, gpumem=10240), initContainers=[init(gpu=1, gpumem=20480)])
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "d", "namespace": NAMESPACE},
        "spec": {
            "strategy": {"type": "Recreate"},
            "selector": {"matchLabels": {"app": "d"}},
            "template": pod_template(made, "d"),
        },
    }
    cluster.kubectl("create", "-f", "-", stdin=json.dumps(deployment))
    converted = convert_files({"d": json.dumps(deployment)}, Conversion(), lambda: ()).text
    cluster.kubectl("apply", "-f", "-", stdin=converted)
    applied = cluster.get("deployment", "d")
    assert applied is not None
    [resources] = [each["resources"] for each in applied["spec"]["template"]["spec"]["containers"]]
    assert (resources["claims"], resources["limits"]["nvidia.com/gpumem"]) == ([{"name": "gpu-main"}], "10240")

    def rolled_out() -> Any:
        found = [
            pod for pod in cluster.all("pods", NAMESPACE, "-l", "app=d") if "deletionTimestamp" not in pod["metadata"]
        ]
        current = cluster.get("deployment", "d")
        assert current is not None
        status = current["status"]
        assert status.get("observedGeneration") == current["metadata"]["generation"], status
        assert (status.get("updatedReplicas"), status.get("availableReplicas"), len(found)) == (1, 1, 1), status
        return found[0]

    pod = wait_for("the converted pod to run", rolled_out, timeout=120)
    assert [entry["name"] for entry in pod["spec"]["resourceClaims"]] == ["gpu-main"]
    assert "limits" not in pod["spec"]["containers"][0]["resources"]
    assert look(cluster, pod["metadata"]["name"]).limits == [(20480, 0)]
