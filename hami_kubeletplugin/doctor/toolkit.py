"""What brings the driver into containers: nvidia-ctk and nvidia-cdi-hook, or the NVIDIA container runtime."""

import os
import shutil
import time
from collections.abc import Callable, Iterator
from typing import Final

from hami_kubeletplugin.api.errors import HardwareError
from hami_kubeletplugin.doctor.place import Place
from hami_kubeletplugin.doctor.programs import Ran, ran, version_in
from hami_kubeletplugin.findings import Finding, Level
from hami_kubeletplugin.gpu.cdi_hook import hook_for
from hami_kubeletplugin.gpu.source import driver_edits_for
from hami_kubeletplugin.hamicore.toolkit_hook import ToolkitHook
from hami_kubeletplugin.health.needs import without_edits
from hami_kubeletplugin.health.runtime_config import inside
from hami_kubeletplugin.inforce.runtime import open_configs

OLDEST: Final = (1, 18)
"""Older ones fail on hooks that they don't know."""
_INSTALL: Final = "https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/install-guide.html"


def toolkit(place: Place) -> Iterator[Finding]:
    """What `--driver-edits` needs."""
    settings = place.settings
    if settings.driver_edits == "toolkit":
        found = shutil.which(settings.nvidia_ctk)
        yield program_judged(
            "nvidia-ctk", found, ran([found, "--version"]) if found else None, settings.nvidia_ctk, "--nvidia-ctk"
        )
        yield _hook(place)
    elif settings.driver_edits == "none":
        yield Finding(
            check="toolkit",
            level=Level.ok if settings.simulate is not None else Level.hint,
            what="--driver-edits=none: whoever set up the node brings the driver into containers",
        )
    if settings.driver_edits != "none":
        yield from _edits(place)
        yield from configs_judged(open_configs(place.host))


def _hook(place: Place) -> Finding:
    settings = place.settings
    try:
        path = hook_for(settings.nvidia_cdi_hook, place.host, _own_hook(place))()
    except HardwareError as error:
        return Finding(
            check="toolkit",
            level=Level.error,
            what=str(error),
            why="It puts the driver's libraries in order in each container with a GPU, and claims are refused without it.",
            mend=f"# see {_INSTALL}",
        )
    hook = inside(place.host, path)
    there = os.access(hook, os.X_OK) and hook.is_file()
    answer = ran([hook, "--version"]) if there else None
    return program_judged("nvidia-cdi-hook", path if there else None, answer, path, "--nvidia-cdi-hook")


def _own_hook(place: Place) -> Callable[[], str]:
    return ToolkitHook(place.settings.own_cdi_hook, place.settings.hami_dir).planned


def program_judged(name: str, found: str | None, answer: Ran | None, wanted: str, option: str) -> Finding:
    """Whether a program of the toolkit is there and new enough. Pure.

    Args:
        name: Its name.
        found: Where it is, if it is.
        answer: What it said of its version.
        wanted: Where it was looked for.
        option: By which somebody can say where it is.
    """
    if found is None or answer is None:
        return Finding(
            check="toolkit",
            level=Level.error,
            what=f"{name} is not at {wanted}" + (" on the host" if name != "nvidia-ctk" else ""),
            why="Claims are refused, or containers with GPUs don't start: the driver can't be brought into them.",
            mend=f"# install the NVIDIA Container Toolkit, {_INSTALL}, or say by {option} where {name} is",
        )
    version = version_in(answer.said) if answer.status == 0 else None
    if version is None:
        # The hook is the host's program, and need not run in the daemon's container.
        return Finding(
            check="toolkit",
            level=Level.hint if name != "nvidia-ctk" else Level.error,
            what=f"{found} does not tell its version here: {answer.said or f'status {answer.status}'}",
            why="It has to be 1.18 or newer."
            if name != "nvidia-ctk"
            else "The driver can't be brought into containers.",
            mend=f"{found} --version",
        )
    told = ".".join(map(str, version))
    if version < OLDEST:
        return Finding(
            check="toolkit",
            level=Level.error,
            what=f"{found} has version {told}, and 1.18 or newer is needed",
            why="Older ones fail on hooks that they don't know, so that containers with GPUs don't start.",
            mend="apt-get install --only-upgrade nvidia-container-toolkit  # or the like",
        )
    return Finding(check="toolkit", level=Level.ok, what=f"{found} has version {told}")


def configs_judged(accepting: list[str] | None) -> Iterator[Finding]:
    """Whether an NVIDIA runtime gives GPUs to whoever sets a variable. Pure."""
    for path in accepting or ():
        yield Finding(
            check="toolkit",
            level=Level.warning,
            what=f"{path} lets any container choose GPUs by NVIDIA_VISIBLE_DEVICES, if the NVIDIA runtime runs it",
            why="Such a container has GPUs that no claim gave it, without any limit.",
            mend="nvidia-ctk config --in-place --set accept-nvidia-visible-devices-envvar-when-unprivileged=false",
        )


def _edits(place: Place) -> Iterator[Finding]:
    """Whether the driver's edits can be had for each GPU, as a prepare would."""
    edits = driver_edits_for(place.settings, place.host, _own_hook(place))
    gpus = place.gpus()
    wrong = without_edits(edits, tuple(gpus), time.monotonic() + place.timeout)
    for uuid, reason in wrong.items():
        yield Finding(
            check="toolkit",
            level=Level.error,
            what=("" if uuid not in gpus else f"GPU {uuid}: ") + reason,
            why="Claims are refused with these words.",
            mend=f"{place.settings.nvidia_ctk} cdi generate --driver-root={place.settings.driver_root}",
        )
    if gpus and not wrong:
        what = f"--driver-edits={place.settings.driver_edits}: the driver can be brought into containers, for {len(gpus)} GPUs"
        yield Finding(check="toolkit", level=Level.ok, what=what)
