"""Pods that come and go all the while, as on a busy node."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

from tests.e2e.cluster import NAMESPACE, Cluster


class Coming:
    """Makes a few pods, waits until they run, deletes them and goes on.

    Args:
        cluster: Where.
        make: A pod by its name and its number among those that are made at once.
        at_once: How many.

    Attributes:
        made: How many ran.
        failed: What the first that failed was told; nothing is made after it.
    """

    def __init__(self, cluster: Cluster, make: Callable[[str, int], dict[str, Any]], at_once: int) -> None:
        self._cluster, self._make, self._at_once = cluster, make, at_once
        self._stop = threading.Event()
        self.made = 0
        self.failed: list[str] = []

    def run(self) -> None:
        """Until stopped."""
        try:
            for number in count():
                if self._stop.is_set():
                    return
                names = [f"comes-{number}-{each}" for each in range(self._at_once)]
                self._cluster.apply(*(self._make(name, each) for each, name in enumerate(names)))
                self._cluster.running(*names)
                self._cluster.kubectl("delete", "pod", *names, "-n", NAMESPACE, "--wait=false")
                self.made += self._at_once
        except AssertionError as error:
            self.failed.append(str(error))

    def more_than(self, number: int) -> bool:
        """Whether so many have come, or something failed."""
        return self.made > number or bool(self.failed)

    def stop(self) -> None:
        """Make `run` return."""
        self._stop.set()


@contextlib.contextmanager
def coming(cluster: Cluster, make: Callable[[str, int], dict[str, Any]], at_once: int) -> Iterator[Coming]:
    """They come and go until the block ends."""
    work = Coming(cluster, make, at_once)
    thread = threading.Thread(target=work.run)
    thread.start()
    try:
        yield work
    finally:
        work.stop()
        thread.join(90)
    assert not thread.is_alive(), "making a pod hangs"
