"""What the cluster sees of the node's GPUs. The simulated node `mixed` has minors against PCI bus order."""

import json
import re
from typing import Any

from tests.e2e.cluster import NODE, Cluster
from tests.e2e.daemon import DRIVER, Daemon
from tests.waiting import wait_for

IN_BUS_ORDER = ["hami-gpu-2", "hami-gpu-3", "hami-gpu-1", "hami-gpu-0"]


def slices(cluster: Cluster) -> list[dict[str, Any]]:
    """The driver's ResourceSlices of the node."""
    found = cluster.all("resourceslices")
    return [s for s in found if (s["spec"]["driver"], s["spec"]["nodeName"]) == (DRIVER, NODE)]


def published(cluster: Cluster) -> dict[str, Any]:
    """Wait for the one slice that the simulated node needs."""

    def probe() -> dict[str, Any]:
        found = slices(cluster)
        assert len(found) == 1, [s["metadata"]["name"] for s in found]
        return found[0]

    return wait_for("the node's ResourceSlice", probe, timeout=60)


def test_slices_show_every_attribute_and_capacity(daemon: Daemon, cluster: Cluster) -> None:
    """Each GPU is visible with all that is known of it, in PCI bus order, in a slice that belongs to the node."""
    found = published(cluster)
    spec = found["spec"]
    assert [device["name"] for device in spec["devices"]] == IN_BUS_ORDER
    assert spec["pool"] == {"name": NODE, "generation": 1, "resourceSliceCount": 1} | {
        "generation": spec["pool"]["generation"]
    }
    owner = found["metadata"]["ownerReferences"][0]
    assert (owner["kind"], owner["name"], owner["controller"]) == ("Node", NODE, True)
    l40s = spec["devices"][1]
    assert re.fullmatch(r"GPU-[0-9a-f-]{36}", l40s["attributes"].pop("uuid")["string"])
    assert l40s == {
        "name": "hami-gpu-3",
        "allowMultipleAllocations": True,
        "attributes": {
            "type": {"string": "hami-gpu"},
            "minor": {"int": 3},
            "productName": {"string": "NVIDIA L40S"},
            "brand": {"string": "Nvidia"},
            "architecture": {"string": "Ada Lovelace"},
            "cudaComputeCapability": {"version": "8.9.0"},
            "driverVersion": {"version": "550.54.15"},
            "driverVersionText": {"string": "550.54.15"},
            "cudaDriverVersion": {"version": "12.4.0"},
            "resource.kubernetes.io/pcieRoot": {"string": "pci0000:5d"},
            "resource.kubernetes.io/pciBusID": {"string": "0000:5e:00.0"},
            "resource.kubernetes.io/numaNode": {"int": 0},
        },
        "capacity": {
            "memory": {
                "value": "46068Mi",
                "requestPolicy": {"default": "46068Mi", "validRange": {"min": "1Mi", "step": "1Mi"}},
            },
            "cores": {
                "value": "100",
                "requestPolicy": {"default": "0", "validRange": {"min": "0", "max": "100", "step": "1"}},
            },
            "shares": {"value": "10k", "requestPolicy": {"default": "1k", "validValues": ["1k", "10k"]}},
        },
    }
    uuids = {device["attributes"]["uuid"]["string"] for device in spec["devices"] if "uuid" in device["attributes"]}
    assert len(uuids) == 3


def test_deleted_slices_come_back(daemon: Daemon, cluster: Cluster) -> None:
    """Slices that somebody deletes by hand are published again, without the daemon being touched."""
    before = published(cluster)
    cluster.delete("resourceslice", before["metadata"]["name"])
    after = wait_for("the slice to come back", lambda: slices(cluster), timeout=60)
    assert [s["spec"]["devices"] for s in after] == [before["spec"]["devices"]]


def test_edited_slices_are_repaired(daemon: Daemon, cluster: Cluster) -> None:
    """A slice that somebody edits says again what is true."""
    before = published(cluster)
    name = before["metadata"]["name"]
    patch = [{"op": "replace", "path": "/spec/devices/0/capacity/memory/value", "value": "999Gi"}]
    cluster.kubectl("patch", "resourceslice", name, "--type", "json", "-p", json.dumps(patch))

    def repaired() -> bool:
        assert published(cluster)["spec"]["devices"] == before["spec"]["devices"]
        return True

    wait_for("the slice to be repaired", repaired, timeout=60)
