"""The daemon's own counters, as a process that prepares, fails, waits and mends shows them."""

import asyncio
import re
import socket
from collections.abc import Callable
from dataclasses import replace

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from hami_kubeletplugin.fake.api_server import ApiServer
from hami_kubeletplugin.fake.kubelet import FakeKubelet
from tests.unit.process.daemon import Process, allocated
from tests.waiting import until

DRIVER = "gpu.hami.io"


class Samples(dict[tuple[str, frozenset[tuple[str, str]]], float]):
    """A page, by name and labels."""

    def of(self, name: str, **labels: str) -> float:
        """One sample."""
        return self[name, frozenset(labels.items())]

    def answers(self) -> dict[str, float]:
        """What was answered, as `operation outcome reason`, less what never came up."""
        found = {
            " ".join(map(dict(labels).__getitem__, ("operation", "outcome", "reason"))).rstrip(): value
            for (name, labels), value in self.items()
            if name == "hami_claim_operations_total" and value
        }
        return dict(sorted(found.items()))


class Page:
    """The daemon's page."""

    def __init__(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{free.getsockname()[1]}"

    async def read(self) -> Samples:
        """What it says now."""
        async with aiohttp.ClientSession() as session, session.get(f"http://{self.address}/metrics") as response:
            families = text_string_to_metric_families(await response.text())
        samples = (sample for family in families for sample in family.samples)
        return Samples({(each.name, frozenset(each.labels.items())): each.value for each in samples})

    async def until(self, holds: Callable[[Samples], bool]) -> Samples:
        """What it says once this holds of it."""
        async with asyncio.timeout(20):
            samples = await self.read()
            while not holds(samples):
                await asyncio.sleep(0.05)
                samples = await self.read()
            return samples


async def test_what_it_does_is_counted(process: Process, api: ApiServer) -> None:
    """Each answer once, by its reason; steps, what is in work, records, writes of slices, and what it mended by itself."""
    page = Page()
    async with FakeKubelet(process.registry) as kubelet:
        await process.start("--metrics-address", page.address, "--prepare-timeout", "3", "--stale-interval", "3600")
        await until(lambda: api.all("resourceslices"))
        plugin = await kubelet.plugin(DRIVER)
        before = await page.read()
        assert before.answers() == {}
        assert before.of("hami_claim_operations_total", operation="prepare", outcome="failed", reason="no_room") == 0
        assert before.of("hami_slice_writes_total", verb="create", outcome="ok") == 1
        assert before.of("hami_slice_writes_total", verb="create", outcome="failed") == 0

        ref = allocated(api, "train", memory="4000Mi")
        for _ in range(2):  # the second one finds all as it has to be: it is a call like any other
            assert not isinstance((await plugin.prepare([ref]))[ref.uid], str)
        gone = replace(ref, name="gone", uid="00000000-0000-0000-0000-000000000000")
        strange = replace(ref, name="strange", uid="../../etc")
        await plugin.prepare([gone, strange])
        api.fail(403, resource="resourceclaims", times=1)
        await plugin.prepare([gone])
        api.fail(503, resource="resourceclaims", times=100)
        await plugin.prepare([gone])
        api.mend()
        after = await page.until(lambda now: sum(now.answers().values()) >= 6)  # a page is given again for a second
        assert after.answers() == {
            "prepare failed api_forbidden": 1,
            "prepare failed api_unavailable": 1,
            "prepare failed refused": 2,
            "prepare ok": 2,
        }
        for step, times in {"read": 5, "plan": 2, "write": 2}.items():
            labels = {"operation": "prepare", "step": step}
            assert after.of("hami_claim_step_seconds_count", **labels) == times
            assert after.of("hami_claim_step_seconds_bucket", **labels, le="+Inf") == times
        spent = {s: after.of("hami_claim_step_seconds_sum", operation="prepare", step=s) for s in ("read", "write")}
        assert spent["read"] > spent["write"] > 0  # it waited for the API server

        api.latency = 60.0  # the API server hangs, and the call is given up; what it began ends with the daemon
        hanging = asyncio.create_task(plugin.prepare([gone]))
        await page.until(lambda now: now.of("hami_claims_in_flight", operation="prepare") == 1)
        await hanging
        api.latency = 0.0

        for spec in process.cdi.iterdir():
            spec.unlink()
        api.remove("resourceslices", str(api.all("resourceslices")[0]["metadata"]["name"]))
        mended = await page.until(
            lambda now: all(now.of("hami_repairs_total", what=what) >= 1 for what in ("cdi_spec", "slices"))
        )
        assert mended.of("hami_repairs_total", what="record") == 0
        await page.until(lambda now: now.of("hami_claim_records", state="prepared") == 1)

        await plugin.unprepare([ref])
        last = await page.until(lambda now: sum(now.answers().values()) >= 8)
        assert last.answers() == after.answers() | {"prepare failed api_unavailable": 2, "unprepare ok": 1}
        assert last.of("hami_claim_step_seconds_count", operation="unprepare", step="write") == 1
        assert await process.stop() == 0


async def test_the_log_of_one_prepare(process: Process, api: ApiServer) -> None:
    """All lines of a call have its id, and name claim, pods and containers; a failed one says why and how long it took.

    Before all of them is what was set, and where.
    """
    async with FakeKubelet(process.registry) as kubelet:
        await process.start()
        await until(lambda: api.all("resourceslices"))
        plugin = await kubelet.plugin(DRIVER)
        good, bad = (allocated(api, name, memory="4000Mi") for name in ("good", "bad"))
        config = {"source": "FromClaim", "opaque": {"driver": DRIVER, "parameters": {"kind": "wrong"}}}
        stored = next(claim for claim in api.all("resourceclaims") if claim["metadata"]["name"] == "bad")
        stored["status"]["allocation"]["devices"]["config"] = [config]
        api.put("resourceclaims", stored)
        await plugin.prepare([good, bad])
        await plugin.unprepare([good])
        assert await process.stop() == 0
    given = next(each["options"] for each in process.events() if each["event"] == "options that are not the default")
    assert given["--node-name"] == {"value": "node-1", "from": "NODE_NAME"}
    assert given["--driver-edits"] == {"value": "none", "from": "command line"}
    assert "--log-format" not in given
    lines = [line for line in process.events() if "call" in line]
    by_event = {line["event"]: line for line in lines}
    prepared, failed, unprepared = (by_event[f"claim {what}"] for what in ("prepared", "failed", "unprepared"))
    assert re.fullmatch(r"[0-9a-f]{8}", prepared["call"])
    assert prepared["call"] == failed["call"] != unprepared["call"]
    assert {line["claim_uid"] for line in lines} == {good.uid, bad.uid}
    assert (prepared["claim"], prepared["pods"], prepared["containers"]) == (
        "default/good",
        ["default/good"],
        ["good/main"],
    )
    assert prepared["devices"] == ["hami-gpu-0"]
    assert (failed["claim"], failed["verb"], failed["reason"]) == ("default/bad", "prepare", "config")
    assert "devices" not in failed
    assert all(line["milliseconds"] > 0 for line in (prepared, failed, unprepared))
