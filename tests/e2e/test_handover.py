"""A rolling update of the daemon with maxSurge, with processes in the place of its pods."""

import os
import re
import threading
from collections.abc import Iterator
from datetime import datetime
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from tests.e2e.cluster import NAMESPACE, NODE, Cluster, KubectlFailed
from tests.e2e.daemon import Daemon
from tests.e2e.manifests import container, pod, request, template
from tests.waiting import wait_for

STANDING = int(os.environ.get("HAMI_E2E_STANDING", "5"))
UPDATES = int(os.environ.get("HAMI_E2E_UPDATES", "2"))
AT_ONCE = int(os.environ.get("HAMI_E2E_AT_ONCE", "2"))
"""Pods that are made at once, again and again; for a run by hand 20, 10 and 5."""


class Coming:
    """Pods that come and go all the while."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster, self._stop = cluster, threading.Event()
        self.made = 0
        self.failed: list[str] = []

    def run(self) -> None:
        """Until stopped."""
        try:
            for number in count():
                if self._stop.is_set():
                    return
                names = [f"comes-{number}-{each}" for each in range(AT_ONCE)]
                self._cluster.apply(*(gpu_pod(name) for name in names))
                self._cluster.running(*names)
                self._cluster.kubectl("delete", "pod", *names, "-n", NAMESPACE, "--wait=false")
                self.made += AT_ONCE
        except (AssertionError, KubectlFailed) as error:
            self.failed.append(str(error))

    def more_than(self, number: int) -> bool:
        """Whether so many have come, or something failed."""
        return self.made > number or bool(self.failed)

    def stop(self) -> None:
        """Make `run` return."""
        self._stop.set()


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


@pytest.fixture
def coming(daemon: Daemon, cluster: Cluster) -> Iterator[Coming]:
    """Pods come and go."""
    work = Coming(cluster)
    thread = threading.Thread(target=work.run)
    cluster.apply(template("small", request(memory="100Mi")))
    thread.start()
    yield work
    work.stop()
    thread.join(90)
    assert not thread.is_alive()


@pytest.mark.timeout(900)
def test_rolling_update(daemon: Daemon, cluster: Cluster, coming: Coming, libraries: Path) -> None:
    """Daemons take over from one another while pods come and go: no call of the kubelet fails, and nothing restarts.

    Pods that run keep the library that they have, though the new daemon brings another.
    """
    names = [f"stands-{number}" for number in range(STANDING)]
    cluster.apply(*(gpu_pod(name) for name in names))
    before = {p["metadata"]["name"]: p["status"]["containerStatuses"] for p in cluster.running(*names, timeout=120)}
    mapped = {name: library_of(cluster, name) for name in names}
    asked = calls(cluster)
    waited = []
    for number in range(UPDATES):
        made = coming.made
        assert daemon.replace(*(("--hami-core", str(libraries / "libvgpu.so.2.8.0")) if number % 2 == 0 else ())) == 0
        at = {entry["event"]: datetime.fromisoformat(entry["timestamp"]) for entry in daemon.log()}
        waited.append(round((at["starting"] - at["registered with the kubelet"]).total_seconds() * 1000))
        wait_for("pods after it", partial(coming.more_than, made + AT_ONCE), timeout=90)
    coming.stop()
    now = calls(cluster)
    print(f"hand-overs, ms: {sorted(waited)}; pods: {coming.made}; calls: {asked} -> {now}")
    assert not coming.failed, coming.failed
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
