"""Nodes that are only objects, with GPUs as the daemon publishes them: what a scheduler has to choose from."""

import asyncio
from typing import Any, Final

from hami_kubeletplugin.api.names import DRIVER
from hami_kubeletplugin.api.settings import Settings
from hami_kubeletplugin.gpu.source import source_for
from hami_kubeletplugin.kube.call import Call
from hami_kubeletplugin.kube.resource_api import KubeClient
from hami_kubeletplugin.publish.devices import devices
from hami_kubeletplugin.publish.slices import Pool, reconcile, split

_AMOUNTS: Final = {"cpu": "64", "memory": "512Gi", "pods": "110"}


async def add_nodes(api: KubeClient, count: int, profile: str, kind: str = "gpu") -> None:
    """Make nodes `gpu-000` and so on, each with the slices of its daemon.

    Args:
        api: An administrator's.
        count: How many.
        profile: What `--simulate` takes.
        kind: First part of the name, and the value of a label `kind`.
    """
    await asyncio.gather(*(_add(api, kind, f"{kind}-{number:03}", profile) for number in range(count)))


async def _add(api: KubeClient, kind: str, name: str, profile: str) -> None:
    node = await api.ask(Call("create", "nodes", "/api/v1/nodes", name), _node(name, kind))
    settings = Settings.checked(node_name=name, simulate=profile)
    found = devices((await source_for(settings).discover()).gpus, settings)
    pool = Pool(DRIVER, name, node["metadata"]["uid"])
    for write in reconcile(pool, split(found), []):
        await api.create_slice(write.slice)


def _node(name: str, kind: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, "kind": kind}},
        "status": {"capacity": _AMOUNTS, "allocatable": _AMOUNTS},
    }
