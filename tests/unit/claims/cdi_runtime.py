"""What a CDI runtime accepts, and what it makes of it in a container."""

import json
import stat
import struct
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import jsonschema

from hami_kubeletplugin.api.cdi import ContainerEdits, Hook, Spec
from hami_kubeletplugin.api.claim import PreparedDevice
from hami_kubeletplugin.api.names import MIB
from hami_kubeletplugin.gpu.model import Inventory

_VALIDATOR = jsonschema.Draft7Validator(json.loads((Path(__file__).parent / "cdi_schema.json").read_text()))


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


def _edits(spec: Spec) -> list[ContainerEdits]:
    return [spec.get("containerEdits", {}), *(device["containerEdits"] for device in spec["devices"])]


class Renewal(NamedTuple):
    """What the hook is told: which file to renew, with what, and for whom."""

    content: bytes
    region: Path
    claim: str
    pods: tuple[str, ...]


class Seen(NamedTuple):
    """What a container has after injection."""

    env: dict[str, str]
    mounts: dict[str, str]
    gpus: tuple[str, ...]
    """UUIDs of the GPUs whose device nodes are there."""
    hooks: tuple[Hook, ...] = ()

    def renewal(self) -> Renewal | None:
        """How the container's region is renewed at its start; None if the library makes it itself."""
        path = self.env["CUDA_DEVICE_MEMORY_SHARED_CACHE"]
        assert path.rpartition("/")[0] in self.mounts or path in self.mounts, (
            "nothing is mounted where the region is to be"
        )
        ours = path == "/tmp/cudevshr.cache"
        if not self.hooks:
            assert not ours, "a region of ours needs its hook"
            return None
        hook = self.hooks[0]
        assert all(other == hook for other in self.hooks)  # a container may name one device twice; then it is run twice
        assert hook["hookName"] == "createRuntime"
        assert hook["env"], "without a variable of its own it would get the runtime's, or the container's"
        assert 0 < hook["timeout"] <= 10
        program, *arguments = hook["args"]
        assert program == hook["path"]
        given = list(zip(arguments[::2], arguments[1::2], strict=True))
        names = [name for name, _ in given]
        assert names == sorted(names, key=["--region", "--size", "--content", "--file", "--claim", "--pod"].index)
        assert ours == ("--region" in names), "another region than ours is not renewed"
        if not ours:
            assert "--pod" not in names, "containers of other pods may have it, too"
            return None
        (_, region), (_, size) = given[:2]
        content = bytearray(int(size))
        for at, _, data in (value.partition(":") for name, value in given if name == "--content"):
            content[int(at) : int(at) + len(data) // 2] = bytes.fromhex(data)
        (claim,) = (value for name, value in given if name == "--claim")
        assert self.mounts[path] == region, "another file is mounted than the one that is renewed"
        return Renewal(bytes(content), Path(region), claim, tuple(uid for name, uid in given if name == "--pod"))

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

    def has_right_region(self, known: Inventory) -> bool:
        """Whether what the hook renews a container's region from says the same as its variables; 100 percent is no limit."""
        renewal = self.renewal()
        if renewal is None:
            return False
        told = {uuid: (memory, cores or 100) for uuid, (memory, cores) in self.limits(known).items()}
        assert region_limits(renewal.content) == told
        assert list(region_limits(renewal.content)) == sorted(told, key=lambda u: known.by_uuid()[u].bus_order)
        assert renewal.region.lstat().st_mode == stat.S_IFREG | 0o666
        return True


def region_limits(content: bytes) -> dict[str, tuple[int, int]]:
    """(MiB, percent) by GPU UUID, as the library reads them from a region of layout 1.2."""
    assert len(content) == 2_008_953
    assert content[:12] == struct.pack("<iII", 19920718, 1, 2)
    (count,) = struct.unpack_from("<Q", content, 56)
    memory, cores = struct.unpack_from("<16Q", content, 1600), struct.unpack_from("<16Q", content, 1728)
    assert not any(memory[count:])
    uuids = [content[64 + 96 * i : 160 + 96 * i].rstrip(b"\0").decode() for i in range(count)]
    return {uuid: (memory[i] // MIB, cores[i]) for i, uuid in enumerate(uuids)}


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
    hooks: list[Hook] = []
    for edit in edits:
        env |= dict(variable.split("=", 1) for variable in edit.get("env", []))
        mounts |= {mount["containerPath"]: mount["hostPath"] for mount in edit.get("mounts", [])}
        hooks += edit.get("hooks", [])
        nodes += [node["path"] for node in edit.get("deviceNodes", [])]
    return Seen(env, mounts, tuple(sorted({node.removeprefix("/dev/") for node in nodes})), tuple(hooks))


def kubelet_ids(answers: Mapping[str, Sequence[PreparedDevice]], uses: Iterable[tuple[str, str | None]]) -> list[str]:
    """The CDI IDs that the kubelet injects for a container's (claim name, request or None): manager.go, GetResources."""
    return [
        cdi_id
        for name, request in uses
        for device in answers[name]
        if request is None or request in device.requests
        for cdi_id in device.cdi_ids
    ]
