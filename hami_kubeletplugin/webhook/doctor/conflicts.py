"""Who else gives out the same GPUs, and quotas that count nothing any more. Pure."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from hami_kubeletplugin.api import fields, names
from hami_kubeletplugin.findings import Finding, Level
from hami_kubeletplugin.webhook.doctor.cluster import Node, Slice, name_of
from hami_kubeletplugin.webhook.doctor.installed import few

NVIDIA: Final = "gpu.nvidia.com"
"""NVIDIA's DRA driver for whole GPUs and MIG."""
Json = Mapping[str, Any]
_conflict = partial(Finding, check="conflicts")
_IMAGES: Final = {
    "k8s-device-plugin": "NVIDIA's device plugin",
    "gcp-gpu-device-plugin": "Google's device plugin for NVIDIA's GPUs",
    "projecthami/hami": "HAMi's device plugin",
    "volcano-vgpu-device-plugin": "Volcano's device plugin for shares of GPUs",
}
_BESIDE: Final = {"gpu-feature-discovery", "config-manager", "mps-control-daemon"}
"""Programs of NVIDIA's image that give nothing out; the GPU operator runs the first without its device plugin, too."""
_WHY: Final = "what it gives out the scheduler doesn't see in claims: a GPU may be given away twice"
_OPERATOR: Final = "helm upgrade gpu-operator nvidia/gpu-operator -n gpu-operator --reuse-values"
_KEEP_AWAY: Final = (
    "docs/with-other-controllers.md and docs/migrating-from-hami.md: both live in one cluster on different nodes"
)


def plugins(daemon_sets: Sequence[Json]) -> Iterator[Finding]:
    """DaemonSets of device plugins that run somewhere."""
    for each in daemon_sets:
        containers = fields.mappings(fields.at(each, "spec", "template", "spec", "containers"))
        images = [str(one.get("image")) for _, one in containers if _program(one) not in _BESIDE]
        what = next((told for part, told in _IMAGES.items() if any(part in image for image in images)), None)
        scheduled = fields.at(each, "status", "desiredNumberScheduled")
        if what and scheduled:
            yield _conflict(
                level=Level.hint,
                what=f"{what} runs on {scheduled} nodes: DaemonSet {name_of(each)}",
                why=f"on a node of ours it would give out the same GPUs; {_KEEP_AWAY}",
                mend=f"kubectl -n {fields.at(each, 'metadata', 'namespace')} get pods -o wide",
            )


def _program(container: Json) -> str:
    command = container.get("command")
    return str(command[0]).rpartition("/")[2] if isinstance(command, list) and command else ""


def same_nodes(nodes: Mapping[str, Node], ours: Collection[str]) -> Iterator[Finding]:
    """Nodes where a device plugin serves GPUs beside the daemon.

    Args:
        nodes: All.
        ours: Names of those with a daemon or a slice of ours.
    """
    both = [node for node in nodes.values() if node.plugin and node.name in ours]
    if both:
        served = sorted({resource for node in both for resource in node.plugin})
        yield _conflict(
            level=Level.error,
            what=f"a device plugin serves {few(served)} on {few(node.name for node in both)}, where hami-kubeletplugin is, too",
            why=f"{_WHY}; so the daemon publishes none of these GPUs while that lasts",
            mend=f"{_OPERATOR} --set devicePlugin.enabled=false",
        )


def other_driver(slices: Iterable[Slice], driver: str) -> Iterator[Finding]:
    """Nodes where NVIDIA's DRA driver publishes GPUs beside ours."""
    nodes: dict[str, set[str]] = {driver: set(), NVIDIA: set()}
    for each in slices:
        if each.driver in nodes and each.devices:
            nodes[each.driver].add(each.node)
    if driver != NVIDIA and (both := nodes[driver] & nodes[NVIDIA]):
        yield _conflict(
            level=Level.error,
            what=f"{few(both)}: {NVIDIA} publishes GPUs there, and so does {driver}",
            why="neither knows what the other gave away, so a limit is kept and the memory is not there",
            mend=f"kubectl label node {min(both)} nvidia.com/gpu.deploy.dra-driver=false --overwrite",
        )


def operators(gpu_clusters: Sequence[Json], cluster_policies: Sequence[Json]) -> Iterator[Finding]:
    """What the GPU operator is told to install."""
    for each in gpu_clusters:
        yield _conflict(
            level=Level.error,
            what=f"GPUCluster {name_of(each)} has the GPU operator install NVIDIA's DRA driver",
            why="it gives out the same GPUs, by gpu.nvidia.com, and leaves the toolkit out that our containers need",
            mend=f"{_OPERATOR} --set gpuCluster.deployCR=false --set devicePlugin.enabled=false",
        )
    for each in cluster_policies:
        if fields.at(each, "spec", "devicePlugin", "enabled") is not False:
            yield _conflict(
                level=Level.warning,
                what=f"ClusterPolicy {name_of(each)} has the GPU operator install its device plugin",
                why=f"{_WHY}, where it is on nodes of ours",
                mend=f"{_OPERATOR} --set devicePlugin.enabled=false",
            )


def quotas(found: Iterable[Json], driver_class: str) -> Iterator[Finding]:
    """ResourceQuotas that name resources which no converted pod names."""
    useless = []
    for each in found:
        named = [str(name) for name in fields.mapping(fields.at(each, "spec", "hard"))]
        ours = [name for name in named if name.partition(".")[2].startswith((names.GPU_COUNT, names.GPU_PRIORITY))]
        claims = [
            name for name in named if "deviceclass.resource.k8s.io" in name or "resourceclaims.resource.k8s.io" in name
        ]
        if ours and not claims:
            useless.append(name_of(each))
    if useless:
        yield Finding(
            check="quotas",
            level=Level.warning,
            what=f"ResourceQuotas {few(useless)} name nvidia.com/gpu and the like only",
            why="converted pods name no such resource, so these quotas limit nothing: docs/migrating-from-hami.md, Quotas",
            mend=f"kubectl -n {useless[0].partition('/')[0]} create quota gpus "
            f"--hard={driver_class}.deviceclass.resource.k8s.io/devices=8",
        )
