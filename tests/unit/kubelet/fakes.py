"""A claim service and a health source that tests steer."""

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence

from hami_kubeletplugin.api.claim import ClaimRef, PreparedDevice
from hami_kubeletplugin.api.errors import HamiError
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
        self.hold: asyncio.Event | None = None
        self.started = asyncio.Event()
        self.finished: list[str] = []

    async def prepare(self, refs: Sequence[ClaimRef]) -> Mapping[str, tuple[PreparedDevice, ...] | HamiError]:
        """See ClaimService."""
        await self._work(refs)
        return {r.uid: self.errors.get(r.uid) or (device(r),) for r in refs if r.uid not in self.forgets}

    async def unprepare(self, refs: Sequence[ClaimRef]) -> Mapping[str, HamiError | None]:
        """See ClaimService."""
        await self._work(refs)
        return {r.uid: self.errors.get(r.uid) for r in refs if r.uid not in self.forgets}

    async def _work(self, refs: Sequence[ClaimRef]) -> None:
        self.started.set()
        if self.hold:
            await self.hold.wait()
        if self.raises:
            raise self.raises
        self.finished += [r.uid for r in refs]


class Source:
    """A HealthSource whose set of devices a test replaces."""

    def __init__(self) -> None:
        self._devices: tuple[tuple[str, str], ...] = (("node-1", "hami-gpu-0"), ("node-1", "hami-gpu-1"))
        self._condition = asyncio.Condition()

    def published(self) -> tuple[tuple[str, str], ...]:
        """See HealthSource."""
        return self._devices

    async def changed(self, since: Sequence[tuple[str, str]]) -> None:
        """See HealthSource."""
        async with self._condition:
            await self._condition.wait_for(lambda: self._devices != tuple(since))

    async def replace(self, *devices: tuple[str, str]) -> None:
        """Publish these instead."""
        async with self._condition:
            self._devices = devices
            self._condition.notify_all()
