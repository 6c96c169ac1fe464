"""GPUs as they are published against GPUs as they are found; and who else gives them out."""

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final

from hami_kubeletplugin.api import names
from hami_kubeletplugin.api.errors import ApiError
from hami_kubeletplugin.api.fields import at
from hami_kubeletplugin.doctor.cluster import Answers, Cluster
from hami_kubeletplugin.doctor.place import Place
from hami_kubeletplugin.findings import Finding, Level
from hami_kubeletplugin.health.runtime_config import inside
from hami_kubeletplugin.publish import devices as published
from hami_kubeletplugin.publish.others import node_says, same_gpus
from hami_kubeletplugin.publish.slices import differences

Device = Mapping[str, Any]

_GATE: Final = ("allowMultipleAllocations", "requestPolicy")
"""Fields that a server drops without the feature gate DRAConsumableCapacity."""
_PLUGINS: Final = "/var/lib/kubelet/device-plugins"
_TELLING: Final = ("nvidia", "vgpu", "hami")
_MOST: Final = 256


def slices(place: Place, cluster: Cluster) -> Iterator[Finding]:
    """The node's slices against its GPUs."""
    settings, answers = place.settings, cluster.answers()
    if isinstance(answers.slices, ApiError):
        raise answers.slices
    there = published_devices(answers.slices, settings.driver_name)
    wanted = published.devices(list(place.gpus().values()), settings)
    yield from judged(there, wanted, settings.node_name, settings.driver_name)


def published_devices(slices_: Sequence[Mapping[str, Any]], driver: str) -> list[Device] | None:
    """The devices of the newest generation of our pool; None if there is no slice of ours. Pure."""
    ours = [each["spec"] for each in slices_ if at(each, "spec", "driver") == driver]
    newest = max((at(spec, "pool", "generation") or 0 for spec in ours), default=0)
    current = [spec for spec in ours if (at(spec, "pool", "generation") or 0) == newest]
    return [device for spec in current for device in spec.get("devices") or ()] if ours else None


def judged(there: Sequence[Device] | None, wanted: Sequence[Device], node: str, driver: str) -> Iterator[Finding]:
    """What is missing, too many, other or tainted. Pure.

    Args:
        there: Devices as the API server has them; None: no slice at all.
        wanted: As they follow from the GPUs that were found and from our options.
        node: This node.
        driver: Our driver's name.
    """
    show = f"kubectl get resourceslices --field-selector spec.nodeName={node} -o yaml"
    if there is None:
        yield Finding(
            check="slices",
            level=Level.error if wanted else Level.warning,
            what=f"{driver} has no ResourceSlice on {node}",
            why="The scheduler knows of no GPU here, so no pod with GPUs comes.",
            mend="hami-kubeletplugin doctor  # look at sockets, api and rbac first: the daemon publishes them when it runs",
        )
        return
    by_uuid = {str(at(each, "attributes", names.UUID, "string")): each for each in there}
    ours = {published.uuid(dict(each)): each for each in wanted}
    for uuid, each in ours.items():
        if uuid not in by_uuid:
            yield Finding(
                check="slices",
                level=Level.warning,
                what=f"{each['name']} ({uuid}) is found on this node and not published",
                why="No pod can get it. Before Kubernetes 1.36 that is so for each GPU with a taint that is not 'None'.",
                mend=f"hami-kubeletplugin devices  # its condition\n{show}",
            )
    for uuid, each in by_uuid.items():
        if uuid not in ours:
            yield Finding(
                check="slices",
                level=Level.warning,
                what=f"{each['name']} ({uuid}) is published and can't be found on this node",
                why="Pods that are given it can't start, unless its taint keeps them off.",
                mend="nvidia-smi -L",
            )
        yield from _tainted(uuid, each)
    yield from _different(by_uuid, ours)
    if not ours.keys() ^ by_uuid.keys():
        yield Finding(check="slices", level=Level.ok, what=f"all {len(ours)} GPUs of this node are published")


def _tainted(uuid: str, device: Device) -> Iterator[Finding]:
    for taint in device.get("taints") or ():
        effect = at(taint, "effect")
        yield Finding(
            check="slices",
            level=Level.hint if effect == "None" else Level.warning,
            what=f"{device['name']} ({uuid}) has the taint {at(taint, 'key')}={at(taint, 'value') or ''}:{effect}",
            why="" if effect == "None" else "No new pod gets it without a toleration. What it is for: see conditions.",
        )


def _different(there: Mapping[str, Device], wanted: Mapping[str, Device]) -> Iterator[Finding]:
    """Devices that the API server has otherwise."""
    paths: dict[str, str] = {}
    for uuid in there.keys() & wanted.keys():
        stored = {key: value for key, value in there[uuid].items() if key != "taints"}
        paths |= dict.fromkeys(differences([dict(wanted[uuid])], [stored]), uuid)
    dropped = [path for path in paths if path.endswith(_GATE)]
    if dropped:
        yield Finding(
            check="slices",
            level=Level.error,
            what=f"the API server has dropped {', '.join(sorted(dropped))} of the devices",
            why="Without the feature gate DRAConsumableCapacity GPUs can't be shared: a claim takes all of one.",
            mend="# set --feature-gates=DRAConsumableCapacity=true on kube-apiserver, kube-scheduler and "
            "kube-controller-manager, or upgrade to 1.36",
        )
    for path, uuid in sorted(paths.items()):
        if path not in dropped:
            yield Finding(
                check="slices",
                level=Level.warning if path.startswith("capacity") else Level.hint,
                what=f"{path} of {there[uuid]['name']} ({uuid}) is published otherwise than the GPU and these options say",
                why="Either this command has other options than the daemon (--device-split-count and the like), or the daemon "
                "has not looked yet.",
                mend="hami-kubeletplugin devices -o json  # with the daemon's options",
            )


def owners(place: Place, cluster: Cluster) -> Iterator[Finding]:
    """Who else gives out this node's GPUs."""
    settings = place.settings
    yield from plugins_judged(
        _names(inside(place.host, _PLUGINS)), _names(settings.hami_dir / "containers"), settings.hami_dir
    )
    yield from others_judged(cluster.answers(), set(place.gpus()), settings.driver_name, settings.plugin_resources)


def plugins_judged(sockets: Sequence[str], left: Sequence[str], hami_dir: Path) -> Iterator[Finding]:
    """Sockets of device plugins, and what HAMi's left. Pure."""
    for name in sockets:
        if name.endswith(".sock") and any(word in name.lower() for word in _TELLING):
            yield Finding(
                check="owners",
                level=Level.warning,
                what=f"{_PLUGINS}/{name} is the socket of a device plugin for GPUs",
                why="If it serves this node's GPUs their memory is given out twice. One that is gone may have left it.",
                mend=f"ss -xlp | grep {name}; kubectl get pods -A -o wide | grep -i device-plugin",
            )
    if left:
        yield Finding(
            check="owners",
            level=Level.hint,
            what=f"{hami_dir}/containers has {len(left)} folders that HAMi's device plugin made",
            why="Pods that it started may still run on these GPUs; what they use is not counted here.",
            mend=f"rm -r {hami_dir}/containers  # once no pod of HAMi's runs on this node",
        )


def others_judged(
    answers: Answers, gpus: Collection[str], driver: str, resources: Collection[str]
) -> Iterator[Finding]:
    """Device plugins and drivers that the API server knows of. Pure."""
    if isinstance(answers.node, ApiError) or isinstance(answers.slices, ApiError):
        yield Finding(
            check="owners", level=Level.unknown, what="what others publish of this node can't be read: see api and rbac"
        )
        return
    wrong = False
    for name, amount in node_says(answers.node, resources).plugins:
        wrong = True
        yield Finding(
            check="owners",
            level=Level.error,
            what=f"a device plugin gives out this node's GPUs, too: allocatable {name}: {amount}",
            why="Neither knows what the other gave away: memory is given out twice.",
            mend="# keep either the device plugin or this driver off the node, by its nodeSelector",
        )
    for each in answers.slices:
        other = same_gpus(each) if at(each, "spec", "driver") != driver else None
        if other and (common := other.uuids & set(gpus)):
            wrong = True
            yield Finding(
                check="owners",
                level=Level.error,
                what=f"DRA driver {other.driver} gives out {len(common)} of these GPUs, too (ResourceSlice {other.name})",
                why="Neither knows what the other gave away: memory is given out twice.",
                mend=f"kubectl get resourceslice {other.name} -o yaml  # and keep either of them off the node",
            )
    if not wrong:
        yield Finding(
            check="owners", level=Level.ok, what="the API server knows of nobody else who gives out these GPUs"
        )


def _names(folder: Path) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry in islice(entries, _MOST)]
    except OSError:
        return []
