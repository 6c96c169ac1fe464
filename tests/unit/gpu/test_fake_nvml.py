"""The fake NVML itself: what the tests of health stand on."""

from typing import Any

import pytest

from hami_kubeletplugin.api.errors import NvmlCallFailed
from hami_kubeletplugin.gpu.nvml import Nvml
from tests.unit.gpu.fake_node import MIG_CHANGE, XID

UUID = "GPU-00000000-0000-0000-0000-{:012d}".format


def code(nvml: Nvml, call: str, *arguments: object) -> int:
    """The return code of a call."""
    try:
        nvml.require(call, *arguments)
    except NvmlCallFailed as error:
        return error.code
    return 0


def test_events_are_given_out_once_to_who_registered_for_them(node: Any, gpu_lines: Any) -> None:
    """Only those of registered GPUs and types, in order, and none of before the set was made."""
    node.write(gpu_lines(0), gpu_lines(1))
    node.happen(UUID(0), XID, 13)
    with Nvml(node.library) as nvml:
        events = nvml.require("nvmlEventSetCreate")
        nvml.require("nvmlDeviceRegisterEvents", nvml.require("nvmlDeviceGetHandleByIndex", 0), XID, events)
        assert code(nvml, "nvmlEventSetWait_v2", events, 5) == 10
        node.happen(UUID(1), XID, 79)
        node.happen(UUID(0), MIG_CHANGE, 0)
        node.happen(UUID(0), XID, 94)
        node.happen(UUID(0), XID, 95)
        got = [nvml.require("nvmlEventSetWait_v2", events, 5000) for _ in range(2)]
        assert [(event.eventType, event.eventData) for event in got] == [(XID, 94), (XID, 95)]
        assert nvml.require("nvmlDeviceGetUUID", got[0].device) == UUID(0)
        assert code(nvml, "nvmlEventSetWait_v2", events, 5) == 10
        nvml.require("nvmlEventSetFree", events)


def test_a_gpu_that_lacks_an_event_type_refuses_to_be_registered_for_it(node: Any, gpu_lines: Any) -> None:
    """As nvml.h says; the types that it has are told."""
    node.write(gpu_lines(0, "events 8"))
    with Nvml(node.library) as nvml:
        gpu, events = nvml.require("nvmlDeviceGetHandleByIndex", 0), nvml.require("nvmlEventSetCreate")
        assert nvml.require("nvmlDeviceGetSupportedEventTypes", gpu) == XID
        assert code(nvml, "nvmlDeviceRegisterEvents", gpu, XID | MIG_CHANGE, events) == 3


def test_the_node_changes_below_an_open_session(node: Any, gpu_lines: Any) -> None:
    """Facts and failures follow; a GPU that is gone is lost; a new one comes with the next session; a reload ends it."""
    node.write(gpu_lines(0, "field 230 1"), gpu_lines(1))
    with Nvml(node.library) as nvml:
        assert not node.can_be_unloaded()
        gpus = [nvml.require("nvmlDeviceGetHandleByIndex", index) for index in range(2)]
        values = nvml.require("nvmlDeviceGetFieldValues", gpus[0], [230, 144])
        assert (values[0].nvmlReturn, values[0].value.uiVal) == (0, 1)
        assert values[1].nvmlReturn == 3
        node.write(gpu_lines(2), gpu_lines(1, "mig 1"))
        assert nvml.require("nvmlDeviceGetMigMode", gpus[1])[0] == 1
        assert code(nvml, "nvmlDeviceGetUUID", gpus[0]) == 15
        assert nvml.require("nvmlDeviceGetCount") == 2
        node.write("fail * 16", gpu_lines(1))
        assert code(nvml, "nvmlDeviceGetMigMode", gpus[1]) == 16
        node.write("load 1", gpu_lines(1))
        assert code(nvml, "nvmlDeviceGetMigMode", gpus[1]) == 1
    assert node.can_be_unloaded()
    with Nvml(node.library) as nvml:
        assert nvml.require("nvmlDeviceGetCount") == 1


@pytest.mark.parametrize("before", ["", "fail nvmlShutdown 999"])
def test_a_module_is_free_after_each_session(node: Any, before: str) -> None:
    """Also if the end failed."""
    node.write(before)
    with Nvml(node.library):
        pass
    assert node.can_be_unloaded()
