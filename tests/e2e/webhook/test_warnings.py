"""What people read who apply a pod that would wait, or get something else than they think: all dry runs, with kubectl."""

import json
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.cluster import Cluster
from tests.e2e.conftest import clean
from tests.e2e.daemon import Daemon
from tests.e2e.webhook.conftest import serve
from tests.e2e.webhook.objects import gpu_pod, wanting
from tests.e2e.webhook.process import Webhook
from tests.waiting import wait_for

FROM_A_FILE = {"configMapKeyRef": {"name": "c", "key": "k"}}


@pytest.fixture(scope="module", autouse=True)
def published(session_daemon: Daemon, installed: Webhook, cluster: Cluster) -> Iterator[None]:
    """The node's GPUs, and a webhook that has seen them."""
    if not session_daemon.is_running:
        session_daemon.start()
    wait_for(
        "the webhook to see GPUs", lambda: "the most is" in str(told(cluster, gpu_pod("p", wanting(gpumem=999_999))))
    )
    yield
    clean(cluster, session_daemon)


def told(cluster: Cluster, made: Any, *words: str) -> list[str]:
    """The warnings that kubectl prints."""
    program = cluster.directory / "bin" / cluster.version / "kubectl"
    command: list[Any] = [program, "--kubeconfig", cluster.kubeconfig, "create", "--dry-run=server", "-f", "-", *words]
    done = subprocess.run(command, input=json.dumps(made), capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr
    return [line.removeprefix("Warning: ") for line in done.stderr.splitlines()]


def naming(*others: str, **amounts: Any) -> Any:
    """A container with amounts of ours and of others."""
    made = wanting(**amounts)
    made["resources"]["limits"] |= dict.fromkeys(others, "1")
    return made


def with_policy(**variable: Any) -> Any:
    """A container that says when its core limit holds."""
    return {**wanting(gpumem=3000, gpucores=30), "env": [{"name": "GPU_CORE_UTILIZATION_POLICY", **variable}]}


AFFINITY = {"matchExpressions": [{"key": "gpu", "operator": "In", "values": ["on"]}]}
REQUIRED = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [AFFINITY]}}


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (gpu_pod("p", wanting(gpumem=3000)), []),
        (
            gpu_pod("p", wanting(gpumem=3000), schedulerName="hami-scheduler"),
            ["spec.schedulerName: 'hami-scheduler'", "HAMI_REPLACE_SCHEDULER"],
        ),
        (gpu_pod("p", wanting(gpumem=3000), nodeSelector={"gpu": "on"}), ["spec.nodeSelector[gpu]", "leave it out"]),
        (gpu_pod("p", wanting(gpumem=3000), affinity={"nodeAffinity": REQUIRED}), ["nodeSelectorTerms[0]", "gpu=on"]),
        (
            gpu_pod("p", wanting(gpumem=3000), annotations={"hami.io/node-scheduler-policy": "binpack"}),
            ["metadata.annotations[hami.io/node-scheduler-policy] has no effect"],
        ),
        (
            gpu_pod("p", wanting(gpumem=3000), annotations={"hami.io/gpu-scheduler-policy": "spread"}),
            ["'spread' has no effect", "HAMI_GPU_ORDER"],
        ),
        (gpu_pod("p", wanting(gpumem=3000), annotations={"use-gpuuid": "GPU-1"}), ["the name is nvidia.com/use-gpuuuid"]),
        (gpu_pod("p", naming("nvidia.com/vgpu", gpumem=4000)), ["limits[nvidia.com/vgpu]", "--resource-count-name"]),
        (gpu_pod("p", naming("nvidia.com/gpucore", gpumem=4000)), ["write nvidia.com/gpucores"]),
        (gpu_pod("p", naming("nvidia.com/gpucore")), ["limits[nvidia.com/gpucore]", "write nvidia.com/gpucores"]),
        (gpu_pod("p", naming("nvidia.com/gpualloc")), ["--resource-count-name"]),
        (gpu_pod("p", naming("nvidia.com/mig-3g.20gb")), ["MIG is not served here"]),
        (gpu_pod("p", naming("volcano.sh/vgpu-number")), ["--resource-count-name"]),
        (
            gpu_pod("p", naming(), initContainers=[{**naming("nvidia.com/vgpu"), "name": "first"}]),
            ["initContainers[0]", "--resource-count-name"],
        ),
        (gpu_pod("p", naming("nvidia.com/hostdev")), []),
        (gpu_pod("p", naming("nvidia.com/vgpu"), labels={"hami.io/webhook": "ignore"}), []),
        (gpu_pod("p", wanting(gpumem=500000)), ["no GPU that is published now has 500000 MiB, the most is"]),
        (gpu_pod("p", wanting(gpu=9, gpumem=3000)), ["no node has 9 GPUs"]),
        (gpu_pod("p", wanting(gpumem=3000), annotations={"use-gpuuuid": "GPU-none"}), ["is 'GPU-none'", "waits"]),
        (gpu_pod("p", wanting(gpumem=3000), annotations={"use-gputype": "H900"}), ["is a 'H900'", "waits"]),
        (gpu_pod("p", wanting(gpumem=100)), ["100 MiB", "CUDA context"]),
        (gpu_pod("p", with_policy(valueFrom=FROM_A_FILE)), ["GPU_CORE_UTILIZATION_POLICY is ignored", "write its value"]),
        (gpu_pod("p", with_policy(value="DISABLE")), []),
    ],
)  # fmt: skip
def test_who_applies_a_pod_reads_what_will_not_be(
    cluster: Cluster, webhook: Webhook, made: Any, words: list[str]
) -> None:
    """One line says where, what becomes of it, and what to do; a pod of which all can be kept gets none."""
    lines = told(cluster, made)
    assert len(lines) == bool(words), lines
    assert all(word in line for line in lines for word in words), lines


def test_controllers_are_not_told(cluster: Cluster, webhook: Webhook) -> None:
    """Kubernetes' own controllers make pods of MIG users without us, and their logs stay empty; GPU pods come here as before."""
    mig = gpu_pod("p", naming("nvidia.com/mig-1g.5gb"))
    assert (
        told(
            cluster,
            mig,
            "--as",
            "system:serviceaccount:kube-system:replicaset-controller",
            "--as-group",
            "system:masters",
        )
        == []
    )
    assert len(told(cluster, mig)) == 1


@pytest.fixture
def away(webhook: Webhook, cluster: Cluster) -> Iterator[None]:
    """No webhook."""
    webhook.kill()
    yield
    serve(webhook, cluster)


def test_pods_that_only_look_like_ours_do_not_need_the_webhook(cluster: Cluster, away: None) -> None:
    """While it is away a pod of NVIDIA's device plugin is created, unlike one that names our resources."""
    assert told(cluster, gpu_pod("p", naming("nvidia.com/mig-1g.5gb"))) == []
