"""What a prepare needs of this node, each as a check that does no harm: nothing is written, but what is missing is made."""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from hami_kubeletplugin import files
from hami_kubeletplugin.api.errors import HardwareError
from hami_kubeletplugin.api.settings import Settings
from hami_kubeletplugin.gpu.conditions import EVERY, Conditions
from hami_kubeletplugin.gpu.edits import DriverEditsSource
from hami_kubeletplugin.hamicore.host import HostFiles
from hami_kubeletplugin.health.readiness import Check, Readiness, Wrong
from hami_kubeletplugin.health.runtimes import check_cdi_directory

_DRIVER: Final = 25.0
"""Seconds: a run of nvidia-ctk may take 20."""


class Registration(Protocol):
    """What is known of the registration with the kubelet: `kubelet.registration`."""

    registered: threading.Event

    @property
    def trouble(self) -> str | None:
        """What is wrong with it; None if nothing is known to be."""

    def follow(self, changed: Callable[[], None]) -> None:
        """Have `changed` called, from any thread, after changes."""


def node_readiness(
    settings: Settings,
    host: HostFiles,
    edits: DriverEditsSource,
    *,
    gpus: Callable[[], Sequence[str] | None],
    registration: Registration,
    conditions: Conditions,
    told: Callable[[bool], None],
) -> Readiness:
    """All checks of this node, those first whose words say most about the others.

    Args:
        settings: The settings.
        host: HAMi-core's files.
        edits: The driver's edits.
        gpus: UUIDs of this node's GPUs; None while they are not known.
        registration: With the kubelet.
        conditions: The board.
        told: See `Readiness`.
    """

    def library() -> None:
        host.check()

    def registered() -> Wrong:
        trouble = registration.trouble
        return {} if trouble is None else {EVERY: trouble}

    readiness = Readiness(
        (*node_checks(settings, library, host.check_mount, edits, gpus=gpus), Check("kubelet", registered)),
        conditions=conditions,
        gpus=gpus,
        registered=registration.registered.is_set,
        told=told,
    )
    registration.follow(readiness.wake)
    return readiness


def node_checks(
    settings: Settings,
    library: Callable[[], None],
    mount: Callable[[], None],
    edits: DriverEditsSource,
    *,
    gpus: Callable[[], Sequence[str] | None],
) -> tuple[Check, ...]:
    """Those of what is on the node.

    Args:
        settings: The settings.
        library: Raises a HamiError if HAMi-core's library can't be had.
        mount: Raises one if nothing can be run from where it lies.
        edits: The driver's edits.
        gpus: UUIDs of this node's GPUs; None while they are not known.
    """
    return (
        Check("noexec", mount),
        Check("hami-core", library),
        Check("records", lambda: files.check_room(settings.plugin_dir / "claims")),
        Check("cdi-dir", lambda: files.check_room(settings.cdi_dir)),
        # It goes through all processes of the node, and what it looks for changes with a restart of the runtime.
        Check("cdi-runtime", lambda: check_cdi_directory(settings.cdi_dir), interval=60.0, longest=30.0),
        Check(
            "driver-edits",
            lambda: without_edits(edits, gpus() or (), time.monotonic() + _DRIVER),
            within=_DRIVER + 5,
            longest=30.0,
        ),
    )


def without_edits(edits: DriverEditsSource, uuids: Sequence[str], deadline: float) -> Wrong:
    """For which GPUs the driver's edits can't be had, and why. What was had once costs some `stat` calls.

    Args:
        edits: Where they come from.
        uuids: The GPUs.
        deadline: By the monotonic clock.
    """
    if not uuids:
        return {}
    try:
        refusal = edits.edits(uuids, deadline=deadline).no_libcuda
    except HardwareError as error:
        # For all at once: one GPU that is broken must not keep the others from being used.
        wrong = _each(edits, uuids, deadline, error)
        return {EVERY: str(error)} if len(wrong) == len(uuids) else wrong
    return {} if refusal is None else {EVERY: refusal}


def _each(edits: DriverEditsSource, uuids: Sequence[str], deadline: float, error: HardwareError) -> Wrong:
    """Which GPUs are wrong when they are asked for one by one; those for which there is no time are."""
    wrong: dict[str, str] = {}
    for uuid in uuids:
        try:
            if time.monotonic() > deadline:
                raise error
            edits.edits([uuid], deadline=deadline)
        except HardwareError as reason:
            wrong[uuid] = str(reason)
    return wrong
