"""Health of GPUs over the fake NVML: what events and answers come to, and that each ends without a restart."""

import threading
from pathlib import Path

import pytest

from hami_kubeletplugin.gpu.conditions import Conditions, What
from hami_kubeletplugin.health import watch
from hami_kubeletplugin.health.kept import Keeper
from hami_kubeletplugin.usage.sample import Sampler
from tests.unit.gpu.fake_node import GPU_UNAVAILABLE, RECOVERY_ACTION, XID
from tests.unit.health.conftest import UUIDS, Watched, healthy
from tests.waiting import until


def counted(watched: Watched, minor: int) -> dict[str, int]:
    """The Xids that there were."""
    return {xid: count for xid, count in watched.health.xids[UUIDS[minor]].items() if count}


WAITS = {What.ACTION: "gpu-reset"}


async def test_an_xid_counts_by_the_recovery_action_and_ends_with_it(watched: Watched) -> None:
    """An action is waited for, with what to do; when the driver names none any more, it is over. The other GPU is well.

    Each Xid is counted for its GPU; a number that nobody knows is another one.
    """
    await watched.listening()
    watched.node.write(healthy(0, action=1), healthy(1))
    watched.node.happen(UUIDS[0], XID, 79)
    await until(lambda: watched.said(0) == WAITS)
    message = watched.message(0, What.ACTION)
    assert "Xid 79 (the GPU has fallen off the bus)" in message
    assert "nvidia-smi --gpu-reset -i 0000:10:00.0" in message
    assert watched.said(1) == {}
    watched.node.write(healthy(0), healthy(1))
    await until(lambda: watched.said(0) == {})
    watched.node.happen(UUIDS[0], XID, 79)
    watched.node.happen(UUIDS[0], XID, 1234)
    await until(lambda: counted(watched, 0) == {"79": 2, "other": 1})
    assert counted(watched, 1) == {}
    assert set(watched.health.xids[UUIDS[1]]) >= {"31", "48", "79", "other"}


async def test_an_xid_without_an_action_is_information(watched: Watched) -> None:
    """Also one that isn't on anybody's list: the driver knows better."""
    await watched.listening()
    watched.node.happen(UUIDS[0], XID, 94)
    await until(lambda: watched.said(0) == {What.XID: "94"})
    await watched.polled()
    assert watched.said(0) == {What.XID: "94"}


@pytest.mark.parametrize(
    ("options", "xid", "said"),
    [
        ({}, 31, {What.XID: "31"}),
        ({}, 48, {What.ACTION: "unknown"}),
        ({"xids_informational": "48, 63"}, 48, {What.XID: "48"}),
        ({"xids_critical": "31"}, 31, {What.ACTION: "unknown"}),
    ],
    ids=["an application's", "another", "listed as informational", "listed as critical"],
)
async def test_drivers_that_name_no_actions(
    watched: Watched, options: dict[str, str], xid: int, said: dict[What, str]
) -> None:
    """The six Xids of applications, and those that are listed, are information; others wait for a reset."""
    watched.node.write(healthy(0, action=None))
    watched.in_use = {UUIDS[0]}
    watched.start(20.0, **options)
    await watched.heard(1)
    watched.node.happen(UUIDS[0], XID, xid)
    await until(lambda: watched.said(0) == said)


async def test_a_driver_that_is_loaded_anew_ends_what_it_names_no_action_for(watched: Watched, tmp_path: Path) -> None:
    """It is seen by the kernel's module; before that, no number of good answers is enough."""
    module = watched.node.sysfs / "module/nvidia"
    module.mkdir(parents=True)
    watched.node.write(healthy(0, action=None))
    await watched.listening()
    watched.node.happen(UUIDS[0], XID, 48)
    await until(lambda: watched.said(0) == {What.ACTION: "unknown"})
    await watched.polled(4)
    assert watched.said(0) == {What.ACTION: "unknown"}
    module.rename(tmp_path / "old")
    module.mkdir()
    watched.node.write("load 1", healthy(0, action=None))
    await until(lambda: watched.said(0) == {})


async def test_a_gpu_that_was_reset_is_well_again_on_a_driver_that_names_no_actions(watched: Watched) -> None:
    """Its count of energy has begun anew."""
    watched.node.write(healthy(0, "energy 5000", action=None))
    await watched.listening()
    watched.node.happen(UUIDS[0], XID, 48)
    watched.node.write(healthy(0, "energy 6000", action=None))
    await until(lambda: watched.said(0) == {What.ACTION: "unknown"})
    watched.node.write(healthy(0, "energy 10", action=None))
    await until(lambda: watched.said(0) == {})


async def test_a_daemon_that_is_replaced_knows_what_its_driver_can_not_say(watched: Watched, tmp_path: Path) -> None:
    """That a GPU waits for its reset after an Xid; it ends with that, also when it comes while nobody looks."""
    for energy, said in ((7000, {What.ACTION: "unknown"}), (10, {})):
        watched.node.write(healthy(0, "energy 5000", action=None))
        await watched.listening()
        await watched.polled(1)
        watched.node.happen(UUIDS[0], XID, 48)
        await until(lambda: watched.said(0) == {What.ACTION: "unknown"})
        assert await Keeper(tmp_path, "1 n", "b", watched.conditions, watched.health).write({})
        await watched.stop()
        watched.node.write(healthy(0, f"energy {energy}", action=None))
        watched.conditions = Conditions()
        watched.start()
        Keeper(tmp_path, "2 n", "b", watched.conditions, watched.health).restore()
        assert watched.said(0) == {What.ACTION: "unknown"}
        await until(lambda: watched.said(0) == said)  # noqa: B023 - called before the next one begins
        await watched.polled(4)
        assert watched.said(0) == said
        await watched.stop()
        watched.conditions = Conditions()


async def test_a_driver_that_answers_again_is_asked_soon(watched: Watched, tmp_path: Path) -> None:
    """Long before the next regular poll would come."""
    hang = tmp_path / "hang"
    hang.touch()
    watched.node.write(healthy(0, f"hang nvmlDeviceGetFieldValues {hang}"), healthy(1))
    watched.start(time_limit=0.5, health_poll="60")
    await until(lambda: set(watched.said(1)) == {What.NOT_ANSWERING})
    hang.unlink()
    await until(lambda: watched.said(1) == {})


async def test_who_listens_lets_others_ask(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for each scrape: they don't wait for the end of a wait for events."""
    monkeypatch.setattr(watch, "_WAIT", 60.0)
    watched.in_use = {UUIDS[0]}
    watched.start(health_poll="60")
    await watched.node.until_called("nvmlEventSetWait_v2")
    for _ in range(2):
        assert await Sampler(watched.sessions, lambda: 0.0, patience=20.0).sample() is not None
    watched.node.happen(UUIDS[0], XID, 79)
    await until(lambda: counted(watched, 0) == {"79": 1})


@pytest.mark.parametrize("kind", [GPU_UNAVAILABLE, RECOVERY_ACTION])
async def test_events_of_trouble_have_the_gpu_asked_at_once(watched: Watched, kind: int) -> None:
    """An action that the driver names is known long before the next poll would come."""
    watched.in_use = {UUIDS[0]}
    watched.start(health_poll="60")
    await watched.heard(1)
    watched.node.write(healthy(0, action=2), healthy(1))
    watched.node.happen(UUIDS[0], kind)
    await until(lambda: watched.said(0) == {What.ACTION: "node-reboot"})


async def test_what_is_only_polled(watched: Watched) -> None:
    """Actions and row remapping are seen on a node where nothing runs; each ends with what the driver says."""
    watched.start()
    await until(lambda: watched.minors() == [0, 1])
    watched.node.write(healthy(0, action=3), healthy(1).replace("144 0", "144 1").replace("145 0", "145 1"))
    await until(lambda: watched.said(0) == {What.ACTION: "drain-p2p"})
    await until(lambda: watched.said(1) == {What.ROW_REMAP_PENDING: "", What.ROW_REMAP_FAILURE: ""})
    assert watched.called("nvmlEventSetCreate") == 0
    watched.node.write(healthy(0), healthy(1))
    await until(lambda: watched.said(0) == watched.said(1) == {})


@pytest.mark.parametrize(("code", "said"), [(15, {What.LOST: ""}), (16, WAITS), (999, {What.LOST: ""})])
async def test_a_gpu_whose_calls_fail(watched: Watched, code: int, said: dict[What, str]) -> None:
    """It is lost, or waits for its reset; it stays in the slices with its fellow, and recovers by itself."""
    await watched.listening(2)
    watched.node.write(healthy(0), healthy(1, f"fail * {code}"))
    await until(lambda: said.items() <= watched.said(1).items())
    await watched.polled()
    assert watched.said(0) == {}
    assert watched.minors() == [0, 1]
    watched.node.write(healthy(0), healthy(1))
    await until(lambda: watched.said(1) == {})
    assert watched.minors() == [0, 1]


async def test_a_milder_event_changes_nothing_of_a_worse_state(watched: Watched) -> None:
    """An Xid of an application comes beside it."""
    await watched.listening()
    watched.node.write(healthy(0, action=2), healthy(1))
    await until(lambda: watched.said(0) == {What.ACTION: "node-reboot"})
    watched.node.write(healthy(0, "fail nvmlDeviceGetFieldValues 999", action=2), healthy(1))
    watched.node.happen(UUIDS[0], XID, 31)
    await until(lambda: What.XID in watched.said(0))
    await watched.polled()
    assert watched.said(0)[What.ACTION] == "node-reboot"


async def test_only_gpus_that_can_not_be_registered_are_unmonitored(watched: Watched) -> None:
    """Whether they lack the event or the call fails; what is polled of them is known all the same; it ends when it works."""
    watched.node.write(healthy(0), healthy(1, "events 0"), healthy(2, "fail nvmlDeviceRegisterEvents 999", action=1))
    watched.in_use = set(UUIDS[:3])
    watched.start()
    await until(lambda: watched.said(1) == {What.UNMONITORED: ""})
    await until(lambda: watched.said(2) == {What.UNMONITORED: "", **WAITS})
    assert watched.said(0) == {}
    watched.node.write(*map(healthy, range(3)))
    await until(lambda: watched.said(1) == watched.said(2) == {})


async def test_a_driver_that_hangs_is_found_and_costs_one_thread(watched: Watched, tmp_path: Path) -> None:
    """Nothing is called healthy meanwhile, a worse state stays; however long it lasts, one thread waits; it ends by itself."""
    watched.node.write(healthy(0, action=1), healthy(1))
    watched.in_use = {UUIDS[0]}
    watched.start(time_limit=1.5)
    await until(lambda: watched.said(0) == WAITS)
    hang = tmp_path / "hang"
    hang.touch()
    watched.node.write(f"hang * {hang}", healthy(0, action=1), healthy(1))
    await until(lambda: set(watched.said(1)) == {What.NOT_ANSWERING})
    assert set(watched.said(0)) == {What.NOT_ANSWERING, What.ACTION}
    assert "no answer within 1.5 s" in watched.message(1, What.NOT_ANSWERING)
    for _ in range(3):
        watched.hardware.wake()
        with pytest.raises(Exception, match="no answer"):
            await watched.sessions.use(lambda nvml: nvml.require("nvmlDeviceGetCount"))
    assert sum(thread.name == "nvml" for thread in threading.enumerate()) == 1
    hang.unlink()
    watched.node.write(healthy(0), healthy(1))
    await until(lambda: watched.said(0) == watched.said(1) == {})


async def test_nvml_is_open_only_while_containers_hold_the_driver_anyhow(watched: Watched) -> None:
    """Never on an idle node; let go when the last claim is gone, or when a GPU that waits for its reset is free."""
    watched.start()
    await until(lambda: watched.minors() == [0, 1])
    await until(watched.node.can_be_unloaded)
    watched.in_use = set(UUIDS[:2])
    await watched.heard(2)
    watched.node.write(healthy(0), healthy(1, action=1))
    await until(lambda: watched.said(1) == WAITS)
    await watched.polled()
    assert not watched.node.can_be_unloaded()
    watched.in_use = {UUIDS[0]}
    closed = watched.called("nvmlShutdown")
    await until(lambda: watched.called("nvmlShutdown") >= closed + 3)
    watched.node.write(healthy(0), healthy(1))
    before = watched.called("nvmlDeviceRegisterEvents")
    await until(lambda: watched.said(1) == {})
    await watched.heard(before + 2)
    watched.in_use = set()
    await until(watched.node.can_be_unloaded)


async def test_events_can_be_left_alone(watched: Watched) -> None:
    """NVML is never held open then, and polls go on."""
    watched.in_use = set(UUIDS[:2])
    watched.start(health_events="off")
    watched.node.write(healthy(0, action=1), healthy(1))
    await until(lambda: watched.said(0) == WAITS)
    assert watched.called("nvmlEventSetCreate") == 0
    assert watched.said(1) == {}


async def test_slices_follow_the_hardware_while_nvml_is_held_open(watched: Watched) -> None:
    """MIG mode, a GPU that comes, another driver: known long before the next look at the hardware would come."""
    await watched.listening()
    await watched.polled(1)  # the first one may still be at the second GPU
    watched.node.write(healthy(0), healthy(1, "mig 1"))
    await until(lambda: watched.minors() == [0])
    watched.node.write(healthy(0), healthy(1), healthy(2))
    (watched.node.sysfs / "bus/pci/drivers/nvidia/0000:12:00.0").mkdir(parents=True)
    await until(lambda: watched.minors() == [0, 1, 2])
    watched.node.write("load 1", healthy(0), healthy(1), driver="570.86.10")
    await until(
        lambda: watched.offered[-1] and {gpu.driver_version for gpu in watched.offered[-1].gpus} == {"570.86.10"}
    )
    await until(lambda: watched.minors() == [0, 1])


async def test_a_gpu_that_is_gone_stays_as_lost_while_a_claim_has_it(watched: Watched) -> None:
    """Its pods are told; without a claim it leaves the slices."""
    await watched.listening()
    watched.node.write("load 1", healthy(1))
    await until(lambda: watched.said(0) == {What.LOST: ""})
    await watched.polled()
    assert watched.minors() == [0, 1]
    watched.in_use = set()
    watched.hardware.wake()
    await until(lambda: watched.minors() == [1])
    assert watched.said(0) == {}


async def test_a_gpu_that_was_gone_comes_back(watched: Watched) -> None:
    """Though NVML is held open for its fellow, and what is open doesn't learn of GPUs that come."""
    await watched.listening(2)
    watched.node.write(healthy(1))
    await until(lambda: watched.said(0) == {What.LOST: ""})
    await until(lambda: dict(watched.offered[-1].lost) if watched.offered[-1] else None)
    assert not watched.node.can_be_unloaded()
    watched.node.write(healthy(0), healthy(1))
    await until(lambda: watched.said(0) == {})
    assert watched.minors() == [0, 1]


async def test_a_driver_that_goes_and_comes_back(watched: Watched) -> None:
    """Nothing is offered meanwhile; then all is, and it is listened to again."""
    await watched.listening()
    watched.node.write("load 1", "fail nvmlInitWithFlags 9")
    await until(lambda: watched.offered[-1] is None)
    before = watched.called("nvmlDeviceRegisterEvents")
    watched.node.write("load 2", healthy(0), healthy(1))
    await until(lambda: watched.minors() == [0, 1])
    await watched.heard(before + 1)
    watched.node.write("load 2", healthy(0, action=1), healthy(1))
    watched.node.happen(UUIDS[0], XID, 79)
    await until(lambda: watched.said(0) == WAITS)


async def test_a_gpu_that_comes_back_is_seen_though_nvml_is_open(watched: Watched) -> None:
    """A session that has known a GPU as lost never says anything else of it, so it is asked in a new one."""
    await watched.listening()
    watched.node.write(healthy(1))
    await until(lambda: watched.said(0) == {What.LOST: ""})
    await watched.polled()
    watched.node.write(healthy(0), healthy(1))
    await until(lambda: watched.said(0) == {})
