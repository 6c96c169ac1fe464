"""The hook that CDI specs name is one that is on the host: the toolkit's, or the image's own."""

import time
from pathlib import Path

import pytest

from hami_kubeletplugin.api.errors import HardwareError, SettingsError, StorageError
from hami_kubeletplugin.api.settings import Settings
from hami_kubeletplugin.gpu.cdi_hook import FOLDERS, hook_for
from tests.unit.gpu.test_toolkit import A, Node

OWN = "/usr/local/vgpu/lib/nvidia-cdi-hook.0123456789abcdef"


def program(path: Path, mode: int = 0o755) -> None:
    """Something that can be run, if `mode` says so."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh")
    path.chmod(mode)


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_toolkit_is_found_in_its_usual_places(tmp_path: Path, folder: str) -> None:
    """As it is called on the host, wherever the daemon sees the host's root; ours is not asked for then."""
    program(tmp_path / folder[1:] / "nvidia-cdi-hook")
    assert hook_for("auto", tmp_path, lambda: pytest.fail("asked for ours"))() == f"{folder}/nvidia-cdi-hook"


def test_packages_come_before_the_operator(tmp_path: Path) -> None:
    """/usr/bin as ever, where there are several: nothing changes on nodes that have it there."""
    for folder in FOLDERS:
        program(tmp_path / folder[1:] / "nvidia-cdi-hook")
    assert hook_for("auto", tmp_path, lambda: OWN)() == "/usr/bin/nvidia-cdi-hook"


@pytest.mark.parametrize("there", ["nothing", "a folder", "not executable"])
def test_a_node_without_the_toolkit_gets_ours(tmp_path: Path, there: str) -> None:
    """What can't be run counts as nothing."""
    path = tmp_path / "usr/bin/nvidia-cdi-hook"
    if there == "a folder":
        path.mkdir(parents=True)
    elif there == "not executable":
        program(path, 0o644)
    assert hook_for("auto", tmp_path, lambda: OWN)() == OWN


def test_a_link_is_the_hosts_matter(tmp_path: Path) -> None:
    """Where it leads to may not be seen here, as on NixOS."""
    path = tmp_path / "usr/bin/nvidia-cdi-hook"
    path.parent.mkdir(parents=True)
    path.symlink_to("/run/current-system/sw/bin/nvidia-cdi-hook")
    assert hook_for("auto", tmp_path, lambda: OWN)() == "/usr/bin/nvidia-cdi-hook"


def test_what_is_chosen_is_taken(tmp_path: Path) -> None:
    """`own` whatever there is, as where the toolkit is too old; a path as it is."""
    program(tmp_path / "usr/bin/nvidia-cdi-hook")
    assert hook_for("own", tmp_path, lambda: OWN)() == OWN
    assert hook_for("/opt/nvidia/hook", tmp_path, lambda: OWN)() == "/opt/nvidia/hook"


def test_without_any_the_claim_is_refused(tmp_path: Path) -> None:
    """The message says where was looked, why ours is none, and what to do; no pod starts to fail in the runtime."""

    def own() -> str:
        raise StorageError("there is no nvidia-cdi-hook at /x; install the NVIDIA Container Toolkit")

    with pytest.raises(HardwareError, match=r"in none of /usr/bin, .* on the host, and there is no .* install the"):
        hook_for("auto", tmp_path, own)()


def test_a_bad_choice_is_refused() -> None:
    """A name without its folder is none that a container runtime could run."""
    with pytest.raises(SettingsError, match="--nvidia-cdi-hook"):
        Settings.checked(node_name="node", nvidia_cdi_hook="nvidia-cdi-hook")


async def test_a_toolkit_that_comes_is_taken(tmp_path: Path) -> None:
    """nvidia-ctk is run again with the hook that is there now, and not while it stays the same."""
    node = Node(tmp_path)
    hook = ["/usr/bin/nvidia-cdi-hook"]
    edits = node.source(hook=lambda: hook[0])
    for _ in range(2):
        edits.edits([A], deadline=time.monotonic() + 30)
    hook[0] = OWN
    edits.edits([A], deadline=time.monotonic() + 30)
    first, second = node.runs
    assert "--nvidia-cdi-hook-path=/usr/bin/nvidia-cdi-hook" in first
    assert f"--nvidia-cdi-hook-path={OWN}" in second
