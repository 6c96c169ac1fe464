"""The node daemon: how long the kubelet waits for it, and what it costs at rest. The caller stands for the kubelet."""

import asyncio
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path

from bench.daemon import Daemon, running
from bench.figures import Figure, Watch, say
from bench.hook import renewals
from bench.objects import NODES, Namespace, namespace
from bench.process import Places
from bench.versus import CALLERS, versus
from hami_kubeletplugin import files
from hami_kubeletplugin.api.claim import ClaimRef
from hami_kubeletplugin.fake.kubelet import Plugin
from hami_kubeletplugin.kube.config import from_kubeconfig
from hami_kubeletplugin.kube.resource_api import KubeClient

SINGLES = 300
"""Claims prepared one after the other."""
STARTS = 7
IDLE_SECONDS = 20.0
GPUS, SHARES = 100, 10


async def measure(kubeconfig: Path, places: Places) -> list[Figure]:
    """Everything, in order."""
    async with KubeClient(from_kubeconfig(kubeconfig), timeout=60) as api, namespace(api) as objects:
        say("making pods and claims")
        singles = await objects.claims(NODES[0], [number % 8 for number in range(SINGLES)])
        pods = [await objects.pod_claims(NODES[0], [number % 8 for number in range(16)]) for _ in range(4)]
        return [
            *await references(api, places, singles),
            *await container_starts(places),
            *await regions(kubeconfig, places, api, objects, singles),
            *await full_node(kubeconfig, places, api, objects, singles),
            # Not first: a fresh API server is busy with itself for a minute, and who needs more CPU time waits longer for it.
            *await versus(kubeconfig, places, api, singles, pods),
            *await usual_node(kubeconfig, places, api),
        ]


async def references(api: KubeClient, places: Places, claims: Sequence[ClaimRef]) -> list[Figure]:
    """What this machine needs for the parts that we can't make faster."""
    say("references")
    get, write = Watch(), Watch()
    for ref in claims:
        async with get.lap():
            await api.get_claim(ref.namespace, ref.name)
    for number in range(len(claims)):
        async with write.lap():
            files.write(places.disk / f"record-{number}", bytes(1000), durable=True)
    return [
        Figure("GET of one claim, same client", "ms", get.laps),
        Figure("one record written and synced on this disk", "ms", write.laps),
    ]


async def container_starts(places: Places) -> list[Figure]:
    """What each start of a container waits for; the daemon has no part in it."""
    say("the hook")
    folders = [places.memory / "regions", places.disk / "regions"]
    hook, hook_on_disk, nothing = await asyncio.to_thread(renewals, folders, SINGLES)
    return [
        Figure("a process that does nothing", "ms", nothing),
        Figure("the hook at a container's start", "ms", hook, 2.5),
        Figure("    with the region on a disk", "ms", hook_on_disk),
    ]


async def usual_node(kubeconfig: Path, places: Places, api: KubeClient) -> list[Figure]:
    """8 GPUs: starts, and the process at rest."""
    say(f"8 GPUs: {STARTS} starts")
    starts = []
    for _ in range(STARTS - 1):
        async with running(kubeconfig, places, api, NODES[0], "a100x8") as daemon:
            starts.append(daemon)
    async with running(kubeconfig, places, api, NODES[0], "a100x8") as daemon:
        starts.append(daemon)
        say(f"8 GPUs: at rest for {IDLE_SECONDS:g} s")
        idle = await daemon.idle_cpu(IDLE_SECONDS)
    return [
        Figure("start to registered, 8 GPUs", "ms", [each.registered for each in starts], 1100),
        Figure("start to slices visible, 8 GPUs", "ms", [each.published for each in starts], 1100),
        Figure("CPU at rest", "%", [idle], 0.3),
    ]


async def regions(
    kubeconfig: Path, places: Places, api: KubeClient, objects: Namespace, singles: Sequence[ClaimRef]
) -> list[Figure]:
    """What a region costs a prepare. Two daemons take turns; one has no hook, so its limits are in variables only."""
    say("8 GPUs: with and without regions")
    others = await objects.claims(NODES[1], [number % 8 for number in range(len(singles))])
    async with (
        running(kubeconfig, places, api, NODES[0], "a100x8") as region,
        running(kubeconfig, places, api, NODES[1], "a100x8", region_hook=places.disk / "none") as variables,
    ):
        made, bare, ignored = Watch(), Watch(), Watch()
        for one, other in zip(singles, others, strict=True):
            await there_and_back(region.plugin, one, made, ignored)
            await there_and_back(variables.plugin, other, bare, ignored)
    difference = statistics.median(made.laps) - statistics.median(bare.laps)
    return [
        Figure("prepare one claim, limits in a region", "ms", made.laps),
        Figure("    meanwhile in variables only", "ms", bare.laps),
        Figure("    difference of the medians", "ms", [difference], 1),
    ]


async def full_node(
    kubeconfig: Path, places: Places, api: KubeClient, objects: Namespace, singles: Sequence[ClaimRef]
) -> list[Figure]:
    """100 GPUs with 10 shares each: what the prepared claims cost the next one.

    Two daemons take turns, one with nothing prepared: whatever else the machine does meets both.
    """
    say(f"{GPUS} GPUs x {SHARES} shares: making pods and claims")
    standing = await objects.claims(NODES[1], [number // SHARES for number in range(GPUS * SHARES)])
    others = await objects.claims(NODES[1], [number % 8 for number in range(len(singles))])
    simulate = f"a100x{GPUS}"
    async with (
        running(kubeconfig, places, api, NODES[0], simulate) as empty,
        running(kubeconfig, places, api, NODES[1], simulate) as full,
    ):
        results = [
            Figure(f"start to slices visible, {GPUS} GPUs", "ms", [empty.published, full.published]),
            Figure(f"slices of {full.devices} GPUs", "", [full.slices]),
        ]
        say(f"{GPUS} GPUs: {len(standing)} claims prepared")
        await at_once(full.plugin, standing)
        prepare, unprepare, bare_prepare, bare_unprepare = Watch(), Watch(), Watch(), Watch()
        for one, other in zip(singles, others, strict=True):
            await there_and_back(empty.plugin, one, bare_prepare, bare_unprepare)
            await there_and_back(full.plugin, other, prepare, unprepare)
        for verb, watch, bare in (("prepare", prepare, bare_prepare), ("unprepare", unprepare, bare_unprepare)):
            results.append(Figure(f"{verb} one claim, {len(standing)} prepared", "ms", watch.laps))
            results.append(Figure("    meanwhile with none prepared", "ms", bare.laps))
            results.append(Figure("    ratio", "times", [results[-2].p50 / results[-1].p50], 1.05))
        results += await rest(full)
    return results


async def rest(daemon: Daemon) -> list[Figure]:
    """A full node at rest."""
    say(f"{GPUS} GPUs: at rest for {IDLE_SECONDS:g} s")
    idle = await daemon.idle_cpu(IDLE_SECONDS)
    return [
        Figure(f"memory (PSS), {GPUS * SHARES} prepared", "MB", [daemon.process.pss()], 65),
        Figure(f"CPU at rest, {GPUS * SHARES} prepared", "%", [idle], 0.3),
    ]


async def there_and_back(plugin: Plugin, ref: ClaimRef, prepare: Watch, unprepare: Watch) -> None:
    """Prepare and unprepare one claim."""
    async with prepare.lap():
        await prepared(plugin, [ref])
    async with unprepare.lap():
        await unprepared(plugin, [ref])


async def at_once(plugin: Plugin, claims: Sequence[ClaimRef]) -> None:
    """Prepare all claims, one per call, by as many callers as versus has."""
    queue = iter(claims)

    async def caller() -> None:
        for ref in queue:
            await prepared(plugin, [ref])

    await asyncio.gather(*(caller() for _ in range(CALLERS)))


async def prepared(plugin: Plugin, refs: Sequence[ClaimRef]) -> None:
    """Prepare in one call; an error ends the bench, since times would mean nothing then."""
    check((await plugin.prepare(refs)).values())


async def unprepared(plugin: Plugin, refs: Sequence[ClaimRef]) -> None:
    """As `prepared`."""
    check((await plugin.unprepare(refs)).values())


def check(answers: Iterable[object]) -> None:
    """Raise the first error among answers."""
    error = next((answer for answer in answers if isinstance(answer, str)), None)
    if error is not None:
        raise RuntimeError(error)
