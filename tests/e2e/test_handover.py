"""A rolling update of the daemon with maxSurge, with processes in the place of its pods."""

import os
import re
from datetime import datetime
from functools import partial
from pathlib import Path

import pytest

from tests.e2e.cluster import NAMESPACE, NODE, Cluster
from tests.e2e.coming import coming
from tests.e2e.daemon import Daemon
from tests.e2e.manifests import container, pod, request, template
from tests.waiting import wait_for

STANDING = int(os.environ.get("HAMI_E2E_STANDING", "5"))
UPDATES = int(os.environ.get("HAMI_E2E_UPDATES", "2"))
AT_ONCE = int(os.environ.get("HAMI_E2E_AT_ONCE", "2"))
"""Pods that are made at once, again and again; for a run by hand 20, 10 and 5."""


def gpu_pod(name: str) -> dict[str, object]:
    """One with a share of a GPU."""
    return pod(name, container(claims=["gpu"]), templates={"gpu": "small"})


def calls(cluster: Cluster) -> dict[str, int]:
    """How many calls of each outcome the kubelet has made to the driver."""
    text = cluster.kubectl("get", "--raw", f"/api/v1/nodes/{NODE}/proxy/metrics")
    found: dict[str, int] = {}
    for labels, value in re.findall(r"dra_grpc_operations_duration_seconds_count\{(.*?)\} (\S+)", text):
        if 'driver_name="gpu.hami.io"' in labels:
            code = re.search(r'grpc_status_code="(\w+)"', labels)
            assert code
            found[code[1]] = found.get(code[1], 0) + int(float(value))
    return found


def library_of(cluster: Cluster, name: str) -> str:
    """Device, inode and path of the library that a container's first process has mapped."""
    lines = cluster.run_in(name, "main", "grep", "-m1", "libvgpu", "/proc/1/maps").split()
    return " ".join(lines[3:])


@pytest.mark.timeout(900)
def test_rolling_update(daemon: Daemon, cluster: Cluster, libraries: Path) -> None:
    """Daemons take over from one another while pods come and go: no call of the kubelet fails, and nothing restarts.

    Pods that run keep the library that they have, though the new daemon brings another.
    """
    cluster.apply(template("small", request(memory="100Mi")))
    names = [f"stands-{number}" for number in range(STANDING)]
    cluster.apply(*(gpu_pod(name) for name in names))
    before = {p["metadata"]["name"]: p["status"]["containerStatuses"] for p in cluster.running(*names, timeout=120)}
    mapped = {name: library_of(cluster, name) for name in names}
    asked = calls(cluster)
    waited = []
    with coming(cluster, lambda name, _: gpu_pod(name), AT_ONCE) as pods:
        for number in range(UPDATES):
            made = pods.made
            assert (
                daemon.replace(*(("--hami-core", str(libraries / "libvgpu.so.2.8.0")) if number % 2 == 0 else ())) == 0
            )
            at = {entry["event"]: datetime.fromisoformat(entry["timestamp"]) for entry in daemon.log()}
            waited.append(round((at["starting"] - at["registered with the kubelet"]).total_seconds() * 1000))
            wait_for("pods after it", partial(pods.more_than, made + AT_ONCE), timeout=90)
    now = calls(cluster)
    print(f"hand-overs, ms: {sorted(waited)}; pods: {pods.made}; calls: {asked} -> {now}")
    assert not pods.failed, pods.failed
    assert {code: number for code, number in now.items() if code != "OK" and number != asked.get(code, 0)} == {}
    failures = ("--field-selector", "reason=FailedPrepareDynamicResources")
    # The API server's own authorizer may hear of a claim later than the kubelet, which then never comes to ask us.
    said = [event["message"] for event in cluster.all("events", NAMESPACE, *failures)]
    assert [message for message in said if "fetch ResourceClaim" not in message] == []
    after = {p["metadata"]["name"]: p["status"]["containerStatuses"] for p in cluster.running(*names)}
    assert {name: s[0]["containerID"] for name, s in after.items()} == {
        n: s[0]["containerID"] for n, s in before.items()
    }
    assert {name: library_of(cluster, name) for name in names} == mapped
