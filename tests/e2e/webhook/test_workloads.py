"""Controllers that make pods, on a node with eight GPUs of ten slots each; and what else there is in a namespace."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.cluster import NAMESPACE, Cluster
from tests.e2e.conftest import clean
from tests.e2e.daemon import DRIVER, Daemon
from tests.e2e.inside import look, read
from tests.e2e.manifests import LOOK
from tests.e2e.webhook.objects import gpu_pod, pod_template, templates, wanting
from tests.e2e.webhook.process import Webhook
from tests.e2e.webhook.test_pods import uuids
from tests.waiting import wait_for

MANY = 50
GONE = "e2e-gone"
LIMITED = "e2e-limited"


def workload(kind: str, name: str, made: Any, api: str = "apps/v1", **spec: Any) -> Any:
    """A workload of such pods."""
    selector = {} if kind == "Job" else {"selector": {"matchLabels": {"app": name}}}
    return {
        "apiVersion": api,
        "kind": kind,
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {**selector, "template": pod_template(made, name), **spec},
    }


def pods_of(cluster: Cluster, app: str, namespace: str = NAMESPACE) -> list[Any]:
    """The pods of a workload."""
    return cluster.all("pods", namespace, "-l", f"app={app}")


def phases(cluster: Cluster, app: str, namespace: str = NAMESPACE) -> list[str]:
    """Of a workload's pods, sorted."""
    return sorted(pod["status"]["phase"] for pod in pods_of(cluster, app, namespace))


def wait_phases(cluster: Cluster, app: str, namespace: str = NAMESPACE, timeout: float = 120, **expected: int) -> None:
    """Wait for so many pods in these phases, and none in another."""
    wanted = sorted(phase for phase, count in expected.items() for _ in range(count))

    def probe() -> bool:
        found = phases(cluster, app, namespace)
        assert found == wanted, found
        return True

    wait_for(f"the pods of {app}", probe, timeout=timeout, interval=0.5)


@pytest.fixture(scope="module")
def eight_gpus(session_daemon: Daemon, installed: Webhook, cluster: Cluster) -> Iterator[None]:
    """Another node: eight A100."""
    if session_daemon.is_running:
        assert session_daemon.stop() == 0
    session_daemon.start("--simulate", "a100x8")
    wait_for("eight GPUs", lambda: len(uuids(cluster)) == 8)
    yield
    cluster.purge(NAMESPACE, ("deployments", "statefulsets", "jobs"))
    clean(cluster, session_daemon)
    assert session_daemon.stop() == 0


def fails_first(restart: str) -> Any:
    """A pod that fails when it is run first, or, as it can't remember that in another pod, always."""
    main = wanting(gpu=1, gpumem=1000)
    main["command"] = ["sh", "-c", f"[ -e /note/tried ] || {{ echo > /note/tried; exit 1; }}; {LOOK}"]
    main["volumeMounts"] = [{"name": "note", "mountPath": "/note"}]
    return gpu_pod("x", main, volumes=[{"name": "note", "emptyDir": {}}], restartPolicy=restart)


@pytest.fixture(scope="module")
def workloads(eight_gpus: None, cluster: Cluster) -> Iterator[None]:
    """The smaller ones of the tests below, all at once."""
    for name in (GONE, LIMITED):
        cluster.make_namespace(name)
    quota = {"hard": {f"{DRIVER}.deviceclass.resource.k8s.io/devices": "1"}}
    made = gpu_pod("x", wanting(gpu=1, gpumem=1000))
    cluster.apply(
        workload("StatefulSet", "set", made, replicas=2, podManagementPolicy="Parallel"),
        workload("Job", "restarts", fails_first("OnFailure"), "batch/v1", completions=2, parallelism=1),
        workload("Job", "fails", fails_first("Never"), "batch/v1", backoffLimit=1),
        gpu_pod("p", wanting(gpu=1, gpumem=1000), labels={"app": "p"}, namespace=GONE),
        {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": "gpus", "namespace": LIMITED},
            "spec": quota,
        },
    )
    wait_for("the quota", lambda: (cluster.get("resourcequota", "gpus", LIMITED) or {}).get("status", {}).get("used"))
    cluster.apply(gpu_pod("first", wanting(gpu=1, gpumem=1000), labels={"app": "first"}, namespace=LIMITED))
    wait_for("the first one's claim", lambda: cluster.all("resourceclaims", LIMITED))
    cluster.apply(gpu_pod("second", wanting(gpu=1, gpumem=1000), labels={"app": "second"}, namespace=LIMITED))
    yield
    cluster.kubectl("delete", "namespace", GONE, LIMITED, "--ignore-not-found", "--timeout=60s", timeout=90)


def test_stateful_set(cluster: Cluster, workloads: None) -> None:
    """Each pod of a StatefulSet runs with a claim of its own, and gets a new one when it is deleted and made again."""
    wait_phases(cluster, "set", Running=2)
    before = claims_of(cluster, "set")
    assert len(before) == 2
    cluster.delete("pod", "set-0")
    wait_for("the pod to be made again", lambda: len(claims_of(cluster, "set")) == 2)
    wait_phases(cluster, "set", Running=2)
    assert len(claims_of(cluster, "set") & before) == 1


def test_namespace_deletion(session_daemon: Daemon, cluster: Cluster, workloads: None) -> None:
    """A namespace with a GPU pod and its template goes when it is deleted, and takes the claim with it."""
    wait_phases(cluster, "p", GONE, Running=1)
    assert len(templates(cluster, GONE)) == 1
    [claim] = cluster.all("resourceclaims", GONE)
    uid = claim["metadata"]["uid"]
    assert session_daemon.spec(uid) is not None
    cluster.kubectl("delete", "namespace", GONE, "--timeout=60s", timeout=90)
    assert session_daemon.spec(uid) is None


def test_quota_of_devices(cluster: Cluster, workloads: None) -> None:
    """A ResourceQuota on the class's devices holds: the second pod gets no claim, and its event says why."""
    wait_phases(cluster, "first", LIMITED, Running=1)
    selector = ("--field-selector", "involvedObject.name=second,reason=FailedResourceClaimCreation")
    told = wait_for("the event of the second pod", lambda: cluster.all("events", LIMITED, *selector))
    assert "exceeded quota: gpus" in told[0]["message"]
    assert phases(cluster, "second", LIMITED) == ["Pending"]


def test_job_whose_containers_are_restarted(cluster: Cluster, workloads: None) -> None:
    """A container of a Job that fails and is started again is limited as before; done pods give their claims back."""
    wait_phases(cluster, "restarts", Succeeded=2)
    for found in pods_of(cluster, "restarts"):
        assert [status["restartCount"] for status in found["status"]["containerStatuses"]] == [1]
        assert read(cluster.logs(found["metadata"]["name"], "main")).limits == [(1000, 0)]
    wait_for("their claims to go", lambda: not claims_of(cluster, "restarts"))


def test_job_whose_pods_are_replaced(cluster: Cluster, workloads: None) -> None:
    """A Job's second pod, after the first one failed, is converted like the first, by the same template."""
    wait_phases(cluster, "fails", Failed=2)
    used = [pod["spec"]["resourceClaims"][0]["resourceClaimTemplateName"] for pod in pods_of(cluster, "fails")]
    assert len(set(used)) == 1


def test_a_deployment_costs_one_template(cluster: Cluster, eight_gpus: None, webhook: Webhook) -> None:
    """A Deployment that goes from 1 to 50 pods costs one write of the webhook, for the first of them."""
    many = gpu_pod("x", wanting(gpu=1, gpumem=777))
    before = written(webhook)
    cluster.apply(workload("Deployment", "many", many, replicas=1))
    wait_phases(cluster, "many", Running=1)
    assert written(webhook) - before == 1
    cluster.kubectl("scale", "deployment/many", "-n", NAMESPACE, f"--replicas={MANY}")
    wait_phases(cluster, "many", Running=MANY)
    assert written(webhook) - before == 1
    assert len(claims_of(cluster, "many")) == MANY
    cluster.delete("deployment", "many")


def test_a_full_gpu(cluster: Cluster, eight_gpus: None) -> None:
    """Ten pods share a GPU; the eleventh waits, and runs when one of them leaves."""
    one = uuids(cluster)["hami-gpu-7"]
    names = [f"full-{number}" for number in range(10)]
    chosen = {"use-gpuuuid": one}
    cluster.apply(*(gpu_pod(name, wanting(gpumem=100), annotations=chosen) for name in names))
    cluster.running(*names)
    cluster.apply(gpu_pod("waits", wanting(gpumem=100), annotations=chosen))
    [told, *_] = wait_for("the event of the eleventh", lambda: cluster.events("waits", "FailedScheduling"))
    assert "cannot allocate all claims" in told
    cluster.delete("pod", names[3])
    cluster.running("waits")
    assert look(cluster, "waits").limits == [(100, 0)]


def claims_of(cluster: Cluster, app: str) -> set[str]:
    """The claims that a workload's pods have."""
    owners = {pod["metadata"]["uid"] for pod in pods_of(cluster, app)}
    claims = cluster.all("resourceclaims")
    return {c["metadata"]["name"] for c in claims if c["metadata"]["ownerReferences"][0]["uid"] in owners}


def written(webhook: Webhook) -> float:
    """How often the webhook wrote a template."""
    return webhook.metric("hami_webhook_templates_total")
