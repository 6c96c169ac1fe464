"""The service: each claim of a call has its own answer, and the API server may come and go."""

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from pathlib import Path

import pytest

from hami_kubeletplugin.api.errors import ApiError, ApiUnavailable, HardwareError
from hami_kubeletplugin.claims import service
from hami_kubeletplugin.claims.node_files import NodeFiles
from hami_kubeletplugin.claims.prepared import Prepared
from hami_kubeletplugin.fake.api_server import ApiServer
from hami_kubeletplugin.gpu.edits import DriverEdits
from hami_kubeletplugin.gpu.model import Gpu
from hami_kubeletplugin.hamicore.shipped import Shipped
from hami_kubeletplugin.kube.claim_api import ClaimClient, Wanted
from hami_kubeletplugin.kube.config import Access
from hami_kubeletplugin.kube.resource_api import KubeClient
from tests.unit.claims.node import Node, devices, driver_edits, refusal
from tests.unit.claims.objects import UUID, Json, claim, config, container, pod, result, simple, uid_of
from tests.waiting import until


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    """The fake API server."""
    async with ApiServer() as made:
        yield made


@pytest.fixture
async def served(server: ApiServer, tmp_path: Path, shipped: Shipped) -> AsyncIterator[Node]:
    """A node that talks to it."""
    access = Access(server.url)
    claims = ClaimClient(access)
    async with KubeClient(access) as client:
        yield Node(tmp_path / "node", shipped, claim_api=claims, recovery_api=client)
    claims.close()


async def test_a_bad_claim_does_not_fail_the_others(server: ApiServer, served: Node) -> None:
    """Every claim of a call has its own answer; the bad ones say why, the good ones are prepared."""
    claims, pods = zip(*(simple(i) for i in range(5)), strict=True)
    for obj in pods:
        server.put("pods", obj)
    claims[1]["status"]["allocation"] = None
    claims[2]["status"]["allocation"]["devices"]["config"] = [config(corePolicy="forced")]
    for obj in claims[:4]:
        server.put("resourceclaims", obj)
    answers = await served.prepare(*claims)
    assert len(devices(answers[0])) == len(devices(answers[3])) == 1
    assert "is not allocated" in refusal(answers[1])
    assert "corePolicy" in refusal(answers[2])
    assert "claim default/c4 is not found in the API server" in refusal(answers[4])
    assert served.records.uids() == sorted(claims[i]["metadata"]["uid"] for i in (0, 3))
    assert await served.unprepare(*claims) == [None] * 5
    assert served.snapshot() == {}


async def test_each_object_is_asked_for_once(server: ApiServer, served: Node) -> None:
    """A batch of 16 claims of one pod costs 16 claims and one pod, all at the same time."""
    claims = [claim(f"c{i}", [result(i % 4, "1Gi", "1")]) for i in range(16)]
    server.put("pods", pod("p", container("x", *(f"c{i}" for i in range(16)))))
    for obj in claims:
        server.put("resourceclaims", obj)
    server.latency = 0.05
    async with asyncio.timeout(5):
        answers = await served.prepare(*claims)
    assert all(devices(answer) for answer in answers)
    assert (server.requests["get", "resourceclaims"], server.requests["get", "pods"]) == (16, 1)
    assert served.limits(*claims) == dict.fromkeys(UUID.values(), (4096, 4))


async def test_an_api_server_that_comes_back_is_waited_for(
    server: ApiServer, served: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kubelet would come back only after a minute and a half, so prepare asks again itself."""
    obj, its_pod = simple(0)
    server.put("pods", its_pod)
    server.put("resourceclaims", obj)
    server.fail(503, resource="resourceclaims", times=2)
    server.fail(429, resource="pods", times=1)
    assert devices((await served.prepare(obj))[0])
    await server.down()
    failures: list[ApiUnavailable] = []
    api = served.claim_api
    assert isinstance(api, ClaimClient)
    real = api.ask

    def ask(wanted: Sequence[Wanted], *, deadline: float) -> list[Json | ApiError]:
        answers = real(wanted, deadline=deadline)
        failures.extend(answer for answer in answers if isinstance(answer, ApiUnavailable))
        return answers

    monkeypatch.setattr(api, "ask", ask)
    preparing = asyncio.create_task(served.prepare(obj))
    await until(lambda: len(failures) > 1)
    assert not preparing.done()
    await server.up()
    assert devices((await preparing)[0])


async def test_an_api_server_that_stays_away_is_named(server: ApiServer, served: Node) -> None:
    """Patience ends before the time-out of the call, so that the answer carries the API server's own failure."""
    obj, _ = simple(0)
    served.timeout = 1.0
    served.start()
    server.fail(503, message="etcd is down")
    message = refusal((await served.prepare(obj))[0])
    assert "etcd is down" in message
    assert served.snapshot() == {}


async def test_unprepare_needs_no_api_server(server: ApiServer, served: Node) -> None:
    """A node must be able to let go of claims whatever else is broken."""
    obj, its_pod = simple(0)
    server.put("pods", its_pod)
    server.put("resourceclaims", obj)
    devices((await served.prepare(obj))[0])
    await server.down()
    asked = sum(server.requests.values())
    served.inventory = None
    served.start()
    assert await served.unprepare(obj, simple(1)[0]) == [None, None]
    assert served.snapshot() == {}
    assert sum(server.requests.values()) == asked


async def test_a_pod_that_is_gone_is_named(node: Node, one: Json) -> None:
    """Nobody is left to prepare for: deleted, finished, or replaced by another pod of its name."""
    node.api.pods.clear()
    assert "is reserved for pod default/p0, which is gone" in refusal((await node.prepare(one))[0])
    node.api.put(pod("p0", container("x", "c0"), phase="Succeeded"))
    assert "which is gone" in refusal((await node.prepare(one))[0])
    other = pod("p0", container("x", "c0"))
    other["metadata"]["uid"] = "another"
    node.api.put(other)
    assert "which is gone" in refusal((await node.prepare(one))[0])
    assert node.snapshot() == {}


async def test_a_finished_pod_does_not_count(node: Node) -> None:
    """It may still stand in reservedFor, but it uses nothing any more."""
    obj = claim("c", [result()], pods=("old", "new"))
    node.api.put(obj, pod("old", container("x", "c"), phase="Failed"), pod("new", container("x", "c")))
    assert devices((await node.prepare(obj))[0])
    record = node.records.load(obj["metadata"]["uid"])
    assert record is not None
    assert [p.name for p in record.pods] == ["new"]


async def test_a_replaced_claim_is_refused(node: Node, one: Json) -> None:
    """The kubelet still has the UID of the former claim."""
    node.api.put(claim("c0", [result()], pods=["p0"], uid=uid_of("claim", "newer")))
    assert "got replaced" in refusal((await node.prepare(one))[0])


async def test_without_a_driver_the_reason_is_passed_on(node: Node, one: Json) -> None:
    """The GPUs can't be seen all the time: the answer is the hardware's own error, and a later try works."""
    node.timeout = 0.5
    node.start()
    there, node.inventory = node.inventory, None
    assert refusal((await node.prepare(one))[0]) == "no NVIDIA driver on this node"
    node.inventory = there
    assert devices((await node.prepare(one))[0])


@pytest.mark.parametrize("late", ["driver", "device node"])
async def test_a_driver_that_is_late_is_waited_for(
    node: Node, one: Json, monkeypatch: pytest.MonkeyPatch, late: str
) -> None:
    """At boot it may come some seconds after us: the call waits for it, since the kubelet asks again after 90 seconds only."""
    monkeypatch.setattr(service, "_PAUSE", 0.01)
    edits, tries = node.edits.edits, 0

    def not_yet(uuids: Collection[str], *, deadline: float) -> DriverEdits:
        nonlocal tries
        tries += 1
        if tries < 4:
            raise HardwareError("/dev/nvidia0 is missing")
        return edits(uuids, deadline=deadline)

    if late == "device node":
        monkeypatch.setattr(node.edits, "edits", not_yet)
        assert devices((await node.prepare(one))[0])
        assert tries == 4
        return
    there, node.inventory = node.inventory, None
    asked = asyncio.create_task(node.prepare(one))
    await until(lambda: node.api.gets)
    node.inventory = there
    assert devices((await asked)[0])


async def test_a_uid_that_is_none_is_refused(node: Node) -> None:
    """A UID becomes part of paths; nothing else than a UID is taken, in either call."""
    obj = claim("c", [result()], uid="../../etc/passwd")
    assert "is not a UID" in refusal((await node.prepare(obj))[0])
    assert "is not a UID" in refusal((await node.unprepare(obj))[0])


async def test_a_bug_of_ours_fails_one_claim_and_is_named(node: Node, one: Json) -> None:
    """An unexpected exception is an answer too, with its type; the daemon lives on."""
    node.api.claims["default", "c0"]["status"]["allocation"]["devices"]["results"] = [7]
    message = refusal((await node.prepare(one))[0])
    assert "claim default/c0: prepare failed by a fault of the driver: AttributeError" in message


async def test_driver_edits_that_fail_refuse_the_claim(node: Node, one: Json) -> None:
    """No libcuda: refused; edits in order again: prepared."""
    node.edits.made = driver_edits([UUID[0]], no_libcuda="mount no libcuda.so")
    assert "mount no libcuda.so" in refusal((await node.prepare(one))[0])
    assert node.snapshot() == {}
    node.edits.made = None
    assert devices((await node.prepare(one))[0])


async def test_the_same_claim_twice_in_a_call(node: Node, one: Json) -> None:
    """It is worked on once and answered once."""
    assert devices((await node.prepare(one, one))[0])
    assert node.api.gets == 2


async def test_no_claims(node: Node) -> None:
    """An empty call has an empty answer."""
    assert node.claims.prepare([]) == {}
    assert node.claims.unprepare([]) == {}


async def test_a_claim_prepared_before_is_planned_anew_with_its_neighbour(node: Node) -> None:
    """A new pod uses a claim that is still prepared for a former pod together with another: the kubelet names the other alone."""
    first = claim("c", [result(0, "1Gi", "10")], pods=["old"])
    node.api.put(first, pod("old", container("x", "c")))
    devices((await node.prepare(first))[0])
    node.api.put(pod("old", container("x", "c"), phase="Succeeded"))
    both = claim("c", [result(0, "1Gi", "10")], pods=["new"]), claim("d", [result(2, "2Gi", "0")], pods=["new"])
    node.api.put(*both, pod("new", container("x", "c", "d")))
    devices((await node.prepare(both[1]))[0])
    assert node.limits(*both) == {UUID[0]: (1024, 10), UUID[2]: (2048, 0)}


async def test_claims_of_one_call_are_worked_on_once(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has the others of its container for neighbours; planning them again beside each would cost the square of them."""
    claims = [claim(f"c{i}", [result(i, "1Gi", "10")]) for i in range(4)]
    node.api.put(*claims, pod("p", container("x", *(f"c{i}" for i in range(4)))))
    worked_on: list[str] = []
    put = NodeFiles.put

    def counted(self: NodeFiles, prepared: Prepared, gpus: Mapping[str, Gpu], edits: DriverEdits) -> None:
        worked_on.append(prepared.ref.name)
        put(self, prepared, gpus, edits)

    monkeypatch.setattr(NodeFiles, "put", counted)
    for _ in range(2):  # at the repeat each knows the others' files
        worked_on.clear()
        for answer in await node.prepare(*claims):
            devices(answer)
        assert sorted(worked_on) == ["c0", "c1", "c2", "c3"]


async def test_two_claims_of_a_container_in_one_call(node: Node) -> None:
    """The usual case, and its repeat."""
    both = claim("c", [result(0, "1Gi", "10")]), claim("d", [result(2, "2Gi", "0")])
    node.api.put(*both, pod("p", container("x", "c", "d")))
    answers = [devices(answer) for answer in await node.prepare(*both)]
    assert node.limits(*both) == {UUID[0]: (1024, 10), UUID[2]: (2048, 0)}
    assert [devices(answer) for answer in await node.prepare(*both)] == answers
    assert await node.unprepare(*both) == [None, None]
    assert node.snapshot() == {}
