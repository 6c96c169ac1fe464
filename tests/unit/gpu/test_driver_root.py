"""What daemonset.yaml mounts of the host is enough for the real nvidia-ctk; needs what that needs."""

import subprocess
from collections.abc import Callable
from pathlib import Path, PurePosixPath

import pytest

from hami_kubeletplugin.gpu.nvml import library_below
from tests.unit.gpu.driver_files import DRIVER, LIBRARIES, A, Driver, as_mounted
from tests.unit.gpu.edits import edits_of

pytestmark = pytest.mark.timeout(600)  # the first run builds


def as_debian(root: Path) -> None:
    """Libraries aside, and links to them by way of /etc/alternatives."""
    current, alternatives = root / LIBRARIES / "nvidia/current", root / "etc/alternatives"
    alternatives.mkdir(parents=True)
    current.mkdir(parents=True)
    for path in [path for path in (root / LIBRARIES).iterdir() if path.name.startswith("lib")]:
        path.rename(current / path.name)
        (alternatives / f"nvidia--{path.name}").symlink_to(f"/{LIBRARIES}/nvidia/current/{path.name}")
        path.symlink_to(f"/etc/alternatives/nvidia--{path.name}")


def as_red_hat(root: Path) -> None:
    """Libraries in /usr/lib64."""
    (root / LIBRARIES).rename(root / "usr/lib64")


def as_arch(root: Path) -> None:
    """Libraries in /usr/lib, where nvidia-ctk finds them by /etc/ld.so.cache only."""
    for path in (root / LIBRARIES).iterdir():
        path.rename(root / "usr/lib" / path.name)
    (root / "etc").mkdir()
    (root / "etc/ld.so.conf").write_text("/usr/lib\n")
    subprocess.run(["ldconfig", "-r", root], check=True, timeout=30)


@pytest.mark.parametrize("folder", [".", "run/nvidia/driver"], ids=["on the host", "GPU operator"])
@pytest.mark.parametrize("arranged", [None, as_debian, as_red_hat, as_arch], ids=["Ubuntu", "Debian", "RHEL", "Arch"])
async def test_what_the_daemon_sees_of_the_host_is_enough(
    driver: Driver, tmp_path: Path, folder: str, arranged: Callable[[Path], None] | None
) -> None:
    """From the mounts of daemonset.yaml containers get the same as from the whole root, and NVML is found; homes aren't seen."""
    if arranged:
        arranged(driver.root)
    for path in ("home/me/x", f"usr/lib/firmware/nvidia/{DRIVER}/gsp_ga10x.bin", "etc/vulkan/icd.d/nvidia_icd.json"):
        (driver.root / path).parent.mkdir(parents=True, exist_ok=True)
        (driver.root / path).touch()
    (driver.root / "lib").symlink_to("usr/lib")
    for name in ("persistenced", "fabricmanager"):
        (driver.root / f"run/nvidia-{name}").mkdir(parents=True)
        (driver.root / f"run/nvidia-{name}/socket").touch()
    host, seen = tmp_path / "host", tmp_path / "seen"
    (host / folder).parent.mkdir(parents=True, exist_ok=True)
    driver.root.rename(host / folder)
    seen.mkdir()
    as_mounted(host, seen)
    whole = await edits_of(driver.edits(driver_root=host / folder, host_driver_root=Path("/on-host")), [A])
    # Its own /dev, which is the host's, is where nvidia-ctk looks for nodes.
    if not (seen / folder / "dev").exists():
        (seen / folder / "dev").symlink_to(host / "dev")
    assert await edits_of(driver.edits(driver_root=seen / folder, host_driver_root=Path("/on-host")), [A]) == whole
    brought = {PurePosixPath(mount["hostPath"]).name for mount in whole.common["mounts"]}
    assert {f"libcuda.so.{DRIVER}", "gsp_ga10x.bin", "nvidia_icd.json", "nvidia-smi", "socket"} <= brought
    library = library_below(seen / folder)
    assert library is not None
    assert (
        library.resolve().read_bytes()
        == (host / folder).joinpath(*library.relative_to(seen / folder).parts).read_bytes()
    )
    assert not [*seen.glob("home*"), *seen.glob("var*")]
