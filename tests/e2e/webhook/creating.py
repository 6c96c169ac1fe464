"""Pods that are created all the while, as on a busy cluster, and how that went."""

import asyncio
import contextlib
import itertools
import threading
from collections.abc import Iterator
from pathlib import Path

from hami_kubeletplugin.api.errors import ApiError
from hami_kubeletplugin.kube.call import Call
from hami_kubeletplugin.kube.client import Client
from hami_kubeletplugin.kube.config import load
from tests.e2e.cluster import NAMESPACE
from tests.e2e.webhook.objects import gpu_pod, wanting

AT_ONCE = 4
REAL = 40
"""One in so many is created really, the others on a dry run: those are answered alike, and nobody has to delete them."""
LABELS = {"made": "all-the-while"}


class Creating:
    """Counts what was created.

    Attributes:
        converted: Pods that have a claim.
        unconverted: Pods that slipped through.
        failed: What the others were told.
    """

    def __init__(self, kubeconfig: Path) -> None:
        self._kubeconfig = kubeconfig
        self._stop = threading.Event()
        self.converted, self.unconverted = 0, 0
        self.failed: list[str] = []

    def run(self) -> None:
        """Until stopped."""
        asyncio.run(self._run())

    def more_than(self, number: int) -> bool:
        """Whether so many are converted."""
        return self.converted > number

    def stop(self) -> None:
        """Make `run` return soon."""
        self._stop.set()

    async def _run(self) -> None:
        numbers = itertools.count()
        async with Client(load(self._kubeconfig), timeout=30) as client:
            await asyncio.gather(*(self._create(client, numbers) for _ in range(AT_ONCE)))

    async def _create(self, client: Client, numbers: Iterator[int]) -> None:
        while not self._stop.is_set():
            number = next(numbers)
            # Held, so that the node has nothing to do for them.
            made = gpu_pod(
                f"made-{number}", wanting(gpu=1, gpumem=1000), labels=LABELS, schedulingGates=[{"name": "e2e/held"}]
            )
            query = {"dryRun": "All"} if number % REAL else None
            try:
                answer = await client.ask(
                    Call("create", "pods", f"/api/v1/namespaces/{NAMESPACE}/pods", query=query), made
                )
            except ApiError as error:
                self.failed.append(str(error))
                continue
            if answer["spec"].get("resourceClaims"):
                self.converted += 1
            else:
                self.unconverted += 1
            await asyncio.sleep(0.01)


@contextlib.contextmanager
def creating(kubeconfig: Path) -> Iterator[Creating]:
    """Create pods until the block ends."""
    work = Creating(kubeconfig)
    thread = threading.Thread(target=work.run)
    thread.start()
    try:
        yield work
    finally:
        work.stop()
        thread.join(60)
    assert not thread.is_alive(), "the creation of a pod hangs"
