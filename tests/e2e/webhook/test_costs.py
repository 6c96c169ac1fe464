"""What one who may create pods can have written, on a real API server, and what it tells him."""

import asyncio
import json
from collections.abc import Iterator

import pytest

from hami_kubeletplugin.api.errors import ApiDenied, ApiUnavailable
from hami_kubeletplugin.kube.call import Call
from hami_kubeletplugin.kube.client import Client
from hami_kubeletplugin.kube.config import load
from tests.e2e.cluster import Cluster, Json, KubectlFailed
from tests.e2e.webhook.objects import dry_run, gpu_pod, templates, wanting
from tests.e2e.webhook.process import Webhook
from tests.waiting import wait_for

GREEDY, MODEST = "greedy", "modest"
AT_ONCE = 480 * 1024
"""Bytes of templates that a namespace may have made in two minutes (`--namespace-template-rate`)."""
UUIDS = ",".join(f"GPU-{number:036}" for number in range(128))


@pytest.fixture
def namespaces(cluster: Cluster, webhook: Webhook) -> Iterator[None]:
    """One in which no pod may be, and another one."""
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "none", "namespace": GREEDY},
        "spec": {"hard": {"pods": "0"}},
    }
    for name in (GREEDY, MODEST):
        cluster.make_namespace(name)
    cluster.apply(quota)
    wait_for("the quota to be counted", lambda: (cluster.get("resourcequota", "none", GREEDY) or {}).get("status"))
    yield
    cluster.kubectl("delete", "namespace", GREEDY, MODEST, timeout=90)


def large(number: int, namespace: str = GREEDY) -> Json:
    """A pod whose template nobody has, with a list as long as can be."""
    annotations = {"use-gpuuuid": UUIDS, "nouse-gpuuuid": f"GPU-{number}"}
    containers = [wanting(f"c{index}", gpu=1, gpumem=8 * number + index + 1) for index in range(4)]
    return gpu_pod(f"p{number}", *containers, annotations=annotations, namespace=namespace)


async def create(client: Client, made: Json) -> str:
    """Create a pod; what the API server says, and `wait` if it asks to be asked again."""
    namespace = made["metadata"]["namespace"]
    try:
        await client.ask(Call("create", "pods", f"/api/v1/namespaces/{namespace}/pods"), made)
    except ApiDenied as denied:
        return str(denied)
    except ApiUnavailable as later:
        return f"wait {later.retry_after}: {later}"
    return ""


def test_templates_of_pods_that_a_quota_refuses(cluster: Cluster, webhook: Webhook, namespaces: None) -> None:
    """However many pods he tries, so many bytes are written at once; then it is 429, with the time to wait. Others go on."""

    async def flood() -> tuple[list[str], str]:
        async with Client(load(cluster.kubeconfig), timeout=30) as client:
            said = [await create(client, large(number)) for number in range(1, 41)]
            return said, await create(client, large(99, MODEST))

    said, other = asyncio.run(flood())
    refused = [words for words in said if "exceeded quota" in words]
    waiting = [words for words in said if words.startswith("wait")]
    assert len(refused) >= 10
    assert len(waiting) >= 10
    assert len(refused) + len(waiting) == len(said)
    assert all(
        "too many ResourceClaimTemplates were made in namespace greedy a moment ago" in words for words in waiting
    )
    assert all(1 <= float(words.split(":")[0].removeprefix("wait ")) <= 10 for words in waiting)
    written = sum(len(json.dumps(found["spec"])) for found in templates(cluster, GREEDY).values())
    assert written < 1.1 * AT_ONCE
    assert other == ""
    assert templates(cluster, MODEST)


def test_a_pod_that_needs_too_many_templates(cluster: Cluster, webhook: Webhook) -> None:
    """It is refused with 403 and the number, before any of them is written."""
    before = templates(cluster)
    many = [wanting(f"c{number}", gpu=1, gpumem=4321 + number) for number in range(9)]
    with pytest.raises(KubectlFailed, match=r"ask for GPUs in 9 different ways.*a pod may have 8"):
        cluster.apply(gpu_pod("many", *many))
    assert templates(cluster) == before


def test_a_pod_that_would_take_long_to_read(cluster: Cluster, webhook: Webhook) -> None:
    """Who sends more values than are read is told so, and how many; not that a call failed."""
    main = wanting(gpu=1)
    main["env"] = [{"name": f"V{number}", "value": "x"} for number in range(21_000)]
    with pytest.raises(
        KubectlFailed, match=r"denied the request: the object has some \d+ values .*at most 60000 are taken"
    ):
        dry_run(cluster, gpu_pod("long", main))
    main["env"] = main["env"][:5200]
    with pytest.raises(KubectlFailed, match=r"spec.containers\[0\].env: 5200 entries, at most 5000 are taken"):
        dry_run(cluster, gpu_pod("long", main))
    main["env"] = main["env"][:3000]
    assert "resourceClaims" in dry_run(cluster, gpu_pod("long", main))["spec"]
