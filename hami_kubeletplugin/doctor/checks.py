"""All checks of a node by name, wired."""

from collections.abc import Mapping
from functools import partial

from hami_kubeletplugin.doctor import (
    claims,
    containers,
    driver,
    folders,
    library,
    runtimes,
    serving,
    slices,
    toolkit,
    trying,
)
from hami_kubeletplugin.doctor import cluster as kubernetes
from hami_kubeletplugin.doctor.cluster import Cluster
from hami_kubeletplugin.doctor.place import Place
from hami_kubeletplugin.findings import Check


def checks(place: Place, cluster: Cluster, *, trial: bool = False) -> Mapping[str, Check]:
    """Each of them, from the hardware to the containers.

    Args:
        place: This node.
        cluster: What is asked of the API server.
        trial: Whether a process is to be tried, too.
    """
    tried: dict[str, Check] = {"try": partial(trying.trial, place)} if trial else {}
    return {
        "driver": partial(driver.driver, place),
        "device-nodes": partial(driver.device_nodes, place),
        "toolkit": partial(toolkit.toolkit, place),
        "cdi": partial(runtimes.cdi, place),
        "hami-core": partial(library.hami_core, place),
        "region-hook": partial(library.region_hook, place),
        "folders": partial(folders.folders, place),
        "space": partial(folders.space, place),
        "selinux": partial(folders.selinux, place),
        "sockets": partial(serving.sockets, place),
        "kubelet": partial(serving.kubelet, place),
        "conditions": partial(serving.conditions, place),
        "api": partial(kubernetes.api, place, cluster),
        "rbac": partial(kubernetes.rbac, cluster),
        "slices": partial(slices.slices, place, cluster),
        "owners": partial(slices.owners, place, cluster),
        "claims": partial(claims.claims, place, cluster),
        "leftovers": partial(claims.leftovers, place),
        "containers": partial(containers.containers, place),
        **tried,
    }
