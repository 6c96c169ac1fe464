"""Who uses what, from all that was found: records, processes, regions, NVML's answers and pods. Pure."""

from collections import defaultdict
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from hami_kubeletplugin.api.names import MIB
from hami_kubeletplugin.claims.allocation import PodRef
from hami_kubeletplugin.claims.prepared import Prepared, Use
from hami_kubeletplugin.gpu.model import Gpu
from hami_kubeletplugin.hamicore.differences import limits as region_limits
from hami_kubeletplugin.hamicore.processes import Owner, UseKey
from hami_kubeletplugin.hamicore.reading import Content, Counted, total
from hami_kubeletplugin.usage.model import Memory, OfContainer, OnGpu
from hami_kubeletplugin.usage.pods import OfPod
from hami_kubeletplugin.usage.sample import OfProcess, Sample

_LAST: Final = (1 << 32, 0, 0, 0)
"""In the order of PCI buses, where the place of a GPU isn't known."""


Files = Mapping[tuple[str, int], UseKey]
"""Whose files the containers of a use have, by its claim's UID and index; not there: they have none."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a look found on this node.

    Attributes:
        at: UNIX time.
        claims: Those that are prepared.
        files: Whose files their containers have.
        regions: By use; None where the container has a region that the library has not made yet. A use whose region can't be
            read is not there.
        unreadable: Why, by use.
        processes: PIDs of the containers that have files of ours, by use.
        visible: Whether processes of containers can be seen at all.
        started: When the first of these did, in ticks since the node's boot: it tells starts of a container apart.
        unseen: Uses of which it is not known which processes they have.
        owners: The pod and container of other processes that NVML told of, by PID.
    """

    at: float
    claims: Sequence[Prepared]
    files: Files
    regions: Mapping[UseKey, Content | None]
    unreadable: Mapping[UseKey, str]
    processes: Mapping[UseKey, frozenset[int]]
    visible: bool
    started: Mapping[UseKey, int]
    unseen: frozenset[UseKey]
    owners: Mapping[int, Owner]


class _Seat(NamedTuple):
    """A container that has a use."""

    pod: PodRef
    name: str


@dataclass(frozen=True, slots=True)
class Joined:
    """Who uses what.

    Attributes:
        containers: The containers.
        vague: UIDs of pods of which more has to be known to tell.
    """

    containers: tuple[OfContainer, ...]
    vague: frozenset[str]


def in_order(use: Use, gpus: Mapping[str, Gpu]) -> list[str]:
    """The GPUs of a use as its container numbers them; those that are gone last."""
    return sorted(use.gpus, key=lambda uuid: (gpus[uuid].bus_order if uuid in gpus else _LAST, uuid))


def is_numbered(use: Use, gpus: Mapping[str, Gpu]) -> bool:
    """Whether it is known which number each GPU has in its container."""
    return len(use.gpus) < 2 or use.gpus.keys() <= gpus.keys()


def joined(found: Found, gpus: Mapping[str, Gpu], sample: Sample | None, pods: Mapping[str, OfPod]) -> Joined:
    """Join it.

    Args:
        found: What was found.
        gpus: The node's GPUs by UUID.
        sample: NVML's answers, if there are any.
        pods: What is known of pods, by UID.
    """
    uses = [
        _Used(claim, index, use, found.files.get((claim.uid, index)), _seats(claim, use, pods))
        for claim in found.claims
        for index, use in enumerate(claim.uses)
    ]
    told = _told(found, uses, sample, pods)
    known = _Known(found, told, gpus, pods)
    vague = {seat.pod.uid for used in uses if len(used.use.containers) > 1 for seat in used.seats}
    return Joined(
        tuple(_container(used, seat, known) for used in uses for seat in used.seats),
        frozenset(vague | {pod for pod, _ in told.unclear}),
    )


@dataclass(frozen=True, slots=True)
class _Used:
    """A use, whose files its containers have, and which of these are to be shown."""

    claim: Prepared
    index: int
    use: Use
    key: UseKey | None
    seats: Sequence[_Seat]


def _seats(claim: Prepared, use: Use, pods: Mapping[str, OfPod]) -> list[_Seat]:
    """The containers that are to be shown for a use: of those that follow each other the one whose turn it is."""
    by_name = {pod.name: pod for pod in claim.pods}
    named = (each.partition("/") for each in use.containers)
    seats = [_Seat(by_name[pod], name) for pod, _, name in named if pod in by_name]
    running = [seat for seat in seats if seat.pod.uid in pods and seat.name in pods[seat.pod.uid].running]
    if not use.one_at_a_time:
        return running if use.enforced_by == "none" and running else seats
    lasting = [seat for seat in seats if seat.pod.uid not in pods or seat.name not in pods[seat.pod.uid].init]
    return (running or lasting or seats)[-1:]


Processes = Mapping[int, OfProcess]
"""By PID."""


@dataclass(frozen=True, slots=True)
class _Told:
    """What NVML told of processes, by container and GPU UUID.

    Attributes:
        uuids: GPUs that tell of any.
        by_files: Of containers that have files of ours.
        by_name: Of others, by UID of their pod and their name.
        unclear: Pods and GPUs of which it isn't known which container uses it.
    """

    uuids: Container[str]
    by_files: Mapping[tuple[UseKey, str], Processes]
    by_name: Mapping[tuple[str, str, str], Processes]
    unclear: frozenset[tuple[str, str]]

    def of(self, used: _Used, seat: _Seat, uuid: str) -> Processes | None:
        """The processes of a container on a GPU; None if that isn't known."""
        if uuid not in self.uuids:
            return None
        if used.key is not None:
            return self.by_files.get((used.key, uuid), {})
        if (seat.pod.uid, uuid) in self.unclear:
            return None
        return self.by_name.get((seat.pod.uid, seat.name, uuid), {})


def _told(found: Found, uses: Iterable[_Used], sample: Sample | None, pods: Mapping[str, OfPod]) -> _Told:
    holders: dict[tuple[str, str], set[str]] = defaultdict(set)
    for used in uses:
        for seat in used.seats if used.key is None else ():
            for uuid in used.use.gpus:
                holders[seat.pod.uid, uuid].add(seat.name)
    keys = {pid: key for key, pids in found.processes.items() for pid in pids}
    by_files: dict[tuple[UseKey, str], dict[int, OfProcess]] = defaultdict(dict)
    by_name: dict[tuple[str, str, str], dict[int, OfProcess]] = defaultdict(dict)
    unclear = set()
    told = sample.processes if sample else {}
    for uuid, pid, process in ((uuid, *each) for uuid, processes in told.items() for each in processes.items()):
        if pid in keys:
            by_files[keys[pid], uuid][pid] = process
        elif owner := found.owners.get(pid):
            name = _name(owner, holders.get((owner.pod, uuid), set()), pods)
            if name:
                by_name[owner.pod, name, uuid][pid] = process
            elif name is None:
                unclear.add((owner.pod, uuid))
    return _Told(told, by_files, by_name, frozenset(unclear))


def _name(owner: Owner, holders: Collection[str], pods: Mapping[str, OfPod]) -> str | None:
    """The container that a process is in, of those that have its GPU; empty: in none of them. None: that can't be told."""
    name = pods[owner.pod].ids.get(owner.container) if owner.pod in pods else None
    if name is not None:
        return name if name in holders else ""
    return next(iter(holders), "") if len(holders) < 2 else None


@dataclass(frozen=True, slots=True)
class _Known:
    """All that a container's answer is made of."""

    found: Found
    told: _Told
    gpus: Mapping[str, Gpu]
    pods: Mapping[str, OfPod]


def _container(used: _Used, seat: _Seat, all_: _Known) -> OfContainer:
    claim, key, found, pods = used.claim, used.key, all_.found, all_.pods
    readable = key is not None and key in found.regions and is_numbered(used.use, all_.gpus)
    content = found.regions[key] if readable and key else None
    processes = {uuid: all_.told.of(used, seat, uuid) for uuid in in_order(used.use, all_.gpus)}
    # A container that nobody counts in its region, as none of its processes has loaded the library, has what NVML says.
    counted = readable and bool((content and content.processes) or not any(map(_memory, processes.values())))
    known = None not in processes.values()
    pids = len({pid for each in processes.values() for pid in each or ()}) if known else None
    in_region = None if key in found.unseen else len(content.processes) if content else 0
    order = pods[seat.pod.uid].order if seat.pod.uid in pods else ()
    kernel = content.last_kernel if content else None
    return OfContainer(
        claim=claim.ref,
        use=used.index,
        namespace=seat.pod.namespace,
        pod=seat.pod.name,
        pod_uid=seat.pod.uid,
        container=seat.name,
        container_index=order.index(seat.name) if seat.name in order else None,
        gpus=_on_gpus(used, processes, content, all_.gpus, counted=counted),
        whole=used.use.enforced_by == "none",
        source="region" if counted else "nvml" if known else None,
        processes=in_region if counted else pids,
        last_kernel=float(kernel) if kernel and kernel <= found.at + 1 else None,
    )


def _on_gpus(
    used: _Used,
    processes: Mapping[str, Processes | None],
    content: Content | None,
    gpus: Mapping[str, Gpu],
    *,
    counted: bool,
) -> tuple[OnGpu, ...]:
    """Of the GPUs that it has through this claim.

    Args:
        used: The use.
        processes: Of the container, as NVML has them, by UUID in the container's order.
        content: Of its region, if it has one.
        gpus: The node's GPUs.
        counted: Whether what the region says counts.
    """
    limits = {uuid: used.use.gpus[uuid] for uuid in processes}
    says = region_limits(content, limits) if content else (None,) * len(limits)
    devices = {share.uuid: share.device for share in used.claim.shares if share.use == used.index}
    on = []
    for index, (uuid, limit) in enumerate(limits.items()):
        most = max(gpus[uuid].memory_bytes if uuid in gpus else 0, limit.memory_mib * MIB)
        core = total(content.processes if content else (), index, most)
        busy = _busy(processes[uuid])
        if uuid in devices:
            on.append(
                OnGpu(
                    uuid=uuid,
                    device=devices[uuid],
                    limit=limit,
                    region=says[index],
                    used=_counted(core) if counted else _used(processes[uuid]),
                    utilization=(core.busy or busy or 0) if counted else busy,
                    index=index,
                )
            )
    return tuple(on)


def _counted(of: Counted) -> Memory:
    return Memory(of.total, of.context, of.module, of.buffer)


def _memory(processes: Processes | None) -> int:
    return sum(each.memory or 0 for each in (processes or {}).values())


def _used(processes: Processes | None) -> Memory | None:
    if processes is None or any(each.memory is None for each in processes.values()):
        return None
    return Memory(_memory(processes))


def _busy(processes: Processes | None) -> int | None:
    if processes is None or any(each.busy is None for each in processes.values()):
        return None
    return min(sum(each.busy or 0 for each in processes.values()), 100)
