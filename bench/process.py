"""Our programs as processes, and what the kernel says about them."""

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

PATIENCE: Final = 30.0
"""Seconds for a process to become ready, and to end."""
_BUILT: Final = Path(__file__).parents[1] / "tests/build"
HAMI_CORE: Final = _BUILT / "libvgpu.so"
"""The fake of the tests, as whose release the driver knows how regions are laid out."""
REGION_HOOK: Final = _BUILT / "hami-region-hook"
"""What the image ships. `hack/native` builds both."""
REFERENCE: Final = Path(__file__).parent / "reference/build/dra-reference"
"""The driver that ours is measured against. `hack/reference` builds it."""
_TICKS: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Places:
    """Where files are kept.

    Attributes:
        disk: On a real disk, a folder for each node: records, HAMi-core's files, caches.
        memory: On a tmpfs, as /run is, too: CDI specs, the kubelet's registry.
    """

    disk: Path
    memory: Path


@dataclass(frozen=True, slots=True)
class Process:
    """One that runs."""

    pid: int

    def pss(self) -> float:
        """MB of memory, shared pages in proportion."""
        return self._field("smaps_rollup", "Pss:")

    def rss(self) -> float:
        """MB of memory, shared pages as if they were its own."""
        return self._field("smaps_rollup", "Rss:")

    def peak(self) -> float:
        """MB, the most that `rss` ever was."""
        return self._field("status", "VmHWM:")

    def cpu_seconds(self) -> float:
        """CPU time since its start, user and system."""
        after_name = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(after_name[11]) + int(after_name[12])) / _TICKS

    def kill(self) -> None:
        """End it as a crash does."""
        os.kill(self.pid, signal.SIGKILL)

    async def idle_cpu(self, seconds: float) -> float:
        """Percent of one CPU in the next seconds."""
        before, started = self.cpu_seconds(), time.monotonic()
        await asyncio.sleep(seconds)
        return 100 * (self.cpu_seconds() - before) / (time.monotonic() - started)

    @contextlib.contextmanager
    def on_one_core(self) -> Iterator[bool]:
        """Keep it on one core and ourselves off that one; False, and nothing done, where there is only one."""
        *others, last = sorted(os.sched_getaffinity(0))
        if not others:
            yield False
            return
        _pin(self.pid, {last})
        _pin(os.getpid(), others)
        try:
            yield True
        finally:
            _pin(self.pid, {*others, last})
            _pin(os.getpid(), {*others, last})

    def _field(self, file: str, field: str) -> float:
        for line in Path(f"/proc/{self.pid}/{file}").read_text().splitlines():
            if line.startswith(field):
                return int(line.split()[1]) * 1024 / 1e6
        raise LookupError(f"{file} has no {field}")


@contextlib.asynccontextmanager
async def program(
    name: str | Path, *options: str | Path, log: IO[bytes] | None = None, mark: str = ""
) -> AsyncIterator[Process]:
    """Run a program until the end of the block.

    Args:
        name: Of one of ours, or the path of another.
        options: Its arguments.
        log: Where its log goes; default: our stderr.
        mark: Folder of the cluster whose node it is a part of, for hack/cluster/down.
    """
    process = await asyncio.create_subprocess_exec(
        Path(sys.executable).parent / name,
        *options,
        stdin=asyncio.subprocess.DEVNULL,
        stderr=log,
        env={**os.environ, "CLUSTER_MARK": mark},
    )
    try:
        yield Process(process.pid)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(process.wait(), PATIENCE)
        except TimeoutError:
            process.kill()
            raise


async def until(probe: Callable[[], Awaitable[bool]], what: str) -> None:
    """Ask again and again, until it is so.

    Raises:
        TimeoutError: It does not come; the message has `what`.
    """
    end = time.monotonic() + PATIENCE
    while not await probe():
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not in {PATIENCE:g} s")
        await asyncio.sleep(0.05)


def _pin(pid: int, cores: Collection[int]) -> None:
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            os.sched_setaffinity(int(thread.name), cores)
