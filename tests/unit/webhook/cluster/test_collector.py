"""webhook.collector: what is removed, what never is, and who does it. Against an API server over HTTP, with a moved clock."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
from structlog.testing import capture_logs

from hami_kubeletplugin.api.errors import ApiUnavailable
from hami_kubeletplugin.api.names import COLLECTOR_LEASE
from hami_kubeletplugin.api.webhook_settings import WebhookSettings
from hami_kubeletplugin.fake.api_server import ApiServer
from hami_kubeletplugin.kube import template_api
from hami_kubeletplugin.kube.template_api import TemplateClient
from hami_kubeletplugin.webhook.cluster.collector import Collector
from hami_kubeletplugin.webhook.conversion.template import PRINTED
from tests.unit.webhook.cluster.fake_cluster import START, Clock, cluster, in_background, names, stored, template
from tests.waiting import until

RESOURCE = "resourceclaimtemplates"
LIFETIME = timedelta(days=1)
OLD = START - LIFETIME - timedelta(seconds=1)
WORKLOADS = ("deployments", "statefulsets", "daemonsets", "replicasets", "replicationcontrollers", "jobs", "cronjobs")


class World:
    """A server, and one collector."""

    def __init__(self, server: ApiServer, client: TemplateClient) -> None:
        self.server, self.client, self.clock, self.counted = server, client, Clock(), list[str]()
        self.looked: list[str] = []
        self.collector = self.another("one")

    def another(self, identity: str) -> Collector:
        """The collector of another replica."""
        return Collector(
            self.client,
            WebhookSettings(namespace="hami-system"),
            now=self.clock.now,
            count=self.counted.append,
            looked=self.looked.append,
            identity=identity,
            sleep=self.clock.sleep,
        )

    def put(self, *objects: dict[str, Any]) -> None:
        """Write templates."""
        for obj in objects:
            self.server.put(RESOURCE, obj)

    @property
    def left(self) -> list[str]:
        """Names of the templates that are there."""
        return [name for _, name in names(self.server)]


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """A cluster without templates."""
    async with cluster() as (server, client):
        yield World(server, client)


def name(number: int) -> str:
    """The name of a template."""
    return template(number).name


def pod_spec(*numbers: int) -> dict[str, Any]:
    """The spec of a pod that names these templates, and claims of other kinds."""
    claims = [{"name": f"c{number}", "resourceClaimTemplateName": name(number)} for number in numbers]
    return {"resourceClaims": [{"name": "own", "resourceClaimName": "x"}, *claims]}


def user(kind: str, *numbers: int, namespace: str = "default") -> dict[str, Any]:
    """An object of some kind that names templates."""
    spec = pod_spec(*numbers)
    if kind != "pods":
        spec = {"template": {"spec": spec}}
    if kind == "cronjobs":
        spec = {"jobTemplate": {"spec": spec}}
    return {"metadata": {"namespace": namespace, "name": "user"}, "spec": spec}


async def test_unused_templates_go(world: World) -> None:
    """What was last used more than a day ago, and what nobody names, is removed."""
    world.put(stored(0, used=OLD), stored(1, used=START - LIFETIME))
    world.server.put("pods", {"metadata": {"namespace": "default", "name": "plain"}, "spec": {}})
    await world.collector.collect()
    assert world.left == [name(1)]
    assert world.counted == ["collected"]


@pytest.mark.parametrize("stamp", [None, "", "soon", "2020-01-01T00:00:00"])
async def test_without_a_stamp_its_age_counts(world: World, stamp: str | None) -> None:
    """A template whose stamp is missing or can't be read is as old as itself."""
    world.put(stored(0, used=stamp))
    world.clock.move(hours=23)
    await world.collector.collect()
    assert world.left == [name(0)]
    world.clock.move(hours=2)
    await world.collector.collect()
    assert world.left == []


async def test_what_is_never_removed(world: World) -> None:
    """Templates without our label or name, with a stamp of the future, or on their way out already are left alone."""
    foreign, renamed = stored(0, used=OLD, ours=False), stored(1, used=OLD)
    renamed["metadata"]["name"] = "theirs"
    future, leaving = stored(2, used="2999-01-01T00:00:00Z"), stored(3, used=OLD)
    leaving["metadata"]["deletionTimestamp"] = "2026-05-01T00:00:00Z"
    world.put(foreign, renamed, future, leaving)
    await world.collector.collect()
    assert len(world.left) == 4
    assert world.server.requests["delete", RESOURCE] == 0


async def test_what_convert_has_printed_stays(world: World) -> None:
    """Applied over a template of the webhook's, its label takes the webhook's away: objects of any kind may name it."""
    applied = stored(0, used=OLD)
    applied["metadata"]["labels"] |= template(0).object("default", PRINTED)["metadata"]["labels"]
    world.put(applied)
    await world.collector.collect()
    assert world.left == [name(0)]


@pytest.mark.parametrize("kind", ["pods", *WORKLOADS])
async def test_templates_in_use_stay(world: World, kind: str) -> None:
    """A template that a pod or a workload of its namespace names stays; the same name in another namespace doesn't count."""
    world.put(stored(0, used=OLD), stored(1, used=OLD), stored(0, used=OLD, namespace="other"))
    world.server.put(kind, user(kind, 0))
    await world.collector.collect()
    assert names(world.server) == [("default", name(0))]


async def test_users_on_later_pages_count(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """All pages are looked at."""
    monkeypatch.setattr(template_api, "PAGE", 2)
    world.put(*(stored(number, used=OLD) for number in range(5)))
    for number in range(5):
        obj = user("pods", number)
        obj["metadata"]["name"] = f"p{number}"
        world.server.put("pods", obj)
    await world.collector.collect()
    assert len(world.left) == 5
    assert world.server.requests["list", "pods"] == 3


async def test_only_namespaces_with_candidates_are_looked_into(world: World) -> None:
    """Where all templates are in use nobody's pods are listed, and where pods name all, no workload is."""
    world.put(stored(0, used=START), stored(0, used=OLD, namespace="other"))
    world.server.put("pods", user("pods", 0, namespace="other"))
    await world.collector.collect()
    assert {key: count for key, count in world.server.requests.items() if key[0] == "list"} == {
        ("list", RESOURCE): 1,
        ("list", "pods"): 1,
    }


async def test_used_again_at_the_last_moment(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A template that gets a new stamp between the look and the deletion stays; the others go."""
    world.put(stored(0, used=OLD), stored(1, used=OLD), stored(2, used=OLD))
    delete = TemplateClient.delete_template

    async def late(client: TemplateClient, obj: dict[str, Any]) -> None:
        if obj["metadata"]["name"] == name(0):
            world.put(stored(0, used=START))
        if obj["metadata"]["name"] == name(1):
            world.server.remove(RESOURCE, name(1), "default")
        await delete(client, obj)

    monkeypatch.setattr(TemplateClient, "delete_template", late)
    await world.collector.collect()
    assert world.left == [name(0)]
    assert world.counted == ["collected"]


@pytest.mark.parametrize("resource", [RESOURCE, "pods", *WORKLOADS])
@pytest.mark.parametrize("status", [403, 404, 410, 500])
async def test_nothing_goes_on_doubt(world: World, resource: str, status: int) -> None:
    """If one of the lists can't be had, nothing is removed, and the collector goes on."""
    world.put(stored(0, used=OLD))
    world.server.fail(status, verb="list", resource=resource)
    world.clock.hold()
    async with in_background(world.collector.run()):
        await until(lambda: world.clock.slept)
        world.clock.release()
        await until(lambda: len(world.clock.slept) > 1)
    assert world.left == [name(0)]
    assert world.server.requests["delete", RESOURCE] == 0


async def test_one_namespace_does_not_stop_the_others(world: World) -> None:
    """What goes wrong in one namespace is a warning that names it; the next is done."""
    world.put(*(stored(0, used=OLD, namespace=namespace) for namespace in ("a", "b", "c")))
    world.server.fail(500, verb="list", resource="pods", times=1)
    with capture_logs() as logs:
        assert not await world.collector.collect()
    assert names(world.server) == [("a", name(0))]
    assert [entry["namespace"] for entry in logs if entry["log_level"] == "warning"] == ["a"]


async def test_missing_rights_are_told_once(world: World) -> None:
    """A refusal is logged once with what to allow, not for each namespace and hour; another one is logged as well."""
    world.put(*(stored(0, used=OLD, namespace=namespace) for namespace in ("a", "b")))
    with capture_logs() as logs:
        for resource in ("jobs", "jobs", "pods"):
            world.server.fail(403, verb="list", resource=resource)
            await world.collector.collect()
    told = [entry["error"].rpartition("; ")[2] for entry in logs]
    assert told == ["allow verb list on jobs.batch in the ClusterRole", "allow verb list on pods in the ClusterRole"]


async def test_one_replica_collects(world: World) -> None:
    """Who has the Lease keeps it; another one gets it when it has not been renewed for two intervals."""
    other = world.another("two")
    assert await world.collector.elected()
    assert not await other.elected()
    world.clock.move(hours=1.5)
    assert await world.collector.elected()
    world.clock.move(hours=1.9)
    assert not await other.elected()
    world.clock.move(hours=0.2)
    assert await other.elected()
    assert not await world.collector.elected()
    lease = world.server.all("leases")[0]
    assert (lease["metadata"]["namespace"], lease["metadata"]["name"]) == ("hami-system", COLLECTOR_LEASE)
    assert lease["spec"] == {
        "holderIdentity": "two",
        "leaseDurationSeconds": 7200,
        "acquireTime": "2026-05-01T15:36:00.000000Z",
        "renewTime": "2026-05-01T15:36:00.000000Z",
        "leaseTransitions": 1,
    }


@pytest.mark.parametrize("there", [True, False])
async def test_two_want_the_lease_at_once(world: World, *, there: bool) -> None:
    """Of replicas that find the Lease free, or not there, at the same time, one gets it."""
    if there:
        assert await world.collector.elected()
        world.clock.move(days=1)
    world.server.latency = 0.02
    got = await asyncio.gather(*(world.another(f"r{number}").elected() for number in range(4)))
    assert sorted(got) == [False, False, False, True]


@pytest.mark.parametrize(
    "spec", [{}, {"holderIdentity": "x"}, {"holderIdentity": "x", "renewTime": "?", "leaseDurationSeconds": 1}]
)
async def test_lease_written_by_hand(world: World, spec: dict[str, Any]) -> None:
    """A Lease without a readable time is free."""
    world.server.put(
        "leases",
        {"metadata": {"namespace": "hami-system", "name": COLLECTOR_LEASE}, "spec": spec | {"holderIdentity": "x"}},
    )
    assert await world.collector.elected()


async def test_runs_once_in_an_interval(world: World) -> None:
    """Each round comes an interval after the last, ten percent up or down; without the Lease it looks at nothing."""
    world.put(stored(0, used=OLD))
    other = world.another("two")
    assert await other.elected()
    async with in_background(world.collector.run()):
        await until(lambda: world.server.requests["get", "leases"] >= 2)
        await until(lambda: not world.left)  # the other one has not renewed for two hours
        await until(lambda: "ok" in world.looked)
    assert set(world.looked[: world.looked.index("ok")]) == {"left"}
    assert all(0.9 * 3600 <= wait <= 1.1 * 3600 for wait in world.clock.slept)


async def test_fault_of_the_lease_is_told(world: World) -> None:
    """Without an answer about the Lease nothing is collected, and there is a warning."""
    world.server.fail(503, resource="leases")
    with pytest.raises(ApiUnavailable):
        await world.collector.elected()
    with capture_logs() as logs:
        async with in_background(world.collector.run()):
            await until(lambda: len(world.clock.slept) > 1)
    assert logs[0]["log_level"] == "warning"
    assert world.looked[0] == "failed"
    assert world.server.requests["list", RESOURCE] == 0
