"""What the API server makes of our devices: one whose feature gates are off drops fields without a word."""

from hami_kubeletplugin.observe.log import get_logger
from hami_kubeletplugin.observe.once import Once
from hami_kubeletplugin.publish.devices import Device
from hami_kubeletplugin.publish.slices import Slice, differences

log = get_logger()


class Accepted:
    """Remembers what the server kept of each slice's devices, so that it is right then and not written again and again."""

    def __init__(self) -> None:
        self.drops_taints = False
        """Whether it has dropped taints. It stays so until a server of another version comes: to find out anew would be to offer,
        for a moment, the very devices that must not be allocated."""
        self._kept: dict[int, tuple[list[Device], list[Device]]] = {}
        self._told = Once[str]()

    def forget(self) -> None:
        """What was dropped may be kept now, as by a server that was restarted with another gate."""
        self._kept.clear()

    def devices(self, index: int, wanted: list[Device]) -> list[Device]:
        """What the server made of these devices when they were sent last as the slice of this index, if it dropped something."""
        sent, kept = self._kept.get(index, (None, wanted))
        return kept if sent is not None and not differences(sent, wanted) else wanted

    def note(self, sent: Slice, stored: Slice) -> None:
        """Compare a slice with what the server answered, and say once what it dropped."""
        wanted, kept = sent["spec"]["devices"], stored["spec"].get("devices", [])
        dropped = differences(wanted, kept)
        if dropped:
            self._tell(dropped, tainted=any(device.get("taints") for device in kept))
            self._kept[int(stored["metadata"]["name"].partition("-")[0], 16)] = wanted, kept

    def _tell(self, fields: list[str], *, tainted: bool) -> None:
        gated = [field for field in fields if "allowMultipleAllocations" in field or "requestPolicy" in field]
        if gated:
            self._once(
                "The API server dropped fields of our devices: its feature gate DRAConsumableCapacity is off. Turn it on in "
                "kube-apiserver, kube-scheduler, kube-controller-manager and kubelet; GPUs are published without them",
                gated,
            )
        taints = [field for field in fields if field == "taints" and not tainted]
        if taints:
            self.drops_taints = True
            self._once(
                "The API server dropped taints of our devices: its feature gate DRADeviceTaints is off. Turn it on in "
                "kube-apiserver, kube-scheduler and kube-controller-manager, then restart this daemon; until then GPUs on which "
                "nothing new may be put are not published",
                taints,
            )
        others = [field for field in fields if field not in (*gated, *taints)]
        if others:
            self._once("The API server changed fields of our devices, is there a webhook that does?", others)

    def _once(self, event: str, fields: list[str]) -> None:
        if self._told.is_new(event):
            log.error(event, fields=fields)
