"""Is it installed, does it run, and on which nodes: the daemon's pods, and what they have published. Pure."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from hami_kubeletplugin import __version__
from hami_kubeletplugin.api import fields
from hami_kubeletplugin.findings import Finding, Level
from hami_kubeletplugin.webhook.doctor.cluster import Node, Slice, name_of

INSTALL: Final = "helm install hami-dra charts/hami-dra -n hami-system --create-namespace"
_FEW: Final = 5
_RESTARTS: Final = 3
"""From so many on a pod is told of."""
Json = Mapping[str, Any]
_daemon = partial(Finding, check="daemon")
_slices = partial(Finding, check="slices")


def few(names: Iterable[str]) -> str:
    """Some names, and how many more there are."""
    found = sorted(names)
    more = f" and {len(found) - _FEW} more" if len(found) > _FEW else ""
    return ", ".join(found[:_FEW]) + more


def daemons(found: Sequence[tuple[Json, Sequence[Json]]], *, publishes: bool) -> Iterator[Finding]:
    """How the daemon's pods are.

    Args:
        found: DaemonSets, each with its pods.
        publishes: Whether there are slices of the driver.
    """
    if not found:
        yield _none(publishes=publishes)
    for daemon_set, pods in found:
        yield from workload(daemon_set, pods, _daemon, "no GPU pod starts on such a node, and none ends")


def _none(*, publishes: bool) -> Finding:
    if publishes:
        return _daemon(
            level=Level.warning,
            what="no DaemonSet of hami-kubeletplugin was found, though there are slices of its driver",
            why="it runs outside of the cluster, or is gone and its slices stay: pods that get such a GPU don't start",
            mend=INSTALL,
        )
    return _daemon(
        level=Level.error,
        what="no DaemonSet of hami-kubeletplugin was found",
        why="nothing publishes GPUs: pods that ask for one wait for ever",
        mend=INSTALL,
    )


def workload(obj: Json, pods: Sequence[Json], finding: partial[Finding], why: str) -> Iterator[Finding]:
    """How the pods of a DaemonSet or Deployment are.

    Args:
        obj: The workload.
        pods: Its pods.
        finding: Of which check.
        why: What it means that a pod isn't ready.
    """
    namespace = fields.at(obj, "metadata", "namespace")
    ready = [pod for pod in pods if _is_ready(pod)]
    wanted = fields.at(obj, "status", "desiredNumberScheduled")
    wanted = wanted if isinstance(wanted, int) else _replicas(obj)
    kind = "DaemonSet" if "desiredNumberScheduled" in fields.mapping(obj.get("status")) else "Deployment"
    where = f"{kind} {name_of(obj)}, {few(images(obj))}"
    if len(ready) >= wanted > 0:
        yield finding(level=Level.ok, what=f"{where}: {len(ready)} of {wanted} pods are ready")
    elif wanted == 0:
        yield finding(
            level=Level.error if kind == "Deployment" else Level.warning,
            what=f"{where}: no pod is wanted",
            why=why,
            mend=f"kubectl -n {namespace} get {kind.lower()} {fields.at(obj, 'metadata', 'name')} -o yaml",
        )
    else:
        lacking = [pod for pod in pods if not _is_ready(pod)]
        reasons = [
            f"{fields.at(pod, 'metadata', 'name')} on {_node_of(pod) or 'no node'}: {_reason(pod)}" for pod in lacking
        ]
        first = lacking[0] if lacking else None
        yield finding(
            level=Level.error,
            what=f"{where}: {len(ready)} of {wanted} pods are ready; {few(reasons) or 'the others are not there'}",
            why=why,
            mend=f"kubectl -n {namespace} describe pod {fields.at(first, 'metadata', 'name')}" if first else "",
        )
    yield from _restarting(pods, finding)


def _restarting(pods: Iterable[Json], finding: partial[Finding]) -> Iterator[Finding]:
    for pod in pods:
        for _, status in fields.mappings(fields.at(pod, "status", "containerStatuses")):
            count, name = status.get("restartCount"), fields.at(pod, "metadata", "name")
            if isinstance(count, int) and count >= _RESTARTS:
                ended = fields.mapping(fields.at(status, "lastState", "terminated"))
                last = f", the last time {ended.get('reason')} (exit code {ended.get('exitCode')})" if ended else ""
                yield finding(
                    level=Level.warning,
                    what=f"pod {name_of(pod)} on {_node_of(pod)} was restarted {count} times{last}",
                    why="each time, what waits for it waits longer; its last words say why",
                    mend=f"kubectl -n {fields.at(pod, 'metadata', 'namespace')} logs {name} --previous",
                )


def versions(workloads: Sequence[Json]) -> Iterator[Finding]:
    """Whether daemon, webhook and this program are of one version.

    Args:
        workloads: All of them.
    """
    found = {image for each in workloads for image in images(each)}
    tags = {
        image.partition("@")[0].rpartition(":")[2].removeprefix("v")
        for image in found
        if ":" in image and "@" not in image
    }
    if len(found) > 1:
        yield Finding(
            check="versions",
            level=Level.warning,
            what=f"daemon and webhook are of different images: {few(found)}",
            why="only those of one version are tried together",
            mend="helm upgrade hami-dra charts/hami-dra -n hami-system",
        )
    elif found and tags and tags != {__version__}:
        yield Finding(
            check="versions",
            level=Level.hint,
            what=f"{few(found)} runs here and this is {__version__}: the cluster is held against the manifests of {__version__}",
        )
    elif found:
        yield Finding(check="versions", level=Level.ok, what=f"daemon and webhook are of one image: {few(found)}")


def images(workload: Json) -> set[str]:
    """Of a workload's containers that are ours."""
    containers = fields.mappings(fields.at(workload, "spec", "template", "spec", "containers"))
    return {str(container.get("image")) for _, container in containers}


def nodes_without(nodes: Mapping[str, Node], pods: Iterable[Json]) -> Iterator[Finding]:
    """Nodes that have GPUs, as others say, and no daemon."""
    served = {_node_of(pod) for pod in pods}
    if lacking := [node.name for node in nodes.values() if node.gpus and node.name not in served]:
        yield _daemon(
            level=Level.warning,
            what=f"no daemon is on {few(lacking)}, which have NVIDIA's GPUs by their labels",
            why="nobody gives out their GPUs through DRA",
            mend="kubectl -n hami-system get daemonset hami-kubeletplugin -o jsonpath='{.spec.template.spec.nodeSelector}'",
        )


def published(slices: Iterable[Slice], driver: str, nodes: Collection[str] | None) -> Iterator[Finding]:
    """What the driver has published.

    Args:
        slices: Of all drivers.
        driver: Ours.
        nodes: Names of all nodes; None: they may not be read.
    """
    ours = [each for each in slices if each.driver == driver]
    gpus = sum(each.devices for each in ours)
    if not gpus:
        yield _slices(
            level=Level.error,
            what=f"no GPU of driver {driver} is published",
            why="pods that ask for one wait for ever",
            mend="hami-kubeletplugin doctor   # on a node with GPUs, in the daemon's pod",
        )
        return
    yield _slices(level=Level.ok, what=f"{gpus} GPUs on {len({each.node for each in ours})} nodes are published")
    if nodes is not None and (gone := [each for each in ours if each.node and each.node not in nodes]):
        yield _slices(
            level=Level.warning,
            what=f"slices of nodes that are gone: {few(each.name for each in gone)}",
            why="the scheduler counts on GPUs that are nowhere",
            mend=f"kubectl delete resourceslice {' '.join(sorted(each.name for each in gone)[:_FEW])}",
        )
    yield from _incomplete(ours)
    yield from _tainted(ours)


def _incomplete(ours: Iterable[Slice]) -> Iterator[Finding]:
    pools: dict[str, list[Slice]] = defaultdict(list)
    for each in ours:
        pools[each.pool[0]].append(each)
    for pool, parts in sorted(pools.items()):
        newest = max(part.pool[1] for part in parts)
        current = [part for part in parts if part.pool[1] == newest]
        if len(current) != current[0].pool[2]:
            yield _slices(
                level=Level.error,
                what=f"pool {pool} is incomplete: {len(current)} of {current[0].pool[2]} slices of generation {newest}",
                why="the scheduler gives out nothing of it",
                mend=f"kubectl -n hami-system get pods --field-selector spec.nodeName={pool}   # look at the daemon's log",
            )


def _tainted(ours: Iterable[Slice]) -> Iterator[Finding]:
    by_taint: dict[str, list[str]] = defaultdict(list)
    for each in ours:
        for device, taints in each.taints.items():
            for taint in taints:
                by_taint[taint].append(f"{each.node}/{device}")
    for taint, devices in sorted(by_taint.items()):
        yield _slices(
            level=Level.warning,
            what=f"{len(devices)} GPUs take nothing new because of {taint}: {few(devices)}",
            why="something is wrong with them, or somebody keeps them free: docs/operating.md, GPUs that are not well",
            mend="kubectl get events -A --field-selector reason=GpuCondition",
        )


def _is_ready(pod: Json) -> bool:
    conditions = fields.mappings(fields.at(pod, "status", "conditions"))
    return any(each.get("type") == "Ready" and each.get("status") == "True" for _, each in conditions)


def _reason(pod: Json) -> str:
    for _, status in fields.mappings(fields.at(pod, "status", "containerStatuses")):
        if waiting := fields.mapping(fields.at(status, "state", "waiting")):
            return str(waiting.get("reason"))
    for _, condition in fields.mappings(fields.at(pod, "status", "conditions")):
        if condition.get("status") == "False" and condition.get("reason"):
            return str(condition["reason"])
    return str(fields.at(pod, "status", "phase") or "not started")


def _node_of(pod: Json) -> str:
    return str(fields.at(pod, "spec", "nodeName") or "")


def _replicas(obj: Json) -> int:
    wanted = fields.at(obj, "spec", "replicas")
    return wanted if isinstance(wanted, int) else 1
