"""status.devices of claims: what is said, that it is said behind prepares, and what happens when it can't be."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from hami_kubeletplugin.api.errors import ApiConflict, ApiError, ApiForbidden, ApiInvalid, ApiNotFound, ApiUnavailable
from hami_kubeletplugin.api.names import DRIVER
from hami_kubeletplugin.claims import status_writer
from hami_kubeletplugin.claims.prepared import Prepared
from hami_kubeletplugin.claims.status_writer import StatusWriter
from tests.unit.claims.node import KIND, Api, Node, devices
from tests.unit.claims.objects import NODE, UUID, Json, claim, container, pod, result, simple
from tests.unit.claims.test_metadata import shipped  # noqa: F401 - a fixture
from tests.waiting import until


class StatusApi:
    """The API server: keeps what was applied, by claim UID, and counts."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self.said: dict[str, Sequence[Mapping[str, Any]]] = {}
        self.writes = self.looks = 0
        self.errors: list[ApiError] = []
        self.held: asyncio.Event | None = None

    async def get_claim(self, namespace: str, name: str) -> Json:
        """See `status_writer.StatusApi`."""
        self.looks += 1
        found = await self._api.get_claim(namespace, name)
        found["status"]["devices"] = list(self.said.get(found["metadata"]["uid"], ()))
        return found

    async def apply_devices(self, namespace: str, name: str, uid: str, devices: Sequence[Mapping[str, Any]]) -> None:
        """See `status_writer.StatusApi`."""
        self.writes += 1
        if self.held:
            await self.held.wait()
        if self.errors:
            raise self.errors.pop(0)
        if (namespace, name) not in self._api.claims:
            raise ApiNotFound("gone")
        self.said[uid] = devices


@pytest.fixture
def told(api: Api) -> StatusApi:
    """What is said of the node's claims."""
    return StatusApi(api)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits are short."""
    monkeypatch.setattr(status_writer, "_WAITS", (0.001, 0.01))


@asynccontextmanager
async def telling(node: Node, told: StatusApi, settle: float = 0.0) -> AsyncIterator[StatusWriter]:
    """The node's claims are told of, as by a daemon that has just started."""
    writer = StatusWriter(told, pool=NODE, settle=settle)
    node.start()
    node.claims._listener = writer
    task = asyncio.create_task(writer.run())
    try:
        yield writer
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def idle(writer: StatusWriter) -> None:
    """Wait until nothing is left to be said."""
    await asyncio.sleep(0)
    await until(lambda: not writer._todo)


def uid(obj: Json) -> str:
    """Of a claim."""
    found: str = obj["metadata"]["uid"]
    return found


async def test_what_is_said(node: Node, told: StatusApi) -> None:
    """Of each share: that it is ready, its GPU, its limits and its CDI device; with its shareID, or the server refuses it."""
    results = [result(0, "1Gi", "10", request="a"), result(1, "2Gi", "0", request="b")]
    obj = claim("c", results)
    node.api.put(obj, pod("p", container("x", "c")))
    async with telling(node, told) as writer:
        answer = devices((await node.prepare(obj))[0])
        await idle(writer)
    said = [dict(entry) for entry in told.said[uid(obj)]]
    for entry, one, number, limits in zip(
        said, results, (0, 1), ({"memoryMiB": 1024, "cores": 10}, {"memoryMiB": 2048}), strict=True
    ):
        (condition,) = entry.pop("conditions")
        assert (condition["type"], condition["status"], condition["reason"]) == ("Ready", "True", "Prepared")
        assert entry == {
            "driver": DRIVER,
            "pool": NODE,
            "device": f"hami-gpu-{number}",
            "shareID": one["shareID"],
            "data": {"uuid": UUID[number], **limits, "cdiDeviceIDs": list(answer[number].cdi_ids)},
        }
        assert answer[number].cdi_ids[0].startswith(f"{KIND}=")


async def test_admin_access(node: Node, told: StatusApi) -> None:
    """Has no share and no limits."""
    obj = claim("c", [result(0, None, None, share=None, slots=None, adminAccess=True)])
    node.api.put(obj, pod("p", container("x", "c")))
    async with telling(node, told) as writer:
        devices((await node.prepare(obj))[0])
        await idle(writer)
    (entry,) = told.said[uid(obj)]
    assert "shareID" not in entry
    assert entry["data"].keys() == {"uuid", "cdiDeviceIDs"}


async def test_a_prepare_waits_for_nothing(node: Node, told: StatusApi, one: Json) -> None:
    """It asks the API server for as much as without, and is answered while nothing can be written."""
    node.api.put(*simple(0))
    devices((await node.prepare(one))[0])
    without = node.api.gets
    await node.unprepare(one)
    told.held = asyncio.Event()
    async with telling(node, told) as writer:
        node.api.gets = 0
        devices((await node.prepare(one))[0])
        assert (node.api.gets, told.said) == (without, {})
        await until(lambda: told.writes)
        told.held.set()
        await idle(writer)
        assert (told.writes, told.looks) == (1, 0)
        devices((await node.prepare(one))[0])
        await idle(writer)
        assert (told.writes, told.looks) == (1, 0), "what is said already is not said again"


async def test_unprepared(node: Node, told: StatusApi, one: Json) -> None:
    """A claim that is still there loses the entries; of one that is gone nothing is said, nor of one that nothing was said of."""
    other, its_pod = simple(1)
    node.api.put(other, its_pod)
    async with telling(node, told) as writer:
        for obj in (one, other):
            devices((await node.prepare(obj))[0])
        await idle(writer)
        del node.api.claims["default", other["metadata"]["name"]]
        assert await node.unprepare(one, other, claim("unknown", [])) == [None] * 3
        await idle(writer)
        assert (told.said[uid(one)], told.writes, told.looks) == ([], 3, 2)
        assert not writer._said


async def test_unprepared_and_prepared_again(node: Node, told: StatusApi, one: Json) -> None:
    """In between nothing is written; and a removal that is under way is made good."""
    async with telling(node, told, settle=3600) as writer:
        devices((await node.prepare(one))[0])
        await idle(writer)
        await node.unprepare(one)
        devices((await node.prepare(one))[0])
        await idle(writer)
        assert told.writes == 1
        told.held = asyncio.Event()
        writer._settle = 0
        await node.unprepare(one)
        await until(lambda: told.writes == 2)
        devices((await node.prepare(one))[0])
        await asyncio.sleep(0)
        told.held.set()
        await idle(writer)
        assert (told.writes, len(told.said[uid(one)])) == (3, 1)


async def test_a_removal_that_is_overtaken(node: Node, told: StatusApi, one: Json) -> None:
    """A claim that is prepared again while its removal waits behind another claim's write keeps its entries."""
    async with telling(node, told) as writer:
        devices((await node.prepare(one))[0])
        await idle(writer)
        record = node.records.load(uid(one))
        assert record is not None
        told.held = held = asyncio.Event()
        _offer(writer, record, "another")
        writer.unprepared(record.ref)
        await until(lambda: told.writes == 2)
        writer.prepared(record, before=False)
        await asyncio.sleep(0)
        held.set()
        await idle(writer)
        assert len(told.said[uid(one)]) == 1


async def test_given_to_another_node(node: Node, told: StatusApi, one: Json) -> None:
    """Entries that another node's daemon has written since stay: they are of other shares, and its own."""
    async with telling(node, told) as writer:
        devices((await node.prepare(one))[0])
        await idle(writer)
        others = [{**told.said[uid(one)][0], "pool": "another-node", "shareID": "another"}]
        told.said[uid(one)] = others
        await node.unprepare(one)
        await idle(writer)
        assert (told.said[uid(one)], told.writes) == (others, 1)


async def test_after_a_restart(node: Node, told: StatusApi, one: Json) -> None:
    """One look for each claim; a write where something is missing or was changed."""
    other, its_pod = simple(1)
    node.api.put(other, its_pod)
    async with telling(node, told) as writer:
        for obj in (one, other):
            devices((await node.prepare(obj))[0])
        await idle(writer)
    told.writes = 0
    told.said[uid(one)] = [{**told.said[uid(one)][0], "data": {}}]
    async with telling(node, told) as writer:
        await node.recover()
        await idle(writer)
        assert (told.looks, told.writes) == (2, 1)
        await node.recovery().repair()
        await idle(writer)
        assert (told.looks, told.writes) == (2, 1)
    assert all(told.said[uid(obj)][0]["data"] for obj in (one, other))


@pytest.mark.parametrize("error", [ApiForbidden("no right"), ApiUnavailable("away"), ApiConflict("busy")])
async def test_a_write_that_fails(node: Node, told: StatusApi, one: Json, error: ApiError) -> None:
    """It is tried again until it works, and said once; the claim is prepared all the same."""
    told.errors = [error] * 5
    with capture_logs() as logs:
        async with telling(node, told) as writer:
            devices((await node.prepare(one))[0])
            await idle(writer)
    assert (told.writes, len(told.said[uid(one)])) == (6, 1)
    said = [entry["event"] for entry in logs if "status.devices" in entry["event"]]
    assert said == [
        "status.devices of claims can't be written; trying again",
        "status.devices of claims is written again",
    ]


@pytest.mark.parametrize("error", [ApiNotFound("gone"), ApiInvalid("metadata.uid: field is immutable")])
async def test_a_claim_that_is_gone(node: Node, told: StatusApi, one: Json, error: ApiError) -> None:
    """What nobody wants to hear is not tried again."""
    told.errors = [error]
    async with telling(node, told) as writer:
        devices((await node.prepare(one))[0])
        await idle(writer)
        assert (told.writes, told.said) == (1, {})


async def test_another_claim_of_that_name(node: Node, told: StatusApi, one: Json) -> None:
    """A daemon that is started anew says nothing of a claim that has the name of one that was prepared."""
    devices((await node.prepare(one))[0])
    node.api.claims["default", one["metadata"]["name"]]["metadata"]["uid"] = "another"
    async with telling(node, told) as writer:
        await node.recover()
        await idle(writer)
        assert (told.looks, told.writes) == (1, 0)


async def test_many_wait(node: Node, told: StatusApi, one: Json, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the server is away only so many claims wait, the newest; others are offered again by the next repair."""
    monkeypatch.setattr(status_writer, "MOST", 3)
    devices((await node.prepare(one))[0])
    record = node.records.load(uid(one))
    assert record is not None
    writer = StatusWriter(told, pool=NODE)
    for number in range(10):
        _offer(writer, record, f"u{number}")
    await asyncio.sleep(0)
    assert [*writer._todo] == ["u7", "u8", "u9"]


def _offer(writer: StatusWriter, record: Prepared, other_uid: str) -> None:
    writer.prepared(replace(record, ref=replace(record.ref, uid=other_uid)), before=False)
