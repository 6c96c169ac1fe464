"""kube.template_api: the webhook's requests, over real HTTP."""

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest

from hami_kubeletplugin.api.errors import ApiConflict, ApiDenied, ApiForbidden, ApiNotFound
from hami_kubeletplugin.fake.api_server import ApiServer
from hami_kubeletplugin.kube.config import Access
from hami_kubeletplugin.kube.resource_api import PAGE, SLICES_PAGE, kept
from hami_kubeletplugin.kube.template_api import TEMPLATES, Namespaced, TemplateClient, key_of
from tests.unit.kube.fakes import new_slice


def template(name: str = "t", namespace: str = "one", **metadata: Any) -> dict[str, Any]:
    """A template."""
    return {"metadata": {"namespace": namespace, "name": name, **metadata}, "spec": {"spec": {"devices": {}}}}


@pytest.fixture
async def templates(server: ApiServer) -> AsyncIterator[TemplateClient]:
    """A client of the server."""
    async with TemplateClient(Access(server.url)) as client:
        yield client


async def test_life_of_a_template(templates: TemplateClient) -> None:
    """Created, found, annotated beside what others annotated, and deleted only as it was last seen."""
    created = await templates.create_template(template(annotations={"a": "1"}))
    with pytest.raises(ApiConflict, match=r"create resourceclaimtemplates\.resource\.k8s\.io one/t failed"):
        await templates.create_template(template())
    annotated = await templates.annotate_template("one", "t", {"b": "2"})
    assert annotated["metadata"]["annotations"] == {"a": "1", "b": "2"}
    assert await templates.get_template("one", "t") == annotated
    with pytest.raises(ApiConflict, match="delete resourceclaimtemplates"):
        await templates.delete_template(created)
    await templates.delete_template(annotated)
    for gone in (templates.get_template("one", "t"), templates.annotate_template("one", "t", {})):
        with pytest.raises(ApiNotFound, match="one/t"):
            await gone


async def test_all_templates_in_pages(server: ApiServer, templates: TemplateClient) -> None:
    """Of all templates of all namespaces, in pages, what is wanted is kept; and they can be watched from there on."""
    for number in range(PAGE + 3):
        server.put("resourceclaimtemplates", template(f"t{number:04}", namespace=f"n{number % 2}"))
    listed = await kept(
        templates.pages(TEMPLATES), lambda item: key_of(item) if item["metadata"]["name"] != "t0001" else None
    )
    assert len(set(listed.items)) == PAGE + 2
    assert server.requests["list", "resourceclaimtemplates"] == 2
    server.put("resourceclaimtemplates", template("new"))
    server.remove("resourceclaimtemplates", "new", "one")
    server.store.bookmark()
    async with aclosing(templates.watch_templates(listed.resource_version)) as events:
        seen = [await anext(events) for _ in range(3)]
    assert [event.type for event in seen] == ["ADDED", "DELETED", "BOOKMARK"]


async def test_pages_of_one_namespace(server: ApiServer, templates: TemplateClient) -> None:
    """Pods and workloads of a namespace come page by page; none of another one."""
    for namespace in ("one", "two"):
        server.put("pods", {"metadata": {"namespace": namespace, "name": "p"}})
        server.put("deployments", {"metadata": {"namespace": namespace, "name": "d"}})
    for resource in (Namespaced("pods"), Namespaced("deployments", "apps")):
        async with aclosing(templates.pages(resource, "one")) as pages:
            found = [item["metadata"] async for page in pages for item in page.items]
        assert [metadata["namespace"] for metadata in found] == ["one"]
    server.fail(403, resource="deployments")
    with pytest.raises(
        ApiForbidden, match=r"list deployments\.apps one failed: .*allow verb list on deployments\.apps"
    ):
        await anext(templates.pages(Namespaced("deployments", "apps"), "one"))


async def test_leases(templates: TemplateClient) -> None:
    """Of two who renew one version of a lease, one gets a conflict; and so does who creates one that is there."""
    lease = {"metadata": {"namespace": "one", "name": "l"}, "spec": {"holderIdentity": "a"}}
    with pytest.raises(ApiNotFound):
        await templates.get_lease("one", "l")
    created = await templates.create_lease(lease)
    with pytest.raises(ApiConflict):
        await templates.create_lease(lease)
    updated = await templates.update_lease(created | {"spec": {"holderIdentity": "b"}})
    with pytest.raises(ApiConflict):
        await templates.update_lease(created | {"spec": {"holderIdentity": "c"}})
    assert await templates.get_lease("one", "l") == updated


@pytest.mark.parametrize("version", ["v1", "v1beta2", "v1beta1"])
async def test_slices_of_many_nodes_in_pages(server: ApiServer, templates: TemplateClient, version: str) -> None:
    """The slices of a driver on all nodes come page by page, whatever version is served, in the form of v1."""
    server.api_versions = (version,)
    for number in range(2 * SLICES_PAGE + 1):
        obj = new_slice()
        obj["metadata"] = {"name": f"slice-{number:04}"}
        server.put("resourceslices", obj)
    listed = await kept(templates.slice_pages("gpu.hami.io"), lambda item: item["spec"]["devices"][0])
    assert len(listed.items) == 2 * SLICES_PAGE + 1
    assert all(device["allowMultipleAllocations"] is True for device in listed.items)
    assert server.requests["list", "resourceslices"] == 3
    assert await kept(templates.slice_pages("other.io"), lambda item: item) == ([], listed.resource_version)


@pytest.mark.parametrize("version", ["v1", "v1beta2", "v1beta1"])
async def test_slices_of_all_nodes(server: ApiServer, templates: TemplateClient, version: str) -> None:
    """Without a node, the slices of a driver on all nodes are listed and watched, in the form of v1."""
    server.api_versions = (version,)
    for node in ("n1", "n2"):
        obj = new_slice()
        obj["metadata"], obj["spec"]["nodeName"] = {"name": f"slice-{node}"}, node
        server.put("resourceslices", obj)
    other = new_slice()
    other["metadata"], other["spec"]["driver"] = {"name": "other"}, "other.io"
    server.put("resourceslices", other)
    listed = await templates.list_slices("gpu.hami.io")
    assert [item["spec"]["nodeName"] for item in listed.items] == ["n1", "n2"]
    server.remove("resourceslices", "other")
    server.remove("resourceslices", "slice-n2")
    async with aclosing(templates.watch_slices("gpu.hami.io", None, listed.resource_version)) as events:
        event = await anext(events)
    assert (event.type, event.object["metadata"]["name"]) == ("DELETED", "slice-n2")
    assert event.object["spec"]["devices"][0]["allowMultipleAllocations"] is True


async def test_quota_is_no_matter_of_rights(server: ApiServer, templates: TemplateClient) -> None:
    """A refusal because of a quota says so, and gives no advice about roles."""
    server.fail(403, message='"t" is forbidden: exceeded quota: q, requested: count/resourceclaimtemplates=1')
    with pytest.raises(ApiDenied, match="exceeded quota") as refused:
        await templates.create_template(template())
    assert "allow verb" not in str(refused.value)
