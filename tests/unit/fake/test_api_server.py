"""fake.api_server behaves as the real one where the webhook depends on it: paths, patches, pages, refusals."""

import json
from contextlib import aclosing
from typing import Any

import pytest

from hami_kubeletplugin.api.errors import (
    ApiConflict,
    ApiError,
    ApiExpired,
    ApiForbidden,
    ApiInvalid,
    ApiNotFound,
    ApiNotServed,
)
from hami_kubeletplugin.fake.api_patch import MERGE, STRATEGIC, patched
from hami_kubeletplugin.fake.api_server import ApiServer
from hami_kubeletplugin.kube.call import Call
from hami_kubeletplugin.kube.client import Client

CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
SECRETS = "/api/v1/namespaces/one/secrets"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/one/leases"
TEMPLATES = "/apis/resource.k8s.io/v1/namespaces/one/resourceclaimtemplates"


def call(verb: str, path: str, **more: Any) -> Call:
    """A call to a path."""
    return Call(verb, path.rsplit("/", 1)[1], path, **more)


@pytest.mark.parametrize(
    ("path", "api_version", "kind"),
    [
        (
            "/apis/resource.k8s.io/v1/namespaces/one/resourceclaimtemplates",
            "resource.k8s.io/v1",
            "ResourceClaimTemplate",
        ),
        (LEASES, "coordination.k8s.io/v1", "Lease"),
        (SECRETS, "v1", "Secret"),
        ("/api/v1/namespaces/one/replicationcontrollers", "v1", "ReplicationController"),
        ("/apis/apps/v1/namespaces/one/deployments", "apps/v1", "Deployment"),
        ("/apis/apps/v1/namespaces/one/statefulsets", "apps/v1", "StatefulSet"),
        ("/apis/apps/v1/namespaces/one/daemonsets", "apps/v1", "DaemonSet"),
        ("/apis/apps/v1/namespaces/one/replicasets", "apps/v1", "ReplicaSet"),
        ("/apis/batch/v1/namespaces/one/jobs", "batch/v1", "Job"),
        ("/apis/batch/v1/namespaces/one/cronjobs", "batch/v1", "CronJob"),
        (CONFIGURATIONS, "admissionregistration.k8s.io/v1", "MutatingWebhookConfiguration"),
    ],
)
async def test_each_kind_has_its_own_path(
    server: ApiServer, client: Client, path: str, api_version: str, kind: str
) -> None:
    """What is created at a kind's path is found there, listed as that kind, and nowhere else."""
    await client.ask(call("create", path), {"metadata": {"name": "a"}})
    found = await client.ask(call("get", f"{path}/a"))
    assert (found["apiVersion"], found["kind"]) == (api_version, kind)
    listed = await client.ask(call("list", path))
    assert (listed["apiVersion"], listed["kind"], len(listed["items"])) == (api_version, f"{kind}List", 1)
    with pytest.raises(ApiNotServed):
        await client.ask(call("list", path.replace("/v1", "/v2")))


async def test_merge_patch(server: ApiServer, client: Client) -> None:
    """A merge patch sets and removes what it names and leaves the rest; one that changes nothing makes no new version."""
    server.put(
        "secrets",
        {"metadata": {"namespace": "one", "name": "s", "labels": {"a": "1", "b": "2"}}, "data": {"x": "eA=="}},
    )
    patch = {"metadata": {"labels": {"a": None, "c": "3"}}}
    after = await client.ask(call("patch", f"{SECRETS}/s", content_type=MERGE), patch)
    assert after["metadata"]["labels"] == {"b": "2", "c": "3"}
    assert after["data"] == {"x": "eA=="}
    again = await client.ask(call("patch", f"{SECRETS}/s", content_type=MERGE), patch)
    assert again["metadata"]["resourceVersion"] == after["metadata"]["resourceVersion"]
    assert server.requests["patch", "secrets"] == server.writes == 2


async def test_patch_of_an_old_version_is_a_conflict(server: ApiServer, client: Client) -> None:
    """A resourceVersion in the patch is a condition, and so is a uid; without one the patch is always taken."""
    old = server.put("secrets", {"metadata": {"namespace": "one", "name": "s"}})["metadata"]
    server.put("secrets", {"metadata": {"namespace": "one", "name": "s", "labels": {"a": "1"}}})
    for condition in ({"resourceVersion": old["resourceVersion"]}, {"uid": "another"}):
        with pytest.raises(ApiConflict):
            await client.ask(call("patch", f"{SECRETS}/s", content_type=MERGE), {"metadata": condition})
    await client.ask(call("patch", f"{SECRETS}/s", content_type=MERGE), {"metadata": {"labels": {"b": "2"}}})
    assert server.all("secrets")[0]["metadata"]["labels"] == {"a": "1", "b": "2"}
    with pytest.raises(ApiNotFound):
        await client.ask(call("patch", f"{SECRETS}/t", content_type=MERGE), {})
    with pytest.raises(ApiError, match="415"):
        await client.ask(call("patch", f"{SECRETS}/s", content_type="application/json-patch+json"), {})


async def test_strategic_patch_merges_webhooks_by_name(server: ApiServer, client: Client) -> None:
    """The webhooks named in a strategic patch change, the others stay; a merge patch replaces the list."""
    webhooks = [{"name": name, "clientConfig": {"url": "https://x"}} for name in ("a", "b")]
    server.put("mutatingwebhookconfigurations", {"metadata": {"name": "w"}, "webhooks": webhooks})
    patch = {"webhooks": [{"name": "b", "clientConfig": {"caBundle": "eA=="}}]}
    strategic = call("patch", f"{CONFIGURATIONS}/w", content_type=STRATEGIC)
    after = await client.ask(strategic, patch)
    assert after["webhooks"] == [webhooks[0], {"name": "b", "clientConfig": {"url": "https://x", "caBundle": "eA=="}}]
    with pytest.raises(ApiInvalid, match="merge key: name"):
        await client.ask(strategic, {"webhooks": [{}]})
    after = await client.ask(call("patch", f"{CONFIGURATIONS}/w", content_type=MERGE), patch)
    assert after["webhooks"] == patch["webhooks"]


@pytest.mark.parametrize(
    ("target", "patch", "result"),
    [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_merge_patch_of_the_rfc(target: dict[str, Any], patch: dict[str, Any], result: dict[str, Any]) -> None:
    """The examples of RFC 7386, appendix A, that patch an object with an object."""
    before = json.dumps(target)
    assert patched(target, patch, MERGE) == result
    assert json.dumps(target) == before


async def test_pages_show_one_state(server: ApiServer, client: Client) -> None:
    """All pages of a list show the objects of its first one, whatever happens in between, and have its version."""
    for name in "abcde":
        server.put("pods", {"metadata": {"namespace": "one", "name": name}})
    path = "/api/v1/namespaces/one/pods"
    first = await client.ask(call("list", path, query={"limit": "2"}))
    server.remove("pods", "e", "one")
    server.put("pods", {"metadata": {"namespace": "one", "name": "f"}})
    second = await client.ask(call("list", path, query={"limit": "2", "continue": first["metadata"]["continue"]}))
    third = await client.ask(call("list", path, query={"limit": "2", "continue": second["metadata"]["continue"]}))
    pages = [first, second, third]
    assert [[item["metadata"]["name"] for item in page["items"]] for page in pages] == [["a", "b"], ["c", "d"], ["e"]]
    assert len({page["metadata"]["resourceVersion"] for page in pages}) == 1
    assert "continue" not in third["metadata"]
    server.store.compact()
    with pytest.raises(ApiExpired):
        await client.ask(call("list", path, query={"limit": "2", "continue": first["metadata"]["continue"]}))


async def test_watch_of_one_namespace(server: ApiServer, client: Client) -> None:
    """A watch below a namespace shows only what is in it."""
    server.put("secrets", {"metadata": {"namespace": "two", "name": "s"}})
    server.put("secrets", {"metadata": {"namespace": "one", "name": "s"}})
    watch = call("watch", SECRETS, query={"watch": "1", "resourceVersion": "1"})
    async with aclosing(client.watch(watch, 10)) as events:
        assert (await anext(events)).object["metadata"]["namespace"] == "one"


async def test_namespaces_that_go_or_are_not_there(server: ApiServer, client: Client) -> None:
    """Once there are namespaces, nothing can be created in others, nor in one that is being deleted."""
    server.put("namespaces", {"metadata": {"name": "two"}})
    with pytest.raises(ApiNotFound, match='namespaces "one" not found'):
        await client.ask(call("create", SECRETS), {"metadata": {"name": "s"}})
    server.put("namespaces", {"metadata": {"name": "one"}, "status": {"phase": "Terminating"}})
    with pytest.raises(ApiForbidden, match="being terminated"):
        await client.ask(call("create", SECRETS), {"metadata": {"name": "s"}})


async def test_what_is_refused(server: ApiServer, client: Client) -> None:
    """A template's spec can't change, a lease isn't updated without its version, and bytes must be base64."""
    server.put("resourceclaimtemplates", {"metadata": {"namespace": "one", "name": "t"}, "spec": {"spec": {}}})
    with pytest.raises(ApiInvalid, match="immutable"):
        await client.ask(call("update", f"{TEMPLATES}/t"), {"metadata": {"name": "t"}, "spec": {"spec": {"x": 1}}})
    server.put("leases", {"metadata": {"namespace": "one", "name": "l"}})
    with pytest.raises(ApiInvalid, match="must be specified for an update"):
        await client.ask(call("update", f"{LEASES}/l"), {"metadata": {"name": "l"}, "spec": {}})
    with pytest.raises(ApiInvalid, match="base64"):
        await client.ask(call("create", SECRETS), {"metadata": {"name": "s"}, "data": {"x": "%"}})
    made = await client.ask(call("create", SECRETS), {"metadata": {"name": "s"}, "stringData": {"x": "y"}})
    assert (made["type"], made["data"], "stringData" in made) == ("Opaque", {"x": "eQ=="}, False)
