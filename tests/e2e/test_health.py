"""GPUs that fail and come back, on a real cluster: who is told, where new pods go, and what becomes of those that run."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hami_kubeletplugin.api.names import GPU_CONDITION, GPU_CONDITION_ENDED
from tests.e2e.cluster import NODE, Cluster
from tests.e2e.conftest import clean
from tests.e2e.daemon import DRIVER, Daemon
from tests.e2e.manifests import Json, claim, container, pod, request
from tests.e2e.test_publish import published, slices
from tests.unit.gpu.fake_node import RECOVERY_ACTION, XID, FakeNode, lines_of_gpu
from tests.waiting import wait_for

ACTION = "gpu.hami.io/recovery-action"
FIRST, SECOND = (f"GPU-00000000-0000-0000-0000-{minor:012d}" for minor in range(2))
"""In PCI bus order; the scheduler fills the first one first."""


class Gpus:
    """Two GPUs of the node, of which the first one fails.

    Args:
        node: What NVML and sysfs say.
    """

    def __init__(self, node: FakeNode) -> None:
        self.node = node
        self.first()

    def first(self, *lines: str, action: int = 0, everywhere: tuple[str, ...] = (), there: bool = True) -> None:
        """Have this recovery action and lines of the first GPU from now on, or no such GPU; `everywhere` is about all."""
        gpus = [lines_of_gpu(0, f"field 230 {action}", *lines)] if there else []
        self.node.write(*everywhere, *gpus, lines_of_gpu(1, "field 230 0"))

    def reset_needed(self) -> None:
        """An Xid of the first one, which has to be reset."""
        self.first(action=1)
        self.node.happen(FIRST, XID, 79)
        self.node.happen(FIRST, RECOVERY_ACTION, 1)


def start(daemon: Daemon, *options: str) -> None:
    """Have the daemon run on its GPUs, which it asks often how they are."""
    if daemon.is_running:
        assert daemon.stop() == 0
    daemon.start("--health-poll", "0.5", *options)


@pytest.fixture
def gpus(session_daemon: Daemon, cluster: Cluster) -> Iterator[Gpus]:
    """The daemon runs on them."""
    folder = session_daemon.folder / "nvml"
    folder.mkdir()
    made = Gpus(FakeNode(folder))
    names = session_daemon.plugin_dir / "device-names.json"
    session_daemon.nvml = made.node
    try:
        start(session_daemon)
        wait_for("two GPUs", lambda: len(taints(cluster)) == 2)
        yield made
        made.first()
        clean(cluster, session_daemon)
    finally:
        if session_daemon.is_running:
            session_daemon.stop()
        session_daemon.nvml = None
        shutil.rmtree(folder)
        names.unlink(missing_ok=True)


def taints(cluster: Cluster) -> dict[str, dict[str, str]]:
    """Effects of the taints of each GPU, by UUID and key."""
    return {
        device["attributes"]["uuid"]["string"]: {t["key"]: t["effect"] for t in device.get("taints", ())}
        for device in published(cluster)["spec"].get("devices", ())
    }


def tainted(cluster: Cluster, **expected: str) -> bool:
    """Whether the first GPU has just these taints, by the last part of their keys, and the second none."""
    found = taints(cluster)
    wanted = {f"gpu.hami.io/{key.replace('_', '-')}": effect for key, effect in expected.items()}
    assert found == {FIRST: wanted, SECOND: {}}, found
    return True


def uses(name: str, uuid: str | None = None, **more: Any) -> tuple[Json, Json]:
    """A pod with a claim of 1000 MiB, on a certain GPU or any."""
    selector = uuid and f'device.attributes["{DRIVER}"].uuid == "{uuid}"'
    wanted = request(memory="1000Mi", selector=selector, **more)
    return claim(name, wanted), pod(name, container(claims=["gpu"]), claims={"gpu": name})


def gpu_of(cluster: Cluster, name: str) -> str:
    """UUID of the GPU that a claim got."""
    found = cluster.get("resourceclaim", name)
    assert found is not None
    (result,) = found["status"]["allocation"]["devices"]["results"]
    names = {d["name"]: d["attributes"]["uuid"]["string"] for d in published(cluster)["spec"]["devices"]}
    return str(names[result["device"]])


def says(cluster: Cluster, name: str, health: str, words: str = "") -> bool:
    """Whether the kubelet says this of the pod's GPU in its status."""
    found = cluster.get("pod", name)
    assert found is not None
    told = found["status"]["containerStatuses"][0].get("allocatedResourcesStatus", [])
    states = [resource for each in told for resource in each["resources"]]
    assert [state["health"] for state in states] == [health], told
    assert words in str(states), told
    return True


def events_of_node(cluster: Cluster, reason: str) -> list[str]:
    """What was told of the Node."""
    selector = f"involvedObject.kind=Node,involvedObject.name={NODE},reason={reason}"
    return [event["message"] for event in cluster.all("events", "default", "--field-selector", selector)]


def is_pending(cluster: Cluster, name: str) -> bool:
    """Whether the scheduler has found no GPU for a pod."""
    found = cluster.get("pod", name)
    conditions = found["status"].get("conditions", []) if found else []
    return any(each.get("reason") == "Unschedulable" for each in conditions)


def started(cluster: Cluster, name: str) -> str:
    """When a pod's container was started."""
    (found,) = cluster.running(name)
    return str(found["status"]["containerStatuses"][0]["state"]["running"]["startedAt"])


@pytest.mark.since("1.36")
def test_a_gpu_that_has_to_be_reset(gpus: Gpus, session_daemon: Daemon, cluster: Cluster) -> None:
    """It takes no new pods, those that run go on and are told; once it is reset all is as before, without any restart."""
    cluster.apply(*uses("old"))
    before = started(cluster, "old")
    assert gpu_of(cluster, "old") == FIRST
    wait_for("the GPU to be healthy", lambda: says(cluster, "old", "Healthy"))
    gpus.reset_needed()
    wait_for("the taint", lambda: tainted(cluster, recovery_action="NoSchedule"))
    cluster.apply(*uses("new"), *uses("waits", FIRST))
    cluster.running("new")
    assert gpu_of(cluster, "new") == SECOND
    wait_for("a pod that waits", lambda: is_pending(cluster, "waits"))
    wait_for("the pod's status", lambda: says(cluster, "old", "Unhealthy", "reset"))
    assert says(cluster, "new", "Healthy")
    assert started(cluster, "old") == before
    (told,) = wait_for("the Event of the pod", lambda: cluster.events("old", GPU_CONDITION))
    assert "recovery-action=gpu-reset" in told
    assert cluster.events("new", GPU_CONDITION) == []
    wait_for("the Event of the Node", lambda: told in events_of_node(cluster, GPU_CONDITION))
    assert "recovery-action" in cluster.kubectl("describe", "node", NODE)
    shown = json.loads(session_daemon.devices("-o", "json"))
    assert [[t["key"] for t in device.get("taints", ())] for device in shown] == [[ACTION], []]
    assert "recovery-action=gpu-reset" in session_daemon.devices()

    gpus.first()
    wait_for("the taint to go", lambda: tainted(cluster))
    cluster.running("waits")
    assert gpu_of(cluster, "waits") == FIRST
    wait_for("the pod's status", lambda: says(cluster, "old", "Healthy"))
    wait_for("the Event of the end", lambda: cluster.events("old", GPU_CONDITION_ENDED))
    assert started(cluster, "old") == before


@pytest.mark.since("1.36")
def test_a_restart_of_the_daemon_keeps_the_taint(gpus: Gpus, session_daemon: Daemon, cluster: Cluster) -> None:
    """The taint and its time stay as they are, without a moment in which the GPU would take pods; Events are not repeated."""
    cluster.apply(*uses("old"))
    cluster.running("old")
    gpus.reset_needed()
    wait_for("the taint", lambda: tainted(cluster, recovery_action="NoSchedule"))
    wait_for("the Event of the pod", lambda: cluster.events("old", GPU_CONDITION))
    before = published(cluster)
    start(session_daemon)
    polled = len(gpus.node.calls())
    wait_for("polls of the new one", lambda: len(gpus.node.calls()) > polled + 100)
    wait_for("the pod's status", lambda: says(cluster, "old", "Unhealthy", "reset"))
    after = published(cluster)
    assert after["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]
    assert len(cluster.events("old", GPU_CONDITION)) == 1


@pytest.mark.since("1.36")
def test_pods_are_evicted_where_that_is_wanted(gpus: Gpus, session_daemon: Daemon, cluster: Cluster) -> None:
    """With NoExecute the pods of the GPU end, but for those that tolerate it; other GPUs' go on."""
    start(session_daemon, "--taints", "recovery-action=NoExecute")
    tolerates = {"tolerations": [{"key": ACTION, "operator": "Exists", "effect": "NoExecute"}]}
    cluster.apply(*uses("ends", FIRST), *uses("stays", FIRST, **tolerates), *uses("other", SECOND))
    cluster.running("ends", "stays", "other")
    gpus.reset_needed()
    wait_for("the taint", lambda: tainted(cluster, recovery_action="NoExecute"))
    wait_for("the pod to be evicted", lambda: cluster.get("pod", "ends") is None)
    assert cluster.events("ends", "DeviceTaintManagerEviction")
    cluster.running("stays", "other")


@pytest.mark.since("1.36")
def test_a_gpu_that_is_lost_while_its_container_runs(gpus: Gpus, cluster: Cluster) -> None:
    """Its device stays, tainted; its pod goes on and is told; when it is found again, it is as before."""
    cluster.apply(*uses("old"))
    before = started(cluster, "old")
    gpus.first(there=False)
    wait_for("the taint", lambda: tainted(cluster, lost="NoSchedule"))
    wait_for("the pod's status", lambda: says(cluster, "old", "Unhealthy"))
    gpus.first()
    wait_for("the taint to go", lambda: tainted(cluster))
    wait_for("the pod's status", lambda: says(cluster, "old", "Healthy"))
    assert started(cluster, "old") == before


@pytest.mark.since("1.36")
def test_a_driver_that_hangs(gpus: Gpus, tmp_path: Path, cluster: Cluster) -> None:
    """Nothing is known of the GPUs then: they are not called healthy and take nothing new, until the driver answers again."""
    cluster.apply(*uses("old"))
    cluster.running("old")
    wait_for("the GPU to be healthy", lambda: says(cluster, "old", "Healthy"))
    hangs = tmp_path / "hangs"
    hangs.touch()
    gpus.first(f"hang nvmlDeviceGetMemoryInfo {hangs}")
    try:
        wait_for(
            "the taints",
            lambda: all("gpu.hami.io/not-answering" in each for each in taints(cluster).values()),
            timeout=100,
        )
        wait_for("the pod's status", lambda: says(cluster, "old", "Unknown", "doesn't answer"))
        cluster.apply(*uses("waits"))
        wait_for("a pod that waits", lambda: is_pending(cluster, "waits"))
    finally:
        hangs.unlink()
        gpus.first()
    wait_for("the taints to go", lambda: tainted(cluster))
    cluster.running("waits")
    wait_for("the pod's status", lambda: says(cluster, "old", "Healthy"))


def test_a_driver_that_is_loaded_anew_while_a_pod_starts(gpus: Gpus, session_daemon: Daemon, cluster: Cluster) -> None:
    """The prepare waits for the driver, and the pod starts on the GPU that it was given."""
    cluster.control("stop", "kubelet")
    try:
        cluster.apply(*uses("starts"))
        wait_for("the claim to be allocated", lambda: gpu_of(cluster, "starts") == FIRST)
        gpus.first(everywhere=("fail nvmlInitWithFlags 9",))
        wait_for("the pool to go", lambda: not slices(cluster))
        before = heard_of_us(session_daemon)
    finally:
        cluster.control("start", "kubelet")
    wait_for("the kubelet to know the driver again", lambda: heard_of_us(session_daemon) > before)
    gpus.first(everywhere=("load 2",))
    cluster.running("starts")
    wait_for("two healthy GPUs", lambda: tainted(cluster))
    assert cluster.events("starts", "FailedPrepareDynamicResources") == []


def heard_of_us(daemon: Daemon) -> int:
    """How often the kubelet has registered the driver."""
    return len([entry for entry in daemon.log() if entry["event"] == "registered with the kubelet"])
