"""What the doctor says of the API server, our rights, slices and others who give out the GPUs."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from hami_kubeletplugin.api.errors import ApiForbidden, ApiNotFound, ApiUnavailable
from hami_kubeletplugin.api.names import DRIVER
from hami_kubeletplugin.api.settings import Sharing
from hami_kubeletplugin.doctor import cluster, slices
from hami_kubeletplugin.doctor.cluster import RIGHTS, STATUS_RIGHTS, Answers, Right, skewed
from hami_kubeletplugin.findings import Level
from hami_kubeletplugin.publish.devices import devices
from tests import REPOSITORY
from tests.unit.claims.objects import GPUS
from tests.unit.doctor.objects import levels, worst

NODE: dict[str, Any] = {"metadata": {"name": "n1", "uid": "u"}, "status": {"allocatable": {"cpu": "4"}}}
WELL = Answers("https://api", (1, 37), 0.0, NODE, [], {}, [])
WANTED = devices(GPUS.gpus, Sharing.checked())
UUIDS = {gpu.uuid for gpu in GPUS.gpus}


def slice_(made: list[dict[str, Any]], driver: str = DRIVER, generation: int = 1) -> dict[str, Any]:
    """A ResourceSlice of the node."""
    pool = {"name": "n1", "generation": generation, "resourceSliceCount": 1}
    return {
        "metadata": {"name": f"{driver}-s"},
        "spec": {"driver": driver, "nodeName": "n1", "pool": pool, "devices": made},
    }


def test_the_rights_are_those_of_the_manifests() -> None:
    """What is asked for is what daemonset.yaml and claim-status.yaml allow."""

    def allowed(manifest: str, role: str) -> set[Right]:
        items = yaml.safe_load_all((REPOSITORY / manifest).read_text())
        (rules,) = (i["rules"] for i in items if i["kind"] == "ClusterRole" and i["metadata"]["name"] == role)
        return {
            Right(group, resource, verb)
            for rule in rules
            for group in rule["apiGroups"]
            for resource in rule["resources"]
            for verb in rule["verbs"]
        }

    assert set(RIGHTS) == allowed("daemonset.yaml", "hami-kubeletplugin")
    status = allowed("claim-status.yaml", "hami-kubeletplugin-claim-status")
    assert set(STATUS_RIGHTS) == {right for right in status if right.resource == "resourceclaims/status"}


def test_a_right_that_is_missing() -> None:
    """It is named, with the manifest that gives it."""
    assert levels(cluster.rbac_judged([])) == [Level.ok]
    found = worst(cluster.rbac_judged([Right("resource.k8s.io", "resourceslices", "update")]))
    assert found.what == "the token may not update resourceslices.resource.k8s.io"
    assert found.mend.endswith("kubectl apply -f daemonset.yaml")
    assert worst(cluster.rbac_judged(STATUS_RIGHTS)).mend.endswith("kubectl apply -f claim-status.yaml")
    assert levels(cluster.rbac_judged(ApiUnavailable("no"))) == [Level.unknown]


def test_kubernetes_that_is_too_old() -> None:
    """1.34 is an error, 1.35 a hint at its gate."""
    assert levels(cluster.api_judged(replace(WELL, version=(1, 34)), "n1")) == [Level.error]
    assert levels(cluster.api_judged(replace(WELL, version=(1, 35)), "n1")) == [Level.ok, Level.hint]
    assert levels(cluster.api_judged(WELL, "n1")) == [Level.ok]


def test_a_clock_that_is_off() -> None:
    """More than a minute is a warning; the second that HTTP's date leaves open is none, nor is the time of the answer."""
    assert [skewed("Mon, 30 Nov 2026 12:00:00 GMT", t, t + 2) for t in (1796040000.9, 1796039999.0)] == [0.0, 0.0]
    ahead = skewed("Mon, 30 Nov 2026 12:05:00 GMT", 1796040000.0, 1796040001.0)
    behind = skewed("Mon, 30 Nov 2026 11:55:00 GMT", 1796040000.0, 1796040001.0)
    assert (ahead, behind, skewed("", 0, 0)) == (299.0, -299.0, None)
    assert "299 s ahead of this node's" in worst(cluster.api_judged(replace(WELL, skew=ahead), "n1")).what
    assert "299 s behind" in worst(cluster.api_judged(replace(WELL, skew=behind), "n1")).what


def test_a_node_that_is_called_otherwise() -> None:
    """Slices belong to a Node."""
    assert "no Node n1" in worst(cluster.api_judged(replace(WELL, node=ApiNotFound("x")), "n1")).what


def judge(made: list[dict[str, Any]] | None) -> list[Any]:
    """Slices of these devices against the GPUs."""
    there = None if made is None else slices.published_devices([slice_(made)], DRIVER)
    return list(slices.judged(there, WANTED, "n1", DRIVER))


def test_slices_that_are_right() -> None:
    """Of the newest generation; one of an older one does not count."""
    assert levels(judge(WANTED)) == [Level.ok]
    old = slice_([], generation=1)
    assert slices.published_devices([old, slice_(WANTED, generation=2)], DRIVER) == WANTED
    assert slices.published_devices([slice_(WANTED, "other.io")], DRIVER) is None


def test_no_slices() -> None:
    """An error where there are GPUs."""
    assert worst(judge(None)).what == f"{DRIVER} has no ResourceSlice on n1"


def test_gpus_that_are_missing_or_too_many() -> None:
    """Each is named by device and UUID."""
    assert "is found on this node and not published" in worst(judge(WANTED[1:])).what
    found = list(slices.judged(WANTED, WANTED[1:], "n1", DRIVER))
    assert "is published and can't be found" in worst(found).what


def test_tainted_devices() -> None:
    """A taint that keeps pods off is a warning, one that only shows something a hint."""
    taint = {"key": "gpu.hami.io/lost", "value": "", "effect": "NoSchedule"}
    shown = {"key": "gpu.hami.io/xid", "value": "13", "effect": "None"}
    found = judge([{**WANTED[0], "taints": [taint, shown]}, *WANTED[1:]])
    assert levels(found) == [Level.warning, Level.hint, Level.ok]


def test_another_capacity() -> None:
    """As with another --device-memory-scaling than the daemon has."""
    half = devices(GPUS.gpus, Sharing.checked(device_memory_scaling=0.5))
    assert "capacity.memory" in worst(judge(half)).what


def test_a_gate_that_is_off() -> None:
    """The API server drops the fields that share a GPU: an error with the gate's name."""
    dropped = [{key: value for key, value in each.items() if key != "allowMultipleAllocations"} for each in WANTED]
    found = worst(judge(dropped))
    assert found.level is Level.error
    assert "DRAConsumableCapacity" in found.mend


def test_nobody_else_gives_out_the_gpus() -> None:
    """Slices of other drivers with other devices are nobody's trouble."""
    other = slice_([{"name": "nic", "attributes": {"uuid": {"string": "NIC-1"}}}], "nic.io")
    assert levels(slices.others_judged(replace(WELL, slices=[other]), UUIDS, DRIVER, {"nvidia.com/gpu"})) == [Level.ok]


def test_a_second_owner() -> None:
    """By the Node's allocatable, or by another driver's slices with the same UUIDs."""
    plugin = {**NODE, "status": {"allocatable": {"nvidia.com/gpu": "8"}}}
    found = worst(slices.others_judged(replace(WELL, node=plugin), UUIDS, DRIVER, {"nvidia.com/gpu"}))
    assert "allocatable nvidia.com/gpu: 8" in found.what
    theirs = slice_([{"name": "gpu-0", "attributes": {"uuid": {"string": GPUS.gpus[0].uuid}}}], "gpu.nvidia.com")
    assert (
        "gpu.nvidia.com gives out 1 of"
        in worst(slices.others_judged(replace(WELL, slices=[theirs]), UUIDS, DRIVER, ())).what
    )
    unknown = replace(WELL, slices=ApiForbidden("no"))
    assert levels(slices.others_judged(unknown, UUIDS, DRIVER, ())) == [Level.unknown]


def test_sockets_and_folders_of_others() -> None:
    """A device plugin's socket is a warning; the kubelet's own and other plugins' are nothing; HAMi's folders are a hint."""
    assert levels(slices.plugins_judged(["kubelet.sock", "nic.sock"], [], Path("/v"))) == []
    found = list(slices.plugins_judged(["nvidia-gpu.sock"], ["pod_x"], Path("/v")))
    assert levels(found) == [Level.warning, Level.hint]
    assert "rm -r /v/containers" in found[1].mend
