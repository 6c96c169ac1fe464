"""Slices, claims and pods, short."""

import asyncio
import copy
from collections.abc import Iterable, Mapping
from typing import Any

from hami_kubeletplugin.api.settings import Sharing
from hami_kubeletplugin.gpu.simulate import SimulatedSource
from hami_kubeletplugin.kubectl.cluster import Around, Seen
from hami_kubeletplugin.kubectl.inventory import Gpu, inventory
from hami_kubeletplugin.publish.devices import devices

Json = dict[str, Any]
DRIVER = "gpu.hami.io"
_SELECTOR = (
    f'device.driver == "{DRIVER}" && "type" in device.attributes["{DRIVER}"] && '
    f'device.attributes["{DRIVER}"].type == "hami-gpu"'
)
CLASS: Json = {"metadata": {"name": DRIVER}, "spec": {"selectors": [{"cel": {"expression": _SELECTOR}}]}}
_A100S = devices(asyncio.run(SimulatedSource("a100x8", "n1").discover()).gpus, Sharing())


def a100s(count: int, **more: Any) -> list[Json]:
    """GPUs as our daemon publishes them: 40Gi, 100 percent, 10 may share one."""
    return [copy.deepcopy(device) | more for device in _A100S[:count]]


def slice_(node: str, *gpus: Json, name: str = "", generation: int = 1, of: int = 1, driver: str = DRIVER) -> Json:
    """A slice of a node's pool."""
    pool = {"name": node, "generation": generation, "resourceSliceCount": of}
    spec = {"driver": driver, "nodeName": node, "pool": pool, "devices": list(gpus)}
    return {"metadata": {"name": name or f"00000-{node}"}, "spec": spec}


def exactly(name: str = "gpu", *, selectors: Iterable[str] = (), **fields: Any) -> Json:
    """A request; `memory`, `cores` and `shares` are its capacity."""
    amounts = {each: str(fields.pop(each)) for each in ("memory", "cores", "shares") if each in fields}
    chosen = [{"cel": {"expression": each}} for each in selectors]
    return {
        "name": name,
        "exactly": {"deviceClassName": DRIVER, "selectors": chosen, "capacity": {"requests": amounts}, **fields},
    }


def claim(
    name: str, *requests: Json, namespace: str = "team", on: Mapping[str, Mapping[str, str]] | None = None, **more: Any
) -> Json:
    """A claim; one that is allocated has amounts of devices (`node/device`)."""
    made: Json = {
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"devices": {"requests": list(requests), **more}},
    }
    if on is not None:
        results = [
            {
                "request": "gpu",
                "driver": DRIVER,
                "pool": device.partition("/")[0],
                "device": device.partition("/")[2],
                "shareID": "s",
                "consumedCapacity": dict(amounts),
            }
            for device, amounts in on.items()
        ]
        node = next(iter(on)).partition("/")[0]
        fields = [{"key": "metadata.name", "operator": "In", "values": [node]}]
        allocation = {"devices": {"results": results}, "nodeSelector": {"nodeSelectorTerms": [{"matchFields": fields}]}}
        made["status"] = {"allocation": allocation}
    return made


def share(memory: str = "4000Mi", cores: str = "0", shares: str = "1k") -> dict[str, str]:
    """What a share consumes."""
    return {"memory": memory, "cores": cores, "shares": shares}


def pod(*claims: str, **spec: Any) -> Json:
    """A pod that waits and names these claims."""
    used = [{"name": each, "resourceClaimName": each} for each in claims]
    return {
        "metadata": {"name": "p", "namespace": "team", "uid": "u"},
        "spec": {"containers": [{"name": "main"}], "resourceClaims": used, **spec},
        "status": {"phase": "Pending"},
    }


def seen(slices: Iterable[Json], *claims: Json) -> Seen:
    """The cluster."""
    return Seen(inventory(slices, claims, DRIVER), ())


def gpus(slices: Iterable[Json], *claims: Json) -> list[Gpu]:
    """Its GPUs."""
    return seen(slices, *claims).inventory.gpus


def around(
    pod_: Json, *claims: Json, nodes: Iterable[Json] | None = None, events: Iterable[Json] = (), **more: Any
) -> Around:
    """The pod and its objects."""
    named = None if nodes is None else {each["metadata"]["name"]: each for each in nodes}
    return Around(
        pod=pod_,
        claims={each["metadata"]["name"]: each for each in claims},
        templates=more.get("templates", frozenset()),
        events=list(events),
        classes=more.get("classes", {DRIVER: CLASS}),
        nodes=named,
    )
