"""What `nvidia-ctk cdi generate` prints, decoded strictly and made ours. Pure functions; the process is run in `toolkit.py`."""

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Final, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hami_kubeletplugin.api.cdi import ContainerEdits
from hami_kubeletplugin.api.errors import HardwareError
from hami_kubeletplugin.api.names import NVIDIA_VISIBLE_DEVICES

_GPU_NODE: Final = re.compile(r"/dev/nvidia[0-9]+")
_CONTROL_NODES: Final = ("/dev/nvidiactl", "/dev/nvidia-uvm")
"""CUDA can't start without them. They appear late after a boot, and nothing in a container can make them."""


@dataclass(frozen=True, slots=True)
class ToolkitSpec:
    """The edits of a node.

    Attributes:
        common: The spec's own edits.
        per_gpu: Those of each device that the toolkit knows, by UUID.
    """

    common: ContainerEdits
    per_gpu: dict[str, ContainerEdits]

    def paths(self, uuids: Collection[str]) -> Iterator[str]:
        """Each path on the host that a container with these GPUs would get, as far as they are known."""
        for edits in (self.common, *(self.per_gpu[uuid] for uuid in uuids if uuid in self.per_gpu)):
            yield from _paths(edits)

    def missing(self, uuids: Collection[str], existing: Collection[str]) -> list[str]:
        """What keeps these edits from being complete for some GPUs, in words.

        Args:
            uuids: The GPUs asked for.
            existing: Those of `paths()` that are there.
        """
        there = [mount["containerPath"] for mount in self.common.get("mounts", ()) if mount["hostPath"] in existing]
        lacking = [] if any(_is_libcuda(path) for path in there) else ["a mount of libcuda.so.*"]
        common_nodes = _nodes(self.common, existing)
        for uuid in uuids:
            if uuid not in self.per_gpu:
                lacking.append(f"GPU {uuid}")
                continue
            nodes = _nodes(self.per_gpu[uuid], existing)
            if not any(_GPU_NODE.fullmatch(path) for path in nodes):
                lacking.append(f"the device node /dev/nvidia<minor> of GPU {uuid}")
            lacking += [f"the device node {path}" for path in _CONTROL_NODES if path not in common_nodes | nodes]
        return list(dict.fromkeys(lacking))

    def moved(self, seen: str, host: str) -> "ToolkitSpec":
        """With host paths below `seen`, where the daemon sees the driver's root, put below `host`, where it is on the host.

        As `transformroot` with `WithRelativeTo("host")` of the NVIDIA Container Toolkit does.
        """
        if seen == host:
            return self
        return ToolkitSpec(
            _moved(self.common, seen, host), {uuid: _moved(edits, seen, host) for uuid, edits in self.per_gpu.items()}
        )


def decode(output: bytes) -> ToolkitSpec:
    """Decode the toolkit's output and drop what is not for us.

    Gone are: NVIDIA_VISIBLE_DEVICES, which we set; major and minor numbers, since the runtime looks them up and they change
    over a reboot while the spec stays; and `additionalGids`, which would raise the CDI version to 0.7.0 for the sake of
    `/dev/dri`. (A node whose /dev/nvidia* were closed with NVreg_DeviceFileMode needs supplementalGroups in its pods.)

    Raises:
        HardwareError: Not JSON, not a CDI spec, or something in it that we don't know and so can't pass on safely.
    """
    try:
        spec = _Spec.model_validate_json(output)
    except ValidationError as error:
        details = [
            f"{'.'.join(str(part) for part in detail['loc']) or 'output'}: {detail['msg']}"
            for detail in error.errors(include_url=False)
        ]
        raise HardwareError(
            f"nvidia-ctk printed a CDI spec that this version can't use ({'; '.join(details[:3])}). "
            "Use the nvidia-ctk of the daemon's image, or --driver-edits=runtime"
        ) from None
    return ToolkitSpec(_cleaned(spec.edits), {device.name: _cleaned(device.edits) for device in spec.devices})


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _Node(_Strict):
    path: str
    host_path: str | None = Field(None, alias="hostPath")
    type: str | None = None
    major: int | None = None
    minor: int | None = None
    file_mode: int | None = Field(None, alias="fileMode")
    permissions: str | None = None
    uid: int | None = None
    gid: int | None = None


class _Mount(_Strict):
    host_path: str = Field(alias="hostPath")
    container_path: str = Field(alias="containerPath")
    options: list[str] | None = None
    type: str | None = None


class _Hook(_Strict):
    hook_name: str = Field(alias="hookName")
    path: str
    args: list[str] | None = None
    env: list[str] | None = None
    timeout: int | None = None


class _Edits(_Strict):
    env: list[str] = []
    device_nodes: list[_Node] = Field([], alias="deviceNodes")
    mounts: list[_Mount] = []
    hooks: list[_Hook] = []
    additional_gids: list[int] = Field([], alias="additionalGids")


class _Device(_Strict):
    name: str
    annotations: dict[str, str] = {}
    edits: _Edits = Field(alias="containerEdits")


class _Spec(_Strict):
    cdi_version: str = Field(alias="cdiVersion")
    kind: str
    annotations: dict[str, str] = {}
    devices: list[_Device]
    edits: _Edits = Field(_Edits(), alias="containerEdits")


def _cleaned(edits: _Edits) -> ContainerEdits:
    raw: dict[str, Any] = edits.model_dump(
        by_alias=True,
        exclude_none=True,
        exclude={"additional_gids": True, "device_nodes": {"__all__": {"major", "minor"}}},
    )
    raw["env"] = [entry for entry in raw["env"] if not entry.startswith(f"{NVIDIA_VISIBLE_DEVICES}=")]
    return cast(ContainerEdits, {key: value for key, value in raw.items() if value})


def _paths(edits: ContainerEdits) -> Iterator[str]:
    for node in edits.get("deviceNodes", ()):
        yield node.get("hostPath", node["path"])
    for mount in edits.get("mounts", ()):
        yield mount["hostPath"]


def _nodes(edits: ContainerEdits, existing: Collection[str]) -> set[str]:
    return {node["path"] for node in edits.get("deviceNodes", ()) if node.get("hostPath", node["path"]) in existing}


def _is_libcuda(path: str) -> bool:
    return PurePosixPath(path).name.startswith("libcuda.so.")


def _moved(edits: ContainerEdits, seen: str, host: str) -> ContainerEdits:
    def move(path: str) -> str:
        at = PurePosixPath(path)
        return str(host / at.relative_to(seen)) if at.is_relative_to(seen) else path

    result = edits.copy()
    if "mounts" in edits:
        result["mounts"] = [{**mount, "hostPath": move(mount["hostPath"])} for mount in edits["mounts"]]
    if "deviceNodes" in edits:
        result["deviceNodes"] = [
            {**node, "hostPath": move(node.get("hostPath", node["path"]))} for node in edits["deviceNodes"]
        ]
        for node in result["deviceNodes"]:
            if node.get("hostPath") == node["path"]:
                del node["hostPath"]
    if "hooks" in edits:
        result["hooks"] = [hook.copy() for hook in edits["hooks"]]
        for hook in result["hooks"]:
            if hook["hookName"] != "startContainer":  # that one's path is in the container
                hook["path"] = move(hook["path"])
            if "args" in hook and hook["hookName"] not in ("createContainer", "startContainer"):  # theirs are, too
                hook["args"] = [move(argument) for argument in hook["args"]]
    return result
