"""What the kubelet is told of devices. Pure."""

from collections.abc import Mapping
from typing import NamedTuple

from hami_kubeletplugin.gpu.conditions import Found, Health, health, of
from hami_kubeletplugin.observe.observable import Observable


class DeviceHealth(NamedTuple):
    """How one device is; `message` is for people."""

    pool: str
    device: str
    health: Health = Health.HEALTHY
    message: str = ""


Reported = Observable[tuple[DeviceHealth, ...]]
"""How all devices are, by name: those that are published, and others of ours of which there is something to be said."""


def reported(
    pool: str, published: Mapping[str, str], known: Mapping[str, str], found: Found
) -> tuple[DeviceHealth, ...]:
    """How devices are, by name.

    Args:
        pool: Theirs.
        published: Devices by UUID.
        known: Others too, such as those that pods use: they are told of while there is something to be said of them.
        found: The conditions.
    """
    every = {
        uuid: DeviceHealth(pool, device, *health(of(found, uuid))) for uuid, device in {**known, **published}.items()
    }
    told = [each for uuid, each in every.items() if uuid in published or of(found, uuid)]
    return tuple(sorted(told))
