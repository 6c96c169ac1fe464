"""`kubectl hami` on the cluster, run by kubectl as people have it: with the plugin in PATH."""

import json
import os
import subprocess
import sys
from pathlib import Path

import yaml

from tests import CHECKOUT
from tests.e2e.cluster import NODE, REPOSITORY, Cluster
from tests.e2e.daemon import Daemon
from tests.e2e.manifests import claim, config, container, minor, pod, request
from tests.waiting import wait_for


def hami(cluster: Cluster, *words: str, kubeconfig: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run `kubectl hami ...`, as the administrator or somebody else."""
    return subprocess.run(
        [cluster.directory / "bin" / cluster.version / "kubectl", "hami", *words],
        env={
            **CHECKOUT,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "KUBECONFIG": str(kubeconfig or cluster.kubeconfig),
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def told(cluster: Cluster, name: str, *words: str) -> str:
    """What `why` says of a pod, once it says all of these words."""

    def probe() -> str:
        done = hami(cluster, "why", name, "-n", "e2e")
        assert done.returncode == 0, done.stderr
        assert all(word in done.stdout for word in words), done.stdout
        return done.stdout

    return wait_for(f"kubectl hami why {name}", probe, timeout=60)


def test_usage_fits_and_why(daemon: Daemon, cluster: Cluster) -> None:
    """A running pod's share is consumed, what is left fits and more doesn't; a pod for more waits, and it is said for what."""
    cluster.apply(
        claim("c", request(memory="4000Mi", cores=60, selector=minor(0))),
        pod("p", container(claims=["gpu"]), claims={"gpu": "c"}),
    )
    cluster.running("p")
    found = json.loads(hami(cluster, "usage", "-o", "json").stdout)
    (pool,) = (pool for pool in found["pools"] if pool["nodeName"] == NODE)
    used = {device["name"]: device for device in pool["devices"] if device["claims"]}
    assert used.keys() == {"hami-gpu-0"}
    amounts = {each["name"]: each for each in used["hami-gpu-0"]["capacity"]}
    assert (amounts["memory"]["consumed"], amounts["cores"]["consumed"]) == ("4000Mi", "60")
    assert (amounts["cores"]["available"], used["hami-gpu-0"]["claims"]) == ("40", [{"namespace": "e2e", "name": "c"}])
    assert [(each["namespace"], each["claims"]) for each in found["namespaces"]] == [("e2e", 1)]

    room = hami(cluster, "usage", "--fits", "cores=50", "-o", "wide")
    assert room.returncode == 0
    fitting, _, others = room.stdout.partition("MISSING")
    assert "hami-gpu-0" not in fitting
    assert "cores: 50 wanted, 40 of 100 available" in others

    cluster.apply(
        claim("more", request(cores=50, selector=minor(0))),
        pod("waits", container(claims=["gpu"]), claims={"gpu": "more"}),
    )
    told(
        cluster,
        "waits",
        "is not scheduled",
        "claim more is not allocated: gpu wants 1 GPU with cores 50",
        "default-scheduler, FailedScheduling: 0/1 nodes are available",
        "hami-gpu-0",
        "cores: 50 wanted, 40 of 100 available",
        f"is not what is selected: {minor(0)}",
    )


def test_why_a_pod_is_not_prepared(daemon: Daemon, cluster: Cluster) -> None:
    """A claim that is allocated and can't be prepared: the kubelet's words are shown. And a pod that nobody converted says so."""
    cluster.apply(
        claim("wrong", request(memory="1000Mi"), config=[config(corePolicy="sometimes")]),
        pod("unprepared", container(claims=["gpu"]), claims={"gpu": "wrong"}),
        pod("plain", container() | {"resources": {"limits": {"nvidia.com/gpumem": "1000"}}}),
    )
    told(
        cluster,
        "unprepared",
        f"is scheduled to node {NODE} and has not started there",
        "claim wrong is allocated",
        "FailedPrepareDynamicResources",
        "'sometimes'",
    )
    told(cluster, "plain", "container main asks for nvidia.com/gpumem, and no webhook has made a claim of it")


def test_rights(daemon: Daemon, cluster: Cluster, tmp_path: Path) -> None:
    """With the ClusterRole of docs/kubectl.md all can be asked, and without it the right that is missing is named."""
    page = (REPOSITORY / "docs" / "kubectl.md").read_text()
    role = yaml.safe_load(page.partition("```yaml\n")[2].partition("```")[0])
    person = cluster.kubeconfig_for(cluster.node_token("e2e", "default"), tmp_path / "kubeconfig")
    refused = hami(cluster, "usage", kubeconfig=person)
    assert refused.returncode == 1
    assert "allow verb list on resource" in refused.stderr
    subject = {"kind": "ServiceAccount", "name": "default", "namespace": "e2e"}
    chosen = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role["metadata"]["name"]}
    about = {"apiVersion": role["apiVersion"], "kind": "ClusterRoleBinding", "metadata": role["metadata"]}
    cluster.apply(role, about | {"roleRef": chosen, "subjects": [subject]}, pod("asks", container()))
    try:

        def allowed() -> bool:
            done = hami(cluster, "usage", kubeconfig=person)
            assert (done.returncode, done.stderr) == (0, "")
            return NODE in done.stdout

        wait_for("the rights to be known", allowed, timeout=30)
        done = hami(cluster, "why", "asks", "-n", "e2e", kubeconfig=person)
        assert (done.returncode, done.stderr) == (0, "")
        assert "it asks for no GPUs by claims" in done.stdout
    finally:
        cluster.delete("clusterrolebinding,clusterrole", role["metadata"]["name"])
