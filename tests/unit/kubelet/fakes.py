"""A claim service that tests steer, and what is published."""

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence

from hami_kubeletplugin.api.claim import ClaimRef, PreparedDevice
from hami_kubeletplugin.api.errors import HamiError
from hami_kubeletplugin.gpu.device_health import DeviceHealth
from hami_kubeletplugin.kubelet.server import KubeletServer

Serve = Callable[..., contextlib.AbstractAsyncContextManager[KubeletServer]]


def ref(n: int) -> ClaimRef:
    """The n-th claim."""
    return ClaimRef("default", f"claim-{n}", f"uid-{n}")


def device(claim: ClaimRef) -> PreparedDevice:
    """What `Claims` prepares for it."""
    return PreparedDevice(("gpu",), "node-1", "hami-gpu-0", (f"k8s.gpu.hami.io/claim=claim-{claim.uid}",), "share-1")


class Claims:
    """A ClaimService: answers for every claim unless told otherwise."""

    def __init__(self) -> None:
        self.errors: dict[str, HamiError] = {}
        self.raises: Exception | None = None
        self.forgets: set[str] = set()
        self.hold: threading.Event | None = None
        self.started = threading.Event()
        self.finished: list[str] = []

    def prepare(self, refs: Sequence[ClaimRef]) -> Mapping[str, tuple[PreparedDevice, ...] | HamiError]:
        """See ClaimService."""
        self._work(refs)
        return {r.uid: self.errors.get(r.uid) or (device(r),) for r in refs if r.uid not in self.forgets}

    def unprepare(self, refs: Sequence[ClaimRef]) -> Mapping[str, HamiError | None]:
        """See ClaimService."""
        self._work(refs)
        return {r.uid: self.errors.get(r.uid) for r in refs if r.uid not in self.forgets}

    def _work(self, refs: Sequence[ClaimRef]) -> None:
        self.started.set()
        if self.hold:
            self.hold.wait(20)
        if self.raises:
            raise self.raises
        self.finished += [r.uid for r in refs]


PUBLISHED = (DeviceHealth("node-1", "hami-gpu-0"), DeviceHealth("node-1", "hami-gpu-1"))
"""What is published in these tests."""
