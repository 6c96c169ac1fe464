"""What a CDI runtime accepts, and what it makes of it in a container."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jsonschema

from hami_kubeletplugin.api.cdi import ContainerEdits, Spec
from hami_kubeletplugin.api.claim import PreparedDevice
from hami_kubeletplugin.gpu.model import Inventory

_VALIDATOR: Any = jsonschema.Draft7Validator(json.loads((Path(__file__).parent / "cdi_schema.json").read_text()))


def check(spec: Spec) -> None:
    """Fail unless the spec is valid, its device names are unique, and its version is the lowest for what it holds."""
    _VALIDATOR.validate(spec)
    names = [device["name"] for device in spec["devices"]]
    assert len(set(names)) == len(names), f"device names are not unique: {names}"
    text = json.dumps(spec)
    nodes = [n for e in _edits(spec) for n in e.get("deviceNodes", [])]
    mounts = [m for e in _edits(spec) for m in e.get("mounts", [])]
    assert '"additionalGids"' not in text
    needed = (
        "0.5.0" if any("hostPath" in n for n in nodes) else "0.4.0" if any("type" in m for m in mounts) else "0.3.0"
    )
    assert spec["cdiVersion"] == needed


def _edits(spec: Spec) -> list[Any]:
    return [spec.get("containerEdits", {}), *(device["containerEdits"] for device in spec["devices"])]


class Seen(NamedTuple):
    """What a container has after injection."""

    env: dict[str, str]
    mounts: dict[str, str]
    gpus: tuple[str, ...]
    """UUIDs of the GPUs whose device nodes are there."""

    def limits(self, known: Inventory) -> dict[str, tuple[int, int]]:
        """(MiB, percent) by GPU UUID, as HAMi-core reads them: index i is the i-th GPU of the container in bus order."""
        here = sorted(self.gpus, key=lambda u: known.by_uuid()[u].bus_order)
        assert self.env["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
        assert self.env["CUDA_VISIBLE_DEVICES"] == ",".join(str(i) for i in range(len(here)))
        numbered = {name for name in self.env if name.startswith("CUDA_DEVICE_MEMORY_LIMIT")}
        assert numbered == {f"CUDA_DEVICE_MEMORY_LIMIT_{i}" for i in range(len(here))}
        found = {}
        for i, one in enumerate(here):
            memory = self.env[f"CUDA_DEVICE_MEMORY_LIMIT_{i}"]
            assert memory.endswith("m")
            found[one] = int(memory[:-1]), int(self.env.get(f"CUDA_DEVICE_SM_LIMIT_{i}", "0"))
        return found


def inject(specs: Sequence[Spec], ids: Sequence[str]) -> Seen:
    """What a CDI runtime makes of device IDs, in the order given (container-device-interface pkg/cdi: InjectDevices, Apply).

    A device that two specs have is unresolvable. Later variables and mounts of the same name replace earlier ones.
    """
    found: dict[str, tuple[int, ContainerEdits]] = {}
    for index, spec in enumerate(specs):
        for device in spec["devices"]:
            name = f"{spec['kind']}={device['name']}"
            assert name not in found, f"unresolvable: {name} is in two specs"
            found[name] = index, device["containerEdits"]
    edits: list[ContainerEdits] = []
    used: set[int] = set()
    for name in ids:
        index, own = found[name]
        if index not in used:
            used.add(index)
            edits.append(specs[index].get("containerEdits", {}))
        edits.append(own)
    env: dict[str, str] = {}
    mounts: dict[str, str] = {}
    nodes: list[str] = []
    for edit in edits:
        env |= dict(variable.split("=", 1) for variable in edit.get("env", []))
        mounts |= {mount["containerPath"]: mount["hostPath"] for mount in edit.get("mounts", [])}
        nodes += [node["path"] for node in edit.get("deviceNodes", [])]
    return Seen(env, mounts, tuple(sorted({node.removeprefix("/dev/") for node in nodes})))


def kubelet_ids(answers: Mapping[str, Sequence[PreparedDevice]], uses: Iterable[tuple[str, str | None]]) -> list[str]:
    """The CDI IDs that the kubelet injects for a container's (claim name, request or None): manager.go, GetResources."""
    return [
        cdi_id
        for name, request in uses
        for device in answers[name]
        if request is None or request in device.requests
        for cdi_id in device.cdi_ids
    ]
