"""The part of the Container Device Interface that we write: https://github.com/cncf-tags/container-device-interface SPEC.md.

JSON shapes, not classes: they come from `nvidia-ctk` and go to a file as they are.
"""

from typing import NotRequired, TypedDict


class DeviceNode(TypedDict):
    """A device node to make in the container. Numbers are looked up by the runtime, since they change over a reboot."""

    path: str
    hostPath: NotRequired[str]
    type: NotRequired[str]
    major: NotRequired[int]
    minor: NotRequired[int]
    fileMode: NotRequired[int]
    permissions: NotRequired[str]
    uid: NotRequired[int]
    gid: NotRequired[int]


class Mount(TypedDict):
    """A mount; `type` (CDI >= 0.4.0) is for others than bind mounts."""

    hostPath: str
    containerPath: str
    options: NotRequired[list[str]]
    type: NotRequired[str]


class Hook(TypedDict):
    """An OCI hook."""

    hookName: str
    path: str
    args: NotRequired[list[str]]
    env: NotRequired[list[str]]
    timeout: NotRequired[int]


class ContainerEdits(TypedDict, total=False):
    """What a device changes in the container."""

    env: list[str]
    deviceNodes: list[DeviceNode]
    mounts: list[Mount]
    hooks: list[Hook]
    additionalGids: list[int]


class Device(TypedDict):
    """One injectable device."""

    name: str
    containerEdits: ContainerEdits


class Spec(TypedDict):
    """A CDI spec file. Spec-level edits are applied once for each container that uses any of its devices."""

    cdiVersion: str
    kind: str
    devices: list[Device]
    containerEdits: NotRequired[ContainerEdits]
