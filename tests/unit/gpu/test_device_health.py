"""What the kubelet is told of devices."""

from hami_kubeletplugin.gpu.conditions import EVERY, Condition, Health, What
from hami_kubeletplugin.gpu.device_health import DeviceHealth, reported

LOST = Condition(What.LOST, "it is lost")
TWICE = Condition(What.GIVEN_OUT_TWICE, "the device plugin has it too", "device-plugin")


def test_published_devices_are_always_told_and_others_while_something_is_to_be_said() -> None:
    """So the pods of a GPU that left the slices hear of it, and nothing is said of one that was taken out of the node."""
    published, known = {"GPU-1": "a"}, {"GPU-1": "a", "GPU-2": "b", "GPU-3": "c"}
    assert reported("n", published, known, {}) == (DeviceHealth("n", "a"),)
    assert reported("n", published, known, {"GPU-2": (LOST,), "GPU-3": (TWICE,), "GPU-unknown": (LOST,)}) == (
        DeviceHealth("n", "a"),
        DeviceHealth("n", "b", Health.UNHEALTHY, "it is lost"),
        DeviceHealth("n", "c", Health.HEALTHY, "the device plugin has it too"),
    )
    silent = {EVERY: (Condition(What.NOT_ANSWERING, "it hangs"),)}
    assert {each.health for each in reported("n", {}, known, silent)} == {Health.UNKNOWN}
