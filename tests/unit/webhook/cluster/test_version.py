"""webhook.version: which Kubernetes the cluster is."""

from hami_kubeletplugin.webhook.cluster.version import ServerVersion
from tests.unit.webhook.cluster.fake_cluster import Clock, cluster, in_background
from tests.waiting import until


async def test_an_upgrade_is_noticed() -> None:
    """The version is told when it is known, however late, and again only when it is another one."""
    told: list[tuple[int, str]] = []
    async with cluster() as (server, client):
        clock = Clock()
        server.version = (1, 35)
        server.fail(503, resource="version", times=2)

        def tell(version: str) -> None:
            told.append((server.requests["get", "version"], version))

        version = ServerVersion(client, tell, sleep=clock.sleep)
        before = version.synced
        async with in_background(version.run()):
            await until(lambda: server.requests["get", "version"] >= 5)
            server.version = (1, 36)
            await until(lambda: len(told) == 2)
        assert (before, version.synced) == (False, True)
        assert told[0] == (3, "1.35")
        assert told[1][1] == "1.36"
        assert all(seconds < 30 for seconds in clock.slept[:2])
        assert set(clock.slept[2:]) == {300.0}
