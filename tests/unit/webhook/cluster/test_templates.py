"""webhook.templates: that templates exist when `ensure` returns, and what that costs. Against an API server over HTTP."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from hami_kubeletplugin.api.errors import (
    AdmissionError,
    ApiConflict,
    ApiForbidden,
    ApiNotFound,
    ApiUnavailable,
)
from hami_kubeletplugin.api.names import LAST_USED
from hami_kubeletplugin.api.webhook_settings import WebhookSettings
from hami_kubeletplugin.fake.api_server import ApiServer
from hami_kubeletplugin.kube.client import Event
from hami_kubeletplugin.kube.template_api import TemplateClient
from hami_kubeletplugin.webhook.cluster.allowance import Allowance
from hami_kubeletplugin.webhook.cluster.templates import Templates
from hami_kubeletplugin.webhook.conversion.template import MANAGED_BY
from tests.unit.webhook.cluster.fake_cluster import START, Clock, cluster, in_background, names, stored, template
from tests.waiting import until

RESOURCE = "resourceclaimtemplates"


class World:
    """A server, and one replica's view of it."""

    def __init__(self, server: ApiServer, client: TemplateClient, settings: WebhookSettings | None = None) -> None:
        self.server, self.client, self.clock, self.counted = server, client, Clock(), list[str]()
        self.templates = Templates(
            client,
            Allowance(settings or WebhookSettings(), clock=self.clock.seconds),
            now=self.clock.now,
            count=self.counted.append,
        )

    async def ensure(self, *numbers: int, namespace: str = "default", dry_run: bool = False) -> None:
        """Ensure the templates of these numbers."""
        await self.templates.ensure(namespace, [template(number) for number in numbers], dry_run=dry_run)

    @property
    def calls(self) -> dict[str, int]:
        """Requests for single templates so far, by verb."""
        return {
            verb: count
            for (verb, resource), count in self.server.requests.items()
            if resource == RESOURCE and verb not in {"list", "watch"}
        }

    def put(self, obj: dict[str, Any]) -> dict[str, Any]:
        """Write a template as somebody else."""
        return self.server.put(RESOURCE, obj)

    async def seen(self) -> None:
        """Until all that has happened on the server is known here."""
        await until(lambda: self.server.requests["watch", RESOURCE])
        self.server.store.bookmark()
        await until(lambda: self.templates._seen == self.server.store.version)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """A cluster without templates, not followed yet."""
    async with cluster() as (server, client):
        yield World(server, client)


@pytest.fixture
async def followed(world: World) -> AsyncIterator[World]:
    """A cluster without templates that is followed."""
    async with in_background(world.templates.run()):
        await world.seen()
        yield world


async def test_first_use_creates_and_later_ones_cost_nothing(followed: World) -> None:
    """The first pod with a need makes its template, with our label and the time; pods after it cost no request."""
    for _ in range(3):
        await followed.ensure(0, 1)
        await followed.seen()
    assert followed.calls == {"create": 2}
    assert followed.counted == ["created", "created"]
    made = followed.server.all(RESOURCE)[0]
    assert made["metadata"]["labels"] == MANAGED_BY
    assert made["metadata"]["annotations"] == {LAST_USED: "2026-05-01T12:00:00Z"}
    assert made["spec"] == {"spec": template().spec}
    await followed.ensure(0, namespace="other")
    assert names(followed.server) == [
        ("default", template(0).name),
        ("default", template(1).name),
        ("other", template(0).name),
    ]


async def test_templates_that_were_there_before_us(world: World) -> None:
    """After the first list a template that another replica made and stamped costs nothing; `synced` says when."""
    world.put(stored(used=START))
    assert not world.templates.synced
    async with in_background(world.templates.run()):
        await until(lambda: world.templates.synced)
        await world.ensure(0)
    assert world.calls == {}


async def test_before_the_first_list(world: World) -> None:
    """Before anything is known, what exists is found by its name; and then it is known."""
    world.put(stored(used=START))
    await world.ensure(0)
    await world.ensure(0)
    assert world.calls == {"create": 1, "get": 1}


@pytest.mark.parametrize(
    "used", [START - timedelta(hours=1), None, "yesterday", "2026-05-01T12:00:00", "2030-01-01T00:00:00Z"]
)
async def test_old_stamp_is_renewed(followed: World, used: Any) -> None:
    """A stamp that is an hour old, or can't be right, is renewed before the answer, once."""
    followed.put(stored(used=used))
    await followed.seen()
    await followed.ensure(0)
    await followed.ensure(0)
    assert followed.calls == {"patch": 1}
    assert followed.counted == ["stamped"]
    assert followed.server.all(RESOURCE)[0]["metadata"]["annotations"][LAST_USED] == "2026-05-01T12:00:00Z"


async def test_at_most_one_stamp_an_hour(followed: World) -> None:
    """A template in use all day costs one small write an hour."""
    for _ in range(24 * 12):
        await followed.ensure(0)
        followed.clock.move(minutes=5)
    assert followed.calls == {"create": 1, "patch": 23}


async def test_template_of_somebody_else_is_left_alone(followed: World) -> None:
    """A template without our label, as `convert` prints them, is used and never written."""
    before = followed.put(stored(ours=False))
    await followed.seen()
    for _ in range(3):
        await followed.ensure(0)
        followed.clock.move(hours=5)
    assert followed.calls == {}
    assert followed.server.all(RESOURCE)[0]["metadata"] == before["metadata"]


async def test_claim_metadata_does_not_matter(followed: World) -> None:
    """Labels that a template gives to its claims don't make it another one; our label beside others is enough."""
    obj = stored(used=START)
    obj["spec"]["metadata"] = {"labels": {"team": "a"}}
    obj["metadata"]["labels"] = {**MANAGED_BY, "more": "x"}
    followed.put(obj)
    await followed.seen()
    await followed.ensure(0)
    assert followed.calls == {}


@pytest.mark.parametrize("ours", [True, False])
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("dry_run", [True, False])
async def test_other_content_is_refused(world: World, *, ours: bool, known: bool, dry_run: bool) -> None:
    """An object with our name and other content is an error that names it, and is not touched; a dry run says so if it knows."""
    wrong = stored(used=START, ours=ours)
    wrong["spec"] = {"spec": template(7).spec}
    before = world.put(wrong)
    if known:
        world.templates.replace(await world.templates.listed())
    if dry_run and not known:
        await world.ensure(0, dry_run=True)
    else:
        with pytest.raises(AdmissionError, match=f"default/{template().name} has other content.*delete it"):
            await world.ensure(0, dry_run=dry_run)
    assert world.server.all(RESOURCE)[0]["metadata"] == before["metadata"]
    assert world.calls == ({} if known or dry_run else {"create": 1, "get": 1})


async def test_one_of_several_is_refused(followed: World) -> None:
    """Of a pod's templates none is made when it is known that one can't be."""
    wrong = stored(1, used=START)
    wrong["spec"] = {"spec": {}}
    followed.put(wrong)
    await followed.seen()
    with pytest.raises(AdmissionError, match=template(1).name):
        await followed.ensure(0, 1)
    assert followed.calls == {}


async def test_other_content_found_while_stamping(world: World) -> None:
    """What was replaced behind our back is noticed in the answer to the stamp."""
    world.templates.replace(await world.templates.listed())
    await world.ensure(0)
    wrong = stored()
    wrong["spec"], wrong["metadata"]["uid"] = {"spec": {}}, "new"
    world.put(wrong)
    world.clock.move(hours=2)
    with pytest.raises(AdmissionError, match="other content"):
        await world.ensure(0)


async def test_dry_run_never_writes(followed: World) -> None:
    """A dry run makes no request, neither for what is missing nor for what is old."""
    followed.put(stored(0, used=START - timedelta(days=3)))
    await followed.seen()
    await followed.ensure(0, 1, dry_run=True)
    assert followed.calls == {}


async def test_collected_since_we_saw_it(world: World) -> None:
    """A template that is gone when we want to stamp it is created anew."""
    await world.ensure(0)
    world.server.remove(RESOURCE, template().name, "default")
    world.clock.move(hours=1)
    await world.ensure(0)
    assert world.calls == {"create": 2, "patch": 1}
    assert names(world.server) == [("default", template().name)]


async def test_deleted_templates_are_made_again(followed: World) -> None:
    """A template deleted by somebody is made again for the next pod."""
    await followed.ensure(0)
    followed.server.remove(RESOURCE, template().name, "default")
    await followed.seen()
    await followed.ensure(0)
    assert followed.calls == {"create": 2}


async def test_many_at_once_cost_one_write(followed: World) -> None:
    """A hundred pods of one need that come at once cost one request; those that come an hour later another."""
    followed.server.latency = 0.02
    await asyncio.gather(*(followed.ensure(0) for _ in range(100)))
    assert followed.calls == {"create": 1}
    followed.clock.move(hours=1)
    await asyncio.gather(*(followed.ensure(0) for _ in range(100)))
    assert followed.calls == {"create": 1, "patch": 1}


async def test_who_came_first_leaves(followed: World) -> None:
    """When the client of the pod that started the write is gone, the others still get their template, by that write."""
    followed.server.latency = 0.1
    first, second = (asyncio.create_task(followed.ensure(0)) for _ in range(2))
    await until(lambda: followed.calls)
    first.cancel()
    await second
    assert first.cancelled()
    assert followed.calls == {"create": 1}
    assert names(followed.server) == [("default", template().name)]


async def test_when_all_leave(followed: World) -> None:
    """When nobody waits any more nothing goes on, and the next pod starts anew."""
    followed.server.latency = 0.1
    waiting = [asyncio.create_task(followed.ensure(0)) for _ in range(2)]
    await until(lambda: followed.calls)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert followed.templates._flights == {}
    await asyncio.sleep(0)
    assert [task for task in asyncio.all_tasks() if "_make_sure" in repr(task)] == []
    await followed.ensure(0)
    assert followed.templates._flights == {}


async def test_a_failure_is_for_those_who_waited(followed: World) -> None:
    """An error reaches all who waited for that write, and the next pod tries again."""
    followed.server.fail(503, verb="create", times=1)
    followed.server.latency = 0.02
    results = await asyncio.gather(*(followed.ensure(0) for _ in range(3)), return_exceptions=True)
    assert [type(result) for result in results] == [ApiUnavailable] * 3
    await followed.ensure(0)
    assert followed.calls == {"create": 2}


async def test_namespace_that_goes_or_is_not_there(followed: World) -> None:
    """Refusals of the namespace come through, with its name, and without advice about rights."""
    followed.server.put("namespaces", {"metadata": {"name": "going"}, "status": {"phase": "Terminating"}})
    with pytest.raises(ApiForbidden, match="namespace going because it is being terminated") as refused:
        await followed.ensure(0, namespace="going")
    assert "allow verb" not in str(refused.value)
    with pytest.raises(ApiNotFound, match='namespaces "gone" not found'):
        await followed.ensure(0, namespace="gone")
    followed.server.fail(403, verb="create")
    with pytest.raises(ApiForbidden, match=r"allow verb create on resourceclaimtemplates\.resource\.k8s\.io"):
        await followed.ensure(0, namespace="going")


async def test_template_that_is_being_deleted(followed: World) -> None:
    """A template that only a finalizer holds is no template to rely on: try again, and then it is made anew."""
    leaving = stored(used=START)
    leaving["metadata"]["deletionTimestamp"] = "2026-05-01T12:00:00Z"
    followed.put(leaving)
    await followed.seen()
    with pytest.raises(ApiConflict, match=f"default/{template().name} is being deleted: try again"):
        await followed.ensure(0)
    followed.server.remove(RESOURCE, template().name, "default")
    await followed.ensure(0)
    # Deleted, and so said in the answer to our own stamp, before the watch tells.
    followed.templates.take = lambda _: None  # type: ignore[assignment, method-assign]
    followed.put(leaving)
    followed.clock.move(hours=1)
    with pytest.raises(ApiConflict, match="is being deleted: try again"):
        await followed.ensure(0)


async def test_server_that_drops_fields(followed: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the API server keeps less than was sent, e.g. by a gate that is off, the pod is refused and nothing stays."""
    create = followed.server.store.create
    monkeypatch.setattr(
        followed.server.store, "create", lambda key, obj: create(key, obj | {"spec": {"spec": {"devices": {}}}})
    )
    for _ in range(2):
        with pytest.raises(AdmissionError, match="DRAConsumableCapacity"):
            await followed.ensure(0)
    assert names(followed.server) == []
    assert followed.counted == []


async def test_own_writes_and_a_late_watch(world: World) -> None:
    """Events and lists from before our own write don't undo what we know, and answers from before an event don't either."""
    before = await world.templates.listed()
    old = world.put(stored(used=START - timedelta(hours=5)))
    await world.ensure(0)
    assert world.calls == {"create": 1, "get": 1, "patch": 1}

    world.templates.take(Event("ADDED", old))
    world.templates.replace(before)
    await world.ensure(0)
    assert world.calls == {"create": 1, "get": 1, "patch": 1}
    stamped = world.server.all(RESOURCE)[0]
    world.server.remove(RESOURCE, template().name, "default")
    world.templates.replace(await world.templates.listed())
    world.templates._note(stamped)
    assert world.templates._known == {}


async def test_only_our_names_are_kept(followed: World) -> None:
    """Of other people's templates nothing is kept in memory."""
    for number in range(3):
        obj = stored(number)
        obj["metadata"]["name"] = f"theirs-{number}"
        followed.put(obj)
    followed.put(stored(5))
    await followed.seen()
    assert list(followed.templates._known) == [("default", template(5).name)]
    followed.server.remove(RESOURCE, template(5).name, "default")
    await followed.seen()
    assert followed.templates._known == {}
