"""kube.informer: list and watch, with waits that the tests steer."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from structlog.testing import capture_logs

from hami_kubeletplugin.fake.api_server import ApiServer
from hami_kubeletplugin.kube import informer as module
from hami_kubeletplugin.kube.client import Event
from hami_kubeletplugin.kube.informer import list_and_watch
from hami_kubeletplugin.kube.resource_api import Listed, kept
from hami_kubeletplugin.kube.retry import ERROR_WAIT
from hami_kubeletplugin.kube.template_api import TEMPLATES
from tests.unit.webhook.cluster.fake_cluster import Clock, cluster, in_background, stored
from tests.waiting import until

RESOURCE = "resourceclaimtemplates"


class Names:
    """A copy that keeps names and remembers what it was told."""

    def __init__(self) -> None:
        self.names, self.told, self.version = set[str](), list[str](), 0

    def replace(self, listed: Listed[str]) -> None:
        """All of them."""
        self.told.append("all")
        self.names = set(listed.items)
        self.version = int(listed.resource_version)

    def take(self, event: Event) -> None:
        """One of them."""
        metadata = event.object["metadata"]
        assert int(metadata["resourceVersion"]) >= self.version
        self.version = int(metadata["resourceVersion"])
        self.told.append(event.type)
        if event.type == "DELETED":
            self.names.discard(metadata["name"])
        elif event.type != "BOOKMARK":
            self.names.add(metadata["name"])


@asynccontextmanager
async def following() -> AsyncIterator[tuple[ApiServer, Names, Clock]]:
    """A copy of the templates of a server that has one."""
    async with cluster() as (server, client):
        server.put(RESOURCE, stored(0))
        copy, clock = Names(), Clock()

        async def names() -> Listed[str]:
            return await kept(client.pages(TEMPLATES), lambda item: str(item["metadata"]["name"]))

        work = list_and_watch("templates", names, client.watch_templates, copy, sleep=clock.sleep, clock=clock.seconds)
        async with in_background(work):
            await until(lambda: server.requests["watch", RESOURCE])
            yield server, copy, clock


def name(number: int) -> str:
    """The name of a template."""
    return str(stored(number)["metadata"]["name"])


async def test_copy_is_as_the_cluster() -> None:
    """What is there at first, comes, changes and goes, is told in order; no second list is needed."""
    async with following() as (server, copy, clock):
        server.put(RESOURCE, stored(1))
        server.put(RESOURCE, stored(1, used=clock.now()))
        server.remove(RESOURCE, name(0), "default")
        server.store.bookmark()
        await until(lambda: copy.told[-1] == "BOOKMARK")
        assert copy.told == ["all", "ADDED", "MODIFIED", "DELETED", "BOOKMARK"]
        assert copy.names == {name(1)}
        assert server.requests["list", RESOURCE] == 1


async def test_watch_goes_on_where_it_was() -> None:
    """A watch that ends is continued after the last event or bookmark, a second later at the earliest, without a list."""
    async with following() as (server, copy, clock):
        server.put("nodes", {"metadata": {"name": "moves-the-version-on"}})
        server.store.bookmark()
        await until(lambda: copy.told[-1] == "BOOKMARK")
        since, versions = copy.version, list[str]()
        watch = server.store.watch

        def recorded(resource: str, since: int, *rest: Any) -> AsyncGenerator[Any]:
            versions.append(str(since))
            return watch(resource, since, *rest)

        server.store.watch = recorded  # type: ignore[method-assign, assignment]
        server.drop_watches()
        await until(lambda: versions)
        assert versions == [str(since)]
        server.put(RESOURCE, stored(1))
        await until(lambda: name(1) in copy.names)
        assert server.requests["list", RESOURCE] == 1
        assert clock.slept == [module.SHORTEST_WATCH]


async def test_forgotten_version_lists_again() -> None:
    """When the server has forgotten where we were, a list replaces all; what was deleted meanwhile is gone."""
    async with following() as (server, copy, clock):
        clock.hold()
        server.drop_watches()
        await until(lambda: clock.slept)
        server.remove(RESOURCE, name(0), "default")
        server.put(RESOURCE, stored(1))
        server.store.compact()
        clock.release()
        await until(lambda: copy.names == {name(1)})
        assert copy.told == ["all", "all"]
        assert server.requests["list", RESOURCE] == 2


async def test_server_that_is_away() -> None:
    """While the server is away the copy stays, there is one attempt per growing wait of up to 30 s, and no warning twice."""
    with capture_logs() as logs:
        async with following() as (server, copy, clock):
            await server.down()
            await until(lambda: len(clock.slept) > 13)
            assert copy.names == {name(0)}
            server.put(RESOURCE, stored(1))
            await server.up()
            await until(lambda: copy.names == {name(0), name(1)})
            server.put(RESOURCE, stored(2))
            await until(lambda: copy.names == {name(0), name(1), name(2)})
    first, longest = ERROR_WAIT
    waits = [wait for wait in clock.slept if wait != module.SHORTEST_WATCH][:12]
    assert first / 2 <= waits[0] <= first
    assert all(longest / 2 <= wait <= longest for wait in waits[8:])
    warnings = [entry["error"] for entry in logs if entry["log_level"] == "warning"]
    assert [error.split()[0] for error in warnings] == ["watch", "list"]
    assert logs[-1]["event"] == "Objects of the cluster can be followed again"


async def test_retry_after_is_kept_within_reason() -> None:
    """A server that asks for time gets it on top of what would be waited anyway, but never more than the longest wait."""
    async with following() as (server, copy, clock):
        server.fail(429, verb="watch", times=1, headers={"Retry-After": "20"})
        server.fail(429, verb="list", times=1, headers={"Retry-After": "900"})
        server.drop_watches()
        await until(lambda: copy.told == ["all", "all"])
        first, longest = ERROR_WAIT
        assert 20 + first / 2 <= clock.slept[1] <= 20 + first
        assert longest + first <= clock.slept[2] <= longest + 2 * first


async def test_list_that_works_and_watch_that_does_not() -> None:
    """A refused watch doesn't make one list after the other: the waits grow all the same."""
    async with following() as (server, _, clock):
        server.fail(403, verb="watch")
        server.drop_watches()
        await until(lambda: len(clock.slept) > 9)
        assert min(clock.slept[-2:]) >= ERROR_WAIT[1] / 2
