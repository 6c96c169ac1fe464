"""Admission webhooks of others in the same cluster: HAMi's, and those that put GPUs into pods."""

import json
import os
import re
import subprocess
from collections.abc import Iterator

import pytest

from hami_kubeletplugin.api.names import WEBHOOK_CONFIGURATION
from tests.e2e.cluster import REPOSITORY, Cluster, Json
from tests.e2e.manifests import container
from tests.e2e.webhook.gpu_adder import GpuAdder
from tests.e2e.webhook.objects import dry_run, gpu_pod, wanting
from tests.e2e.webhook.process import Webhook
from tests.e2e.webhook.test_availability import certs
from tests.waiting import wait_for

MUTATING = "mutatingwebhookconfiguration"
HAMI = "hami-webhook"
"""What HAMi's chart calls its configuration, release name `hami`; and what 0.1.0 called both of ours."""
GPU_POD = gpu_pod("p", wanting(gpu=1, gpumem=1000))
SEARCHED = {"e2e": "gpu-adder"}


@pytest.fixture(scope="module")
def gpu_adder() -> Iterator[GpuAdder]:
    """A server that answers reviews with a GPU more."""
    with GpuAdder() as adder:
        yield adder


@pytest.fixture
def named(request: pytest.FixtureRequest, cluster: Cluster, gpu_adder: GpuAdder) -> Iterator[str]:
    """That server as a mutating webhook under the name that the test asks for."""
    name: str = request.param
    cluster.apply(gpu_adder.configuration(name, {"matchLabels": SEARCHED}))
    yield name
    cluster.kubectl("delete", MUTATING, name)


def with_a_gpu_more(cluster: Cluster, gpu_adder: GpuAdder) -> Json:
    """What becomes of a pod that names no GPU itself, once the other webhook is called."""
    made = gpu_pod("p", container(), labels=SEARCHED)

    def called() -> Json | None:
        before = gpu_adder.reviews
        kept = dry_run(cluster, made)
        return kept if gpu_adder.reviews > before else None

    return wait_for("the other webhook to be called", called)


@pytest.mark.parametrize(
    "named",
    ["aaa-operator-webhook", "kyverno-resource-mutating-webhook-cfg", "spark-operator-webhook", "z-webhook"],
    indirect=True,
)
def test_a_gpu_that_another_webhook_adds(cluster: Cluster, webhook: Webhook, gpu_adder: GpuAdder, named: str) -> None:
    """Whatever the other one is called: the pod comes out with a claim, and without the limit."""
    spec = with_a_gpu_more(cluster, gpu_adder)["spec"]
    assert len(spec["resourceClaims"]) == 1, named
    assert "nvidia.com/gpu" not in spec["containers"][0]["resources"].get("limits", {})


@pytest.mark.parametrize("named", ["zzz-webhook"], indirect=True)
def test_a_gpu_that_is_added_after_us(cluster: Cluster, webhook: Webhook, gpu_adder: GpuAdder, named: str) -> None:
    """A name that sorts after ours: API servers don't ask us any more. docs/operating.md says so; when this ends, it need not."""
    assert named > WEBHOOK_CONFIGURATION
    spec = with_a_gpu_more(cluster, gpu_adder)["spec"]
    assert "resourceClaims" not in spec
    assert spec["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "1"


@pytest.fixture
def hami(cluster: Cluster, gpu_adder: GpuAdder) -> Iterator[Json]:
    """HAMi's configuration, as its chart makes it; nobody answers there."""
    made = gpu_adder.configuration(HAMI, {})
    made["webhooks"][0] |= {
        "name": "vgpu.hami.io",
        "clientConfig": {
            "service": {"namespace": "kube-system", "name": "hami-scheduler", "path": "/webhook", "port": 443},
            "caBundle": made["webhooks"][0]["clientConfig"]["caBundle"],
        },
        "failurePolicy": "Ignore",
    }
    cluster.kubectl("create", "-f", "-", stdin=json.dumps(made))
    found = cluster.get(MUTATING, HAMI)
    assert found is not None
    yield found
    cluster.kubectl("delete", MUTATING, HAMI, "--ignore-not-found")


def names_in(cluster: Cluster, configuration: str) -> list[str]:
    """Of its webhooks."""
    found = cluster.get(MUTATING, configuration) or {}
    return [one["name"] for one in found.get("webhooks", ())]


def test_beside_hami(cluster: Cluster, webhook: Webhook, manifest: list[Json], hami: Json) -> None:
    """webhook.yaml is applied, and a certificate renewed, where HAMi is: its object is not touched, ours works."""
    cluster.apply(*manifest)
    certs(cluster, "--renew")
    assert cluster.get(MUTATING, HAMI) == hami
    ours = cluster.get(MUTATING, WEBHOOK_CONFIGURATION)
    assert ours is not None
    assert ours["webhooks"][0]["clientConfig"]["caBundle"]
    assert "resourceClaims" in dry_run(cluster, GPU_POD)["spec"]


def as_0_1_0(cluster: Cluster) -> list[Json]:
    """Our configurations under 0.1.0's name, with the trust that they have."""
    made = []
    for kind in (MUTATING, "validatingwebhookconfiguration"):
        found = cluster.get(kind, WEBHOOK_CONFIGURATION)
        assert found is not None
        then = [one for one in found["webhooks"] if one["name"] != "names.hami.io"]
        made.append({**found, "metadata": {"name": HAMI}, "webhooks": then})
    return made


def documented(heading: str) -> str:
    """The last block of commands below a heading of docs/operating.md."""
    text = (REPOSITORY / "docs/operating.md").read_text()
    section = text.partition(f"\n{heading}\n")[2]
    section = re.split(r"^#", section, flags=re.MULTILINE)[0]
    blocks = re.findall(r"(?:^ {4}.*\n)+", section, re.MULTILINE)
    assert blocks, f"docs/operating.md has no commands below {heading!r}"
    return re.sub("^ {4}", "", blocks[-1], flags=re.MULTILINE)


@pytest.mark.parametrize("beside", [True, False], ids=["beside HAMi", "alone"])
def test_after_0_1_0(cluster: Cluster, webhook: Webhook, request: pytest.FixtureRequest, *, beside: bool) -> None:
    """What the docs say to run after the upgrade takes away what 0.1.0 left: nothing of HAMi's, and no pod slips through."""
    theirs = request.getfixturevalue("hami")["webhooks"] if beside else []
    left: list[Json] = [
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRole",
            "metadata": {"name": HAMI},
            "rules": [],
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": HAMI},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": HAMI},
            "subjects": [{"kind": "ServiceAccount", "name": "hami-webhook", "namespace": "hami-system"}],
        },
    ]
    cluster.apply(*as_0_1_0(cluster), *left)
    assert {*names_in(cluster, HAMI)} == {"pods.hami.io", *(one["name"] for one in theirs)}

    # Both are there for a while: a pod is converted once.
    before = webhook.metric("hami_webhook_reviews_total")
    assert len(dry_run(cluster, GPU_POD)["spec"]["resourceClaims"]) == 1
    assert webhook.metric("hami_webhook_reviews_total") == before + 1

    tools = cluster.directory / "bin" / cluster.version
    environment = {
        "PATH": f"{tools}:{os.environ['PATH']}",
        "KUBECONFIG": str(cluster.kubeconfig),
        "HOME": str(cluster.directory),
    }
    commands = ["bash", "-euc", documented("### From 0.1.0")]
    done = subprocess.run(commands, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    found = cluster.get(MUTATING, HAMI)
    assert (found["webhooks"] if found else []) == theirs
    for kind in ("validatingwebhookconfiguration", "clusterrole", "clusterrolebinding"):
        assert cluster.get(kind, HAMI) is None, kind
    assert len(dry_run(cluster, GPU_POD)["spec"]["resourceClaims"]) == 1
