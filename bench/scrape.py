"""A scrape of the node daemon: how long Prometheus waits for it, and what it costs, with containers that run.

Each container is a process of its own, with the region of its claim mounted as a container has it. The reference does the least
that any must who shows what is in them: it reads the same regions and sends the same bytes, and looks at no process or claim.
"""

import asyncio
import contextlib
import socket
import statistics
import sys
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Final

from bench.daemon import running
from bench.figures import Figure, say
from bench.objects import NODES, namespace
from bench.prepare import at_once
from bench.process import Places, Process, program, until
from hami_kubeletplugin.api.claim import ClaimRef
from hami_kubeletplugin.hamicore.claim_dir import ClaimDir
from hami_kubeletplugin.kube.config import from_kubeconfig
from hami_kubeletplugin.kube.resource_api import KubeClient

CROWDS: Final = {80: 20.0, 100: 100.0}
"""Containers on 8 GPUs, and milliseconds of a scrape."""
SCRAPES: Final = 20
_PAUSE: Final = 2.0
"""Seconds between them: who asks sooner gets the page before, or ten times as soon as a look takes what that found."""
_INTERVAL: Final = 15.0
"""Seconds between two of Prometheus'."""
_REST: Final = 10.0
_MOUNTS: Final = 2
"""Of such a process: its root, and the region."""


async def measure(kubeconfig: Path, places: Places) -> list[Figure]:
    """For each number of containers."""
    found = []
    async with KubeClient(from_kubeconfig(kubeconfig), timeout=60) as api, namespace(api) as objects:
        for node, (count, aim) in zip(NODES, CROWDS.items(), strict=True):
            say(f"{count} containers: making pods and claims")
            claims = await objects.claims(node, [number % 8 for number in range(count)])
            found += await _of(kubeconfig, places, api, node, claims, aim)
    return found


async def _of(  # noqa: PLR0917
    kubeconfig: Path, places: Places, api: KubeClient, node: str, claims: Sequence[ClaimRef], aim: float
) -> list[Figure]:
    count = len(claims)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ("--metrics-address", f"127.0.0.1:{port}")
    async with running(kubeconfig, places, api, node, "a100x8", options=options) as daemon:
        await at_once(daemon.plugin, claims)
        regions = [ClaimDir(places.disk / node / "vgpu", ref.uid).region("use-0") for ref in claims]
        page = await _settled(port, count)
        root = places.memory / "container"
        root.mkdir(exist_ok=True)
        containers = program(sys.executable, "-m", "bench.containers", root, *regions)
        async with containers as forks, _least(regions, places, page) as (least, process):
            await until(lambda: _all_in(forks, count), f"{count} processes in containers")
            say(f"{count} containers: {SCRAPES} scrapes of ours and of the reference, in turns")
            idle = await daemon.idle_cpu(_REST)
            ours, theirs, cpu, least_cpu = await _in_turns(daemon.process, port, process, least)
    name = f"scrape, 8 GPUs, {count} containers"
    return [
        Figure(name, "ms", ours, aim),
        Figure("    the reference meanwhile", "ms", theirs),
        Figure("    ratio of the medians", "times", [statistics.median(ours) / statistics.median(theirs)]),
        Figure("    CPU of one", "ms", [cpu]),
        Figure("    CPU of one of the reference's", "ms", [least_cpu]),
        Figure(f"    CPU of one each {_INTERVAL:g} s", "%", [cpu / _INTERVAL / 10], 1),
        Figure("    CPU at rest meanwhile", "%", [idle]),
        Figure("    the page", "kB", [len(page) / 1000]),
    ]


async def _in_turns(
    ours: Process, port: int, theirs: Process, least: int
) -> tuple[list[float], list[float], float, float]:
    """Milliseconds of each scrape, and of CPU for one: what both need at rest is not in it, as they take turns."""
    taken: dict[int, list[float]] = {port: [], least: []}
    cpu = {port: 0.0, least: 0.0}
    for _ in range(SCRAPES):
        await asyncio.sleep(_PAUSE)
        for process, each in ((ours, port), (theirs, least)):
            before, started = process.cpu_seconds(), time.perf_counter()
            await _scraped(each)
            taken[each].append((time.perf_counter() - started) * 1000)
            await asyncio.sleep(0.05)  # what it clears up
            cpu[each] += process.cpu_seconds() - before
    return taken[port], taken[least], cpu[port] * 1000 / SCRAPES, cpu[least] * 1000 / SCRAPES


async def _scraped(port: int) -> bytes:
    """A page, over a connection of its own."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: bench\r\n\r\n")
        answer = await reader.read(-1)
    finally:
        writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    if b" 200 " not in head.partition(b"\r\n")[0]:
        raise RuntimeError(f"a scrape was answered with {head[:200]!r}")
    return body


async def _all_in(forks: Process, count: int) -> bool:
    """Whether each of them has left the host's mounts."""
    return await asyncio.to_thread(_mounts_of_children, forks.pid) == [_MOUNTS] * count


def _mounts_of_children(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [Path(f"/proc/{child}/mountinfo").read_text().count("\n") for child in children]


async def _settled(port: int, count: int) -> bytes:
    """The first page with all containers."""
    page = b""

    async def all_there() -> bool:
        nonlocal page
        page = await _scraped(port)
        return page.count(b"\nhami_vgpu_memory_used_bytes{") == count

    await until(all_there, f"{count} containers on the page")
    return page


@contextlib.asynccontextmanager
async def _least(regions: Sequence[Path], places: Places, page: bytes) -> AsyncIterator[tuple[int, Process]]:
    """The reference: its port, and its process."""
    listed, sent = places.memory / "regions", places.memory / "page"
    listed.write_text("\n".join(map(str, regions)))
    sent.write_bytes(page)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    async with program(sys.executable, "-c", _LEAST, str(port), listed, sent) as process:

        async def answers() -> bool:
            try:
                return bool(await _scraped(port))
            except OSError:
                return False

        await until(answers, "the reference")
        yield port, process


_LEAST: Final = """
import os, socket, sys
listed = open(sys.argv[2]).read().split()
page = open(sys.argv[3], "rb").read()
server = socket.create_server(("127.0.0.1", int(sys.argv[1])))
while True:
    client, _ = server.accept()
    client.recv(4096)
    for path in listed:
        region = os.open(path, os.O_RDONLY)
        while os.read(region, 1 << 20):
            pass
        os.close(region)
    client.sendall(b"HTTP/1.1 200 OK\\r\\n\\r\\n" + page)
    client.close()
"""
