"""Pods that HAMi's users have: applied as they are, they run with GPUs that DRA allocated, limited to what they ask for."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.cluster import NAMESPACE, Cluster, KubectlFailed
from tests.e2e.conftest import clean
from tests.e2e.daemon import Daemon
from tests.e2e.inside import look, read
from tests.e2e.manifests import LOOK, claim, minor, request
from tests.e2e.test_publish import published
from tests.e2e.webhook.objects import devices, gpu_pod, results, templates, wanting
from tests.e2e.webhook.process import Webhook
from tests.waiting import wait_for

T4, L40S, OTHER_L40S, OTHER_T4 = "hami-gpu-2", "hami-gpu-3", "hami-gpu-1", "hami-gpu-0"
"""The simulated node `mixed`, in the order in which its GPUs are filled."""
MIB = {T4: 15360, L40S: 46068, OTHER_L40S: 46068, OTHER_T4: 15360}
HOSTILE = {
    "use-gpuuuid": '"] || true || "" in ["',
    "nouse-gpuuuid": "\\,\",',\n,\u2028,\U0001f600,\x01",
    "nouse-gputype": '") || true || ("", `, """, r", \\u0022, ${x}, {{.x}}, ' + "x" * 1024,
}


def uuids(cluster: Cluster) -> dict[str, str]:
    """Device to UUID."""
    found = published(cluster)["spec"]["devices"]
    return {device["name"]: device["attributes"]["uuid"]["string"] for device in found}


def test_the_whole_story(daemon: Daemon, cluster: Cluster, webhook: Webhook) -> None:
    """`nvidia.com/gpu: 1`, `gpumem: 4000`: the pod gets a claim and runs, limited to 4000 MiB; deleted, nothing is left."""
    cluster.apply(gpu_pod("p", wanting(gpu=1, gpumem=4000)))
    [running] = cluster.running("p")
    assert "limits" not in running["spec"]["containers"][0]["resources"]
    [entry] = running["spec"]["resourceClaims"]
    assert list(templates(cluster)) == [entry["resourceClaimTemplateName"]]
    [result] = results(cluster, "p")[entry["name"]]
    assert result["consumedCapacity"] == {"memory": "4000Mi", "cores": "0", "shares": "1k"}
    inside = look(cluster, "p")
    assert inside.limits == [(4000, 0)]
    assert inside.report["consistent"] == "1"
    cluster.delete("pod", "p")
    wait_for("the claim to go", lambda: not cluster.all("resourceclaims"))
    wait_for("the node to be clean", lambda: not any(daemon.traces().values()))


def test_the_same_manifest_again(daemon: Daemon, cluster: Cluster, webhook: Webhook) -> None:
    """`kubectl apply` of a pod that runs changes nothing, and labels can be changed; other amounts are refused, with advice."""
    manifest = gpu_pod("p", wanting(gpu=1, gpumem=4000))
    cluster.apply(manifest)
    [before] = cluster.running("p")
    cluster.apply(manifest)
    manifest["metadata"]["labels"]["team"] = "a"
    cluster.apply(manifest)
    after = cluster.get("pod", "p")
    assert after is not None
    assert after["metadata"]["labels"]["team"] == "a"
    assert after["spec"] == before["spec"]
    with pytest.raises(KubectlFailed, match="the GPUs of a pod can't change"):
        cluster.apply(gpu_pod("p", wanting(gpu=1, gpumem=8000)))


@pytest.fixture(scope="module")
def pods(session_daemon: Daemon, installed: Webhook, cluster: Cluster) -> Iterator[None]:
    """The pods of all tests below, which share the node's four GPUs."""
    if not session_daemon.is_running:
        session_daemon.start()
    of = uuids(cluster)
    script = {"script": LOOK}
    stages: dict[str, Any] = {
        "initContainers": [
            {**wanting("first", gpu=1, gpumem=1000), "command": ["sh", "-c", LOOK]},
            {**wanting("beside", gpu=1, gpumem=500, **script), "restartPolicy": "Always"},
        ]
    }
    own = claim("own", request(memory="700Mi", selector=minor(1)))
    policy = [{"name": "GPU_CORE_UTILIZATION_POLICY", "value": "FORCE"}, {"name": "LIBCUDA_LOG_LEVEL", "value": "3"}]
    cluster.apply(
        own,
        gpu_pod("two", wanting(gpu=2, gpumem=2000)),
        gpu_pod("half", wanting(gpu=1, gpumem_percentage=50)),
        gpu_pod("quarter", wanting(gpumem_percentage=25), annotations={"use-gputype": "l40"}),
        gpu_pod("cores", wanting(gpu=1, gpumem=1000, gpucores=30)),
        gpu_pod("stages", wanting("last", gpu=1, gpumem=1000), **stages),
        gpu_pod("type", wanting(gpu=1, gpumem=1000), annotations={"use-gputype": "a100, NVIDIA-NVIDIA L40s,"}),
        gpu_pod("not-type", wanting(gpu=1, gpumem=1000), annotations={"nouse-gputype": "tesla t4"}),
        gpu_pod("uuid", wanting(gpu=1, gpumem=1000), annotations={"use-gpuuuid": f"GPU-x, {of[OTHER_L40S]}"}),
        gpu_pod("not-uuid", wanting(gpu=1, gpumem=1000), annotations={"nouse-gpuuuid": f"{of[T4]},{of[L40S]}"}),
        gpu_pod("no-such-type", wanting(gpu=1, gpumem=1000), annotations={"use-gputype": "H100"}),
        gpu_pod("hostile", wanting(gpu=1, gpumem=1000), annotations=HOSTILE),
        gpu_pod("config", {**wanting(gpu=1, gpumem=1000, gpucores=50, priority=0), "env": policy}),
        gpu_pod("whole", wanting(gpu=1), annotations={"use-gpuuuid": of[OTHER_T4]}),
        gpu_pod("numa", wanting(gpu=2, gpumem=100), annotations={"numa-bind": "true", "nouse-gpuuuid": of[OTHER_T4]}),
        gpu_pod(
            "own",
            {**wanting(), "resources": {"limits": {"nvidia.com/gpumem": 1000}, "claims": [{"name": "mine"}]}},
            annotations={"use-gpuuuid": of[L40S]},
            resourceClaims=[{"name": "mine", "resourceClaimName": "own"}],
        ),
    )
    cluster.running("whole")
    cluster.apply(gpu_pod("beside-whole", wanting(gpu=1, gpumem=1), annotations={"use-gpuuuid": of[OTHER_T4]}))
    generated = gpu_pod("x", wanting(gpu=1, gpumem=1000), labels={"is": "generated"})
    generated["metadata"] = {**generated["metadata"], "generateName": "generated-"}
    del generated["metadata"]["name"]
    cluster.kubectl("create", "-f", "-", stdin=json.dumps(generated))
    yield
    clean(cluster, session_daemon)


def test_two_gpus(cluster: Cluster, pods: None) -> None:
    """`nvidia.com/gpu: 2` gets two different GPUs, each limited."""
    cluster.running("two")
    assert len(set(devices(cluster, "two"))) == 2
    inside = look(cluster, "two")
    assert inside.limits == [(2000, 0), (2000, 0)]
    assert inside.env["CUDA_VISIBLE_DEVICES"] == "0,1"


@pytest.mark.parametrize(("name", "percent"), [("half", 50), ("quarter", 25)])
def test_percentage_of_two_kinds_of_gpu(cluster: Cluster, pods: None, name: str, percent: int) -> None:
    """`gpumem-percentage` is of the GPU that the pod got, whichever kind it is."""
    cluster.running(name)
    [device] = devices(cluster, name)
    assert look(cluster, name).limits == [(MIB[device] * percent // 100, 0)]
    assert name == "half" or device in {L40S, OTHER_L40S}


def test_cores(cluster: Cluster, pods: None) -> None:
    """`gpucores: 30` limits the compute to 30 percent."""
    cluster.running("cores")
    assert look(cluster, "cores").limits == [(1000, 30)]


def test_init_container_and_sidecar(cluster: Cluster, pods: None) -> None:
    """Init containers and sidecars are limited too; one that ends before the next one of the same need costs nothing more."""
    [running] = cluster.running("stages")
    assert read(cluster.logs("stages", "first")).limits == [(1000, 0)]
    assert look(cluster, "stages", "beside").limits == [(500, 0)]
    assert look(cluster, "stages", "last").limits == [(1000, 0)]
    assert len(running["spec"]["resourceClaims"]) == 2


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("type", {L40S, OTHER_L40S}),
        ("not-type", {L40S, OTHER_L40S}),
        ("uuid", {OTHER_L40S}),
        ("not-uuid", {OTHER_L40S, OTHER_T4}),
        ("whole", {OTHER_T4}),
    ],
)
def test_annotations_choose_the_gpu(cluster: Cluster, pods: None, name: str, expected: set[str]) -> None:
    """Lists of types and UUIDs, wanted and not wanted, are followed."""
    cluster.running(name)
    [device] = devices(cluster, name)
    assert device in expected


@pytest.mark.parametrize("name", ["no-such-type", "hostile", "beside-whole"])
def test_what_no_gpu_satisfies_waits(cluster: Cluster, pods: None, name: str) -> None:
    """A pod that no GPU suits, whatever is in its annotations, waits and says so; the others are scheduled all the same."""
    told = wait_for(f"the event of {name}", lambda: cluster.events(name, "FailedScheduling"))
    assert all("cannot allocate all claims" in message for message in told), told


def test_whole_gpu_is_exclusive(cluster: Cluster, pods: None) -> None:
    """`nvidia.com/gpu: 1` alone is the whole GPU: all of its memory, and all of its sharing slots."""
    cluster.running("whole")
    [[result]] = results(cluster, "whole").values()
    assert result["consumedCapacity"] == {"memory": "15Gi", "cores": "100", "shares": "10k"}


def test_whole_gpu_has_nothing_between_it_and_cuda(cluster: Cluster, pods: None, session_daemon: Daemon) -> None:
    """Its container has the numbering and the claim's name, and nothing of HAMi-core; nobody calls that a missing limit."""
    cluster.running("whole")
    inside = look(cluster, "whole")
    assert (inside.preload, inside.report) == ("", {})
    assert not [point for point in inside.mounts if "vgpu" in point or "cudevshr" in point or "preload" in point]
    ours = {name: inside.env[name] for name in inside.env if name.startswith(("CUDA", "GPU_", "LIBCUDA"))}
    assert ours == {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "0"}
    assert inside.env["HAMI_DRA_CLAIM"].startswith("e2e/whole-gpu-main-")
    [row] = [line for line in session_daemon.claims().splitlines() if line.startswith(inside.env["HAMI_DRA_CLAIM"])]
    assert "15360Mi" in row
    assert "whole GPU" in row
    assert not cluster.events("whole", "GpuLimitNotInForce")


def test_gpus_of_one_numa_node(cluster: Cluster, pods: None) -> None:
    """`numa-bind`: both GPUs are on the same NUMA node."""
    cluster.running("numa")
    assert set(devices(cluster, "numa")) == {T4, L40S}


def test_priority_and_policy(cluster: Cluster, pods: None) -> None:
    """`nvidia.com/priority` and the variables for core policy and log level reach the library through the claim."""
    cluster.running("config")
    report = look(cluster, "config").report
    assert (report["policy"], report["priority"], report["log_level"]) == ("force", "0", "3")


def test_the_library_is_silent(cluster: Cluster, pods: None) -> None:
    """Where nobody says how much it shall print, it prints errors only."""
    cluster.running("cores")
    assert look(cluster, "cores").report["log_level"] == "1"


def test_claims_of_ones_own_stay(cluster: Cluster, pods: None) -> None:
    """A pod that has a claim already keeps it, and the container gets both."""
    cluster.running("own")
    assert devices(cluster, "own") == [L40S]
    assert look(cluster, "own").limits == [(1000, 0), (700, 0)]


def test_generated_names(cluster: Cluster, pods: None) -> None:
    """A pod with generateName is converted like any other."""
    [name] = [pod["metadata"]["name"] for pod in cluster.all("pods", NAMESPACE, "-l", "is=generated")]
    assert name.startswith("generated-")
    cluster.running(name)
    assert look(cluster, name).limits == [(1000, 0)]
