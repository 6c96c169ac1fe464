"""claim-limits.yaml on a real API server: what one claim may ask for, by namespace, and what it says to who asks for more."""

import json
from collections.abc import Iterator

import pytest
import yaml

from tests.e2e.cluster import NAMESPACE, REPOSITORY, Cluster, Json, KubectlFailed
from tests.e2e.daemon import DRIVER
from tests.e2e.manifests import claim, request, template
from tests.e2e.webhook.objects import dry_run, gpu_pod, templates, wanting
from tests.e2e.webhook.process import Webhook
from tests.waiting import wait_for

LABEL = "hami.io/claim-limits"


def first_available(name: str, *counts: int, device_class: str = DRIVER) -> Json:
    """A request with alternatives."""
    alternatives = [
        {"name": f"a{number}", "deviceClassName": device_class, "count": count} for number, count in enumerate(counts)
    ]
    return {"name": name, "firstAvailable": alternatives}


@pytest.fixture(scope="module")
def limited(cluster: Cluster) -> Iterator[None]:
    """The manifest, and a second set of numbers for namespaces with a label, as its last comment says."""
    items = [*yaml.safe_load_all((REPOSITORY / "claim-limits.yaml").read_text())]
    numbers, _, binding = (json.loads(json.dumps(item)) for item in items)
    for other in (numbers, binding):
        other["metadata"]["name"] = "hami-claim-limits-small"
    numbers["data"] |= {"gpus": "1", "all": "allowed"}
    binding["spec"]["paramRef"]["name"] = "hami-claim-limits-small"
    binding["spec"]["matchResources"]["namespaceSelector"] = {"matchLabels": {LABEL: "small"}}
    items += [numbers, binding]
    cluster.apply(*items)
    cluster.make_namespace("small", {LABEL: "small"})
    wait_for("the policy to be in force", lambda: " GPUs, " in refused(cluster, claim("c", request(count=10))))
    wait_for(
        "the other numbers to be in force", lambda: " GPUs, " in refused(cluster, claim("c", request(count=2)), "small")
    )
    yield
    cluster.kubectl("delete", "namespace", "small", timeout=90)
    for item in items:
        namespace = item["metadata"].get("namespace", NAMESPACE)
        cluster.kubectl("delete", item["kind"], item["metadata"]["name"], "-n", namespace)


def refused(cluster: Cluster, obj: Json, namespace: str = NAMESPACE) -> str:
    """Why it can't be created; empty if it can."""
    obj = obj | {"metadata": obj["metadata"] | {"namespace": namespace}}
    try:
        dry_run(cluster, obj)
    except KubectlFailed as failed:
        return str(failed)
    return ""


@pytest.mark.parametrize("make", [claim, template])
@pytest.mark.parametrize(
    ("requests", "says"),
    [
        ([request(f"r{number}") for number in range(6)], "6 requests for GPUs, in this namespace a claim may have 5"),
        ([request(count=10)], "10 GPUs, in this namespace a claim may ask for 9"),
        ([request("a", count=5), request("b", count=5)], "10 GPUs, "),
        ([first_available("r", 1, 10, 2)], "10 GPUs, "),
        ([first_available("r", *[1] * 8), request("b")], "9 alternatives in all requests together, "),
        ([request(allocationMode="All")], "allocationMode All is not allowed in this namespace"),
    ],
)
def test_what_is_over_a_bound(
    cluster: Cluster, webhook: Webhook, limited: None, make: type, requests: list[Json], says: str
) -> None:
    """A claim, or a template, that asks for more is refused with the number, the bound and 403."""
    message = refused(cluster, make("c", *requests))
    assert "denied request" in message
    assert says in message
    assert "Forbidden" in message or "forbidden" in message


@pytest.mark.parametrize("make", [claim, template])
@pytest.mark.parametrize(
    "requests",
    [
        [request()],
        [request(count=9)],
        [request(f"r{number}") for number in range(5)],
        [first_available("r", *[1] * 8)],
        [request(f"r{number}", device_class="other.example.com", count=16) for number in range(8)],
    ],
)
def test_what_is_within(cluster: Cluster, webhook: Webhook, limited: None, make: type, requests: list[Json]) -> None:
    """What the scheduler finds out about soon is created, and what is for other classes is nobody's business."""
    assert refused(cluster, make("c", *requests)) == ""


def test_an_older_version_of_the_api(cluster: Cluster, webhook: Webhook, limited: None) -> None:
    """Whoever writes v1beta1 has the same bounds."""
    flat = claim("c") | {"apiVersion": "resource.k8s.io/v1beta1"}
    flat["spec"] = {"devices": {"requests": [{"name": "r", "deviceClassName": DRIVER, "count": 10}]}}
    message = refused(cluster, flat)
    if "no matches for kind" not in message:
        assert "10 GPUs, in this namespace a claim may ask for 9" in message


def test_numbers_of_a_namespace(cluster: Cluster, webhook: Webhook, limited: None) -> None:
    """A namespace with the label has the numbers of its own binding, and not the others."""
    assert "2 GPUs, in this namespace a claim may ask for 1" in refused(cluster, claim("c", request(count=2)), "small")
    assert refused(cluster, claim("c", request(allocationMode="All")), "small") == ""


def test_pods_have_the_same_bounds(cluster: Cluster, webhook: Webhook, limited: None) -> None:
    """A pod within gets its template from the webhook; one over is told so by the webhook, in the policy's words."""
    cluster.apply(gpu_pod("p", wanting(gpu=1, gpumem=1234), namespace="small"))
    made = templates(cluster, "small")
    assert len(made) == 1
    wait_for("the pod's claim", lambda: cluster.all("resourceclaims", "small"))
    with pytest.raises(KubectlFailed) as failed:
        cluster.apply(gpu_pod("q", wanting(gpu=2, gpumem=1234), namespace="small"))
    assert 'admission webhook "pods.hami.io" denied the request' in str(failed.value)
    assert "2 GPUs, in this namespace a claim may ask for 1" in str(failed.value)
    assert templates(cluster, "small") == made
