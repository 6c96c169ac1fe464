"""What is said of a claim that is prepared: in `status.devices`, and to its containers in files."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
import yaml

from hami_kubeletplugin.api.errors import ApiInvalid, ApiNotFound
from hami_kubeletplugin.kube.claim_status_api import ClaimStatusApi
from hami_kubeletplugin.kube.config import load
from hami_kubeletplugin.kube.resource_api import KubeClient
from tests.e2e.cluster import NAMESPACE, NODE, REPOSITORY, Cluster, Json, KubectlFailed
from tests.e2e.daemon import DRIVER, Daemon
from tests.e2e.manifests import API, claim, container, minor, pod, request, template
from tests.waiting import wait_for

TOLD: Final = "/var/run/kubernetes.io/dra-device-attributes"
OTHER: Final = "net.example.com"
"""A driver that says something of the same claim."""


@pytest.fixture(scope="module")
def rights(cluster: Cluster) -> Iterator[None]:
    """Those of claim-status.yaml."""
    objects = list(yaml.safe_load_all((REPOSITORY / "claim-status.yaml").read_text()))
    cluster.apply(*objects)
    yield
    for item in objects:
        cluster.kubectl("delete", item["kind"], item["metadata"]["name"])


@pytest.fixture
def telling(rights: None, daemon: Daemon) -> Iterator[Daemon]:
    """The daemon, with --device-status=written."""
    daemon.stop()
    daemon.start("--device-status=written")
    yield daemon
    daemon.restart()


@pytest.fixture
def token(cluster: Cluster, tmp_path: Path) -> Path:
    """A kubeconfig with a token as the daemon's pod on our node has it."""
    return cluster.kubeconfig_for(cluster.node_token("hami-system", "hami-kubeletplugin"), tmp_path / "kubeconfig")


def read(cluster: Cluster, pod_name: str, path: str) -> Json:
    """The newest version of a file in a container, by any user's rights."""
    text = cluster.run_in(pod_name, "main", "cat", f"{TOLD}/{path}/{DRIVER}-metadata.json")
    newest, older = (json.loads(line) for line in text.splitlines())
    assert [each.pop("apiVersion").rpartition("/")[2] for each in (newest, older)] == ["v1beta1", "v1alpha1"]
    assert newest == older
    found: Json = newest
    return found


def devices(told: Json) -> list[tuple[str, str, int, int]]:
    """Request, device, memory and cores."""
    return [
        (
            one["name"],
            device["name"],
            *(device["attributes"][name]["int"] for name in ("memoryLimitMiB", "coresPercent")),
        )
        for one in told["requests"]
        for device in one["devices"]
    ]


def test_containers_read_what_they_have(daemon: Daemon, cluster: Cluster) -> None:
    """By the names in their manifests, of claims from templates and of named ones, any user; the same after a restart."""
    either = {
        "name": "either",
        "firstAvailable": [{**request(name, memory="1Gi", cores=5)["exactly"], "name": name} for name in ("small",)],
    }
    user = {"runAsUser": 65534, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
    cluster.apply(
        template("t", request(memory="2000Mi", cores=20, selector=minor(1))),
        claim("named", request("two", memory="1000Mi", cores=10, selector=minor(2)), either),
        pod(
            "p",
            container(claims=["gpu", "more"], securityContext=user),
            templates={"gpu": "t"},
            claims={"more": "named"},
        ),
    )
    cluster.running("p")
    (generated,) = (each for each in cluster.all("resourceclaims") if each["metadata"]["name"] != "named")
    told = read(cluster, "p", "resourceclaimtemplates/gpu/gpu")
    assert (told["podClaimName"], told["metadata"]["uid"]) == ("gpu", generated["metadata"]["uid"])
    assert devices(told) == [("gpu", "hami-gpu-1", 2000, 20)]
    (result,) = generated["status"]["allocation"]["devices"]["results"]
    (device,) = told["requests"][0]["devices"]
    assert device["attributes"]["shareID"] == {"string": result["shareID"]}
    (published,) = (
        each
        for item in cluster.all("resourceslices")
        if item["spec"]["driver"] == DRIVER
        for each in item["spec"]["devices"]
        if each["name"] == "hami-gpu-1"
    )
    assert published["attributes"].items() <= device["attributes"].items()
    assert devices(read(cluster, "p", "resourceclaims/named/two")) == [("two", "hami-gpu-2", 1000, 10)]
    ((name, *_, memory, cores),) = devices(read(cluster, "p", "resourceclaims/named/either"))
    assert (name, memory, cores) == ("either/small", 1024, 5)
    files = sorted((daemon.plugin_dir / "dra-device-metadata").iterdir())
    assert len(files) == 3
    daemon.restart()
    assert sorted((daemon.plugin_dir / "dra-device-metadata").iterdir()) == files
    cluster.delete("pod", "p")
    wait_for("the files to go", lambda: not any((daemon.plugin_dir / "dra-device-metadata").iterdir()))


def statuses(cluster: Cluster, name: str) -> list[Json]:
    """`status.devices` of a claim."""
    found = cluster.get("resourceclaim", name)
    assert found
    entries: list[Json] = found["status"].get("devices", [])
    return entries


def patch(cluster: Cluster, name: str, status: Json, *words: str, manager: str = "somebody") -> str:
    """Apply a claim's status."""
    body = {
        "apiVersion": API,
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "status": status,
    }
    apply = ("apply", "--server-side", "--subresource=status", f"--field-manager={manager}", "-f", "-")
    return cluster.kubectl(*words, *apply, stdin=json.dumps(body))


def test_the_status_of_claims(telling: Daemon, cluster: Cluster) -> None:
    """Each share of a prepared claim is ready; what is missing after a restart is written again; at the end they are gone."""
    cluster.apply(
        claim(
            "c",
            request(memory="1000Mi", cores=10, selector=minor(1)),
            request("more", memory="2000Mi", selector=minor(1)),
        ),
        pod("p", container(claims=["gpu"]), claims={"gpu": "c"}),
    )
    cluster.running("p")
    first, second = wait_for("the claim's status", lambda: statuses(cluster, "c"), timeout=10)
    assert (first["device"], second["device"]) == ("hami-gpu-1", "hami-gpu-1")
    assert first["shareID"] != second["shareID"]
    assert [each["data"].get("memoryMiB") for each in (first, second)] == [1000, 2000]
    assert [(c["type"], c["status"]) for c in first["conditions"]] == [("Ready", "True")]
    telling.stop()
    cluster.kubectl(
        "patch", "resourceclaim", "c", "-n", NAMESPACE, "--subresource=status", "--type=json",
        "--patch", json.dumps([{"op": "remove", "path": "/status/devices/1"}]),
    )  # fmt: skip
    telling.start("--device-status=written")
    wait_for("the entry to be there again", lambda: len(statuses(cluster, "c")) == 2)
    assert first["data"] in [each["data"] for each in statuses(cluster, "c")]
    cluster.delete("pod", "p")

    wait_for("the entries to go", lambda: not statuses(cluster, "c"), timeout=30)


def allocated(cluster: Cluster, name: str, *drivers: str, node: str = NODE) -> list[Json]:
    """A claim that somebody has allocated; the keys of its entries in `status.devices`."""
    share = "4a1f8a52-5d3c-4a52-9d2c-6f5a4f0e7b11"
    keys: list[Json] = [{"driver": driver, "pool": node, "device": "d", "shareID": share} for driver in drivers]
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    allocation = {
        "devices": {"results": [{"request": "gpu", **key, "consumedCapacity": {"memory": "1Gi"}} for key in keys]},
        "nodeSelector": {"nodeSelectorTerms": [term]},
    }
    cluster.apply(claim(name, request(memory="1Gi")))
    patch(cluster, name, {"allocation": allocation})
    return keys


@pytest.fixture
def all_rights(cluster: Cluster) -> Iterator[None]:
    """The daemon's token has all rights over the status of claims, as the manifest's alone give on Kubernetes 1.35."""
    name = "e2e-all-of-claims-status"
    rules = [
        {"apiGroups": ["resource.k8s.io"], "resources": [f"resourceclaims/{part}"], "verbs": verbs}
        for part, verbs in (("binding", ["patch"]), ("driver", ["arbitrary-node:patch"]))
    ]
    rbac = "rbac.authorization.k8s.io"
    role = {"apiVersion": f"{rbac}/v1", "kind": "ClusterRole", "metadata": {"name": name}}
    subject = {"kind": "ServiceAccount", "name": "hami-kubeletplugin", "namespace": "hami-system"}
    ref = {"apiGroup": rbac, "kind": "ClusterRole", "name": name}
    cluster.apply(
        {**role, "rules": rules}, {**role, "kind": "ClusterRoleBinding", "roleRef": ref, "subjects": [subject]}
    )
    yield
    cluster.kubectl("delete", "clusterrole,clusterrolebinding", name)


BINDING: Final = {"reservedFor": [{"resource": "pods", "name": "q", "uid": "u"}]}
REFUSED: Final = [
    (DRIVER, "node-b", {}, "the daemon on node node-1 may write the status of claims only that are allocated to it"),
    (OTHER, NODE, {}, "entries of the driver gpu.hami.io in status.devices only"),
    (DRIVER, NODE, BINDING, "the daemon may write status.devices of claims only"),
]


@pytest.mark.since("1.36")
@pytest.mark.parametrize(("driver", "node", "status"), [each[:3] for each in REFUSED])
def test_what_the_rights_are_not_for(
    rights: None, daemon: Daemon, cluster: Cluster, token: Path, driver: str, node: str, status: Json
) -> None:
    """Neither a claim of another node, nor another driver's entry, nor who has the claim."""
    keys = allocated(cluster, "c", driver, node=node)
    with pytest.raises(KubectlFailed, match='requires resource="resourceclaims/'):
        patch(cluster, "c", {"devices": keys, **status}, "--kubeconfig", str(token), manager=DRIVER)


@pytest.mark.parametrize(("driver", "node", "status", "message"), REFUSED)
def test_what_the_policy_does_not_let_through(
    rights: None, all_rights: None, daemon: Daemon, cluster: Cluster, token: Path,
    driver: str, node: str, status: Json, message: str,
) -> None:  # fmt: skip
    """The same where no right says so."""
    keys = allocated(cluster, "c", driver, node=node)

    def refused() -> bool:  # rights count some moments after they were written
        with pytest.raises(KubectlFailed) as failed:
            patch(cluster, "c", {"devices": keys, **status}, "--kubeconfig", str(token), manager=DRIVER)
        assert message in str(failed.value)
        return True

    wait_for("the policy to say no", refused, timeout=10)


def test_what_the_token_may_write(rights: None, daemon: Daemon, cluster: Cluster, token: Path) -> None:
    """Entries of its own driver in a claim of its own node; those of others stay, also when its own go."""
    ours, others = allocated(cluster, "c", DRIVER, OTHER)
    patch(cluster, "c", {"devices": [{**others, "data": {"ip": "a"}}]}, manager=OTHER)
    found = cluster.get("resourceclaim", "c")
    assert found
    uid = found["metadata"]["uid"]

    async def say(uid: str, *entries: Json) -> None:
        async with KubeClient(load(token)) as client:
            await ClaimStatusApi(client, DRIVER).apply_devices(NAMESPACE, "c", uid, entries)

    asyncio.run(say(uid, {**ours, "data": {"uuid": "u"}}))
    assert sorted(str(each["data"]) for each in statuses(cluster, "c")) == ["{'ip': 'a'}", "{'uuid': 'u'}"]
    asyncio.run(say(uid))
    assert [each["data"] for each in statuses(cluster, "c")] == [{"ip": "a"}]
    with pytest.raises(ApiInvalid, match="uid"):
        asyncio.run(say("another", {**ours, "data": {"uuid": "u"}}))
    cluster.delete("resourceclaim", "c")
    with pytest.raises(ApiNotFound):
        asyncio.run(say(uid))
