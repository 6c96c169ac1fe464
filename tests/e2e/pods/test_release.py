"""What the chart installs, as pods on real nodes: it serves claims, with the rights of its own tokens and no more."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import CHECKOUT
from tests.e2e.cluster import NODE, Cluster, Json, KubectlFailed
from tests.e2e.inside import look
from tests.e2e.manifests import container, pod
from tests.e2e.pods.release import DAEMON, NODES, SECOND, SYSTEM, WEBHOOK, Release
from tests.waiting import wait_for

HEADLINE = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 4000, "nvidia.com/gpucores": 30}
"""README's pod."""


def gpu_pod(name: str, node: str | None = None) -> Json:
    """A pod with README's limits, on a node or anywhere."""
    made = pod(name, {**container(), "resources": {"limits": {key: str(value) for key, value in HEADLINE.items()}}})
    if node:
        made["spec"]["nodeSelector"] = {"kubernetes.io/hostname": node}
    return made


def limits(cluster: Cluster, name: str) -> list[tuple[int, int]]:
    """What holds in a pod's container, by the library that is loaded there."""
    return look(cluster, name).limits


def started(pods: list[Json]) -> list[tuple[str, int]]:
    """By pod, its uid and how often its container started again."""
    return [(each["metadata"]["uid"], each["status"]["containerStatuses"][0]["restartCount"]) for each in pods]


def test_headline_pods_on_both_nodes(release: Release, cluster: Cluster) -> None:
    """README's pod becomes a claim by the webhook's Service, and has its limits on each node, on GPUs of that node's kind."""
    assert {node: len(release.published(node)) for node in NODES} == {NODE: 4, SECOND: 2}
    cluster.apply(gpu_pod("first", NODE), gpu_pod("second", SECOND))
    first, second = cluster.running("first", "second")
    assert (first["spec"]["nodeName"], second["spec"]["nodeName"]) == (NODE, SECOND)
    assert limits(cluster, "first") == limits(cluster, "second") == [(4000, 30)]
    pools = {
        result["pool"]
        for claim in cluster.all("resourceclaims")
        for result in claim["status"]["allocation"]["devices"]["results"]
    }
    assert pools == set(NODES)


def test_pods_are_what_the_manifests_promise(release: Release, cluster: Cluster) -> None:
    """No probe failed and nothing restarted; neither can write its root, and the webhook is nobody and may do nothing as root."""
    pods = [*release.pods(DAEMON), *release.pods(WEBHOOK)]
    assert len(pods) == 4
    assert [restarts for _, restarts in started(pods)] == [0, 0, 0, 0]
    see = (
        "import os; print(os.getuid(), [l.split()[1] for l in open('/proc/self/status') if l.startswith('CapEff')]); "
        "open('/x', 'w')"
    )
    for each in pods:
        name = each["metadata"]["name"]
        with pytest.raises(KubectlFailed, match="Read-only file system"):
            cluster.kubectl("exec", "-n", SYSTEM, name, "--", "python3", "-c", see)
    webhook = release.pods(WEBHOOK)[0]["metadata"]["name"]
    who = cluster.kubectl("exec", "-n", SYSTEM, webhook, "--", "python3", "-c", see.rpartition(";")[0])
    assert who == "65532 ['0000000000000000']\n"


UNSEEN = {"cdi", "reachable"}
"""What this cluster keeps from pods: it has no DNS, and a node's containerd sees other mounts than the first process."""


def worse(text: str) -> dict[str, str]:
    """What a doctor found that is neither well nor a hint, by check."""
    found = json.loads(text)
    assert found
    seen = [each for each in found if (each["check"], each["level"]) not in {(check, "unknown") for check in UNSEEN}]
    return {each["check"]: each["what"] for each in seen if each["level"] not in {"ok", "hint"}}


def test_doctors_find_nothing(release: Release, cluster: Cluster) -> None:
    """All is well for those in the pods of daemons and webhook, with these pods' rights, and for the administrator's."""
    cluster.apply(gpu_pod("first", NODE), gpu_pod("second", SECOND))
    cluster.running("first", "second")
    daemons = [("hami-kubeletplugin", release.daemon(node)) for node in NODES]
    found = {}
    for program, each in (*daemons, *(("hami-webhook", each) for each in release.pods(WEBHOOK))):
        name = each["metadata"]["name"]
        # Its exit status is that of what it could not find out, too.
        script = f"{program} doctor -o json || true"
        found[name] = worse(cluster.kubectl("exec", "-n", SYSTEM, name, "--", "sh", "-c", script))
    done = subprocess.run(
        [Path(sys.executable).parent / "kubectl-hami", "doctor", "-o", "json"],
        env={"PATH": os.environ["PATH"], "KUBECONFIG": str(cluster.kubeconfig), **CHECKOUT},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    found["kubectl hami"] = worse(done.stdout)
    assert found == {who: {} for who in found}


def test_each_nodes_token_writes_that_nodes_slices_only(release: Release, cluster: Cluster, tmp_path: Path) -> None:
    """Whoever has the token of one node's daemon can't take another node's GPUs away, nor invent some there."""
    daemon = release.daemon(SECOND)["metadata"]["name"]
    read = "print(open('/var/run/secrets/kubernetes.io/serviceaccount/token').read())"
    token = cluster.kubectl("exec", "-n", SYSTEM, daemon, "--", "python3", "-c", read).strip()
    kubeconfig = str(cluster.kubeconfig_for(token, tmp_path / "kubeconfig"))
    slices = {each["spec"]["nodeName"]: each for each in cluster.all("resourceslices")}
    theirs, own = slices[NODE], slices[SECOND]
    name = theirs["metadata"]["name"]
    with pytest.raises(KubectlFailed, match=f"the daemon on node {SECOND} may not write slices of node {NODE}"):
        cluster.kubectl("--kubeconfig", kubeconfig, "delete", "resourceslice", name)
    theirs["spec"]["devices"].pop()
    with pytest.raises(KubectlFailed, match=f"the daemon on node {SECOND} may not write slices of node {NODE}"):
        cluster.kubectl("--kubeconfig", kubeconfig, "replace", "-f", "-", stdin=json.dumps(theirs))
    # The same words with its own: the token is good for that.
    cluster.kubectl("--kubeconfig", kubeconfig, "replace", "--dry-run=server", "-f", "-", stdin=json.dumps(own))


def test_a_daemon_dies(release: Release, cluster: Cluster) -> None:
    """GPU pods of both nodes run on with their limits, the kubelet starts it again, and then its node takes new pods."""
    cluster.apply(gpu_pod("first", NODE), gpu_pod("second", SECOND))
    before = started(cluster.running("first", "second"))
    daemon = release.daemon(SECOND)
    cluster.kill_container(daemon["status"]["containerStatuses"][0]["containerID"], SECOND)

    def again() -> bool:
        return started([release.daemon(SECOND)]) == [(daemon["metadata"]["uid"], 1)]

    wait_for("the daemon to be started again", again)
    cluster.apply(gpu_pod("third", SECOND))
    cluster.running("third")
    assert started(cluster.running("first", "second")) == before
    assert [limits(cluster, name) for name in ("first", "second", "third")] == [[(4000, 30)]] * 3


def test_a_node_without_its_daemon(release: Release, cluster: Cluster) -> None:
    """Its GPUs are no longer offered, so new pods go to the other node; its running pods keep their limits."""
    cluster.apply(gpu_pod("before", SECOND))
    before = started(cluster.running("before"))
    nowhere = {"spec": {"template": {"spec": {"nodeSelector": {"there-is": "no-such-node"}}}}}
    cluster.kubectl("patch", "daemonset", "hami-kubeletplugin-second", "-n", SYSTEM, "-p", json.dumps(nowhere))
    try:
        # The kubelet takes them away when the daemon has been gone for 30 s.
        wait_for("the slices to be gone", lambda: not release.published(SECOND), timeout=90)
        cluster.apply(gpu_pod("one"), gpu_pod("two"))
        assert {each["spec"]["nodeName"] for each in cluster.running("one", "two")} == {NODE}
        assert limits(cluster, "before") == [(4000, 30)]
        assert started(cluster.running("before")) == before
    finally:
        again = {"spec": {"template": {"spec": {"nodeSelector": {"there-is": None, "kubernetes.io/hostname": SECOND}}}}}
        cluster.kubectl("patch", "daemonset", "hami-kubeletplugin-second", "-n", SYSTEM, "-p", json.dumps(again))
        release.daemon(SECOND)
    wait_for("the slices to be back", lambda: len(release.published(SECOND)) == 2)


def test_a_node_reboots(release: Release, cluster: Cluster) -> None:
    """Its GPU pod comes back with its limits once daemon and kubelet are there again; the other node's never noticed."""
    cluster.apply(gpu_pod("first", NODE), gpu_pod("second", SECOND))
    before = started(cluster.running("first", "second"))
    cluster.control("halt", SECOND)
    assert limits(cluster, "first") == [(4000, 30)]
    cluster.control("boot", SECOND)

    def restarted() -> bool:
        return started(cluster.running("second")) == [(before[1][0], 1)]

    wait_for("the pod to be started again", restarted, timeout=120)
    assert limits(cluster, "second") == [(4000, 30)]
    assert started(cluster.running("first")) == before[:1]
    release.daemon(SECOND)
