"""The real nvidia-ctk describes a driver of files and device nodes, and the real hooks run in a real container.

Needs root for device nodes, and Go to build the two programs once; they are kept in ~/.cache/hami-dra-tools.
"""

import asyncio
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hami_kubeletplugin.api.cdi import ContainerEdits
from hami_kubeletplugin.api.errors import HardwareError
from hami_kubeletplugin.gpu.edits import DriverEdits
from tests.unit.gpu.driver_files import DRIVER, LIBRARIES, A, B, C, Driver, need
from tests.unit.gpu.edits import edits_of

pytestmark = pytest.mark.timeout(600)  # the first run builds


def device_nodes(edits: ContainerEdits) -> dict[str, str]:
    """Path in the container and on the host."""
    return {node["path"]: node.get("hostPath", node["path"]) for node in edits.get("deviceNodes", ())}


async def test_each_gpu_gets_its_own_node_and_all_get_the_driver(driver: Driver) -> None:
    """Exactly the GPUs asked for, each with its node; control nodes, libraries and hooks once; nothing above CDI 0.5.0."""
    edits = await edits_of(driver.edits(), [C, A])
    assert {uuid: device_nodes(gpu) for uuid, gpu in edits.per_gpu.items()} == {
        A: {"/dev/nvidia0": f"{driver.root}/dev/nvidia0"},
        C: {"/dev/nvidia2": f"{driver.root}/dev/nvidia2"},
    }
    assert set(device_nodes(edits.common)) == {"/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"}
    mounts = {mount["containerPath"]: mount["hostPath"] for mount in edits.common["mounts"]}
    for path in (f"/{LIBRARIES}/libcuda.so.{DRIVER}", f"/{LIBRARIES}/libnvidia-ml.so.{DRIVER}", "/usr/bin/nvidia-smi"):
        assert mounts[path] == f"{driver.root}{path}"
    assert {hook["args"][1] for hook in edits.common["hooks"]} >= {"create-symlinks", "update-ldcache"}
    text = json.dumps([edits.common, *edits.per_gpu.values()])
    for gone in ("NVIDIA_VISIBLE_DEVICES", "additionalGids", "major", "minor"):
        assert f'"{gone}' not in text


async def test_a_lost_gpu_leaves_the_others_usable(driver: Driver, node: Any, gpu_lines: Callable[..., str]) -> None:
    """nvidia-ctk gives up on the whole node for one GPU that fell off the bus; the other GPUs are still served."""
    node.write(gpu_lines(0), gpu_lines(1, "fail nvmlDeviceGetUUID 15"), gpu_lines(2), driver=DRIVER)
    source = driver.edits()
    assert set((await edits_of(source, [A, C])).per_gpu) == {A, C}
    with pytest.raises(HardwareError, match="nvidia-ctk failed"):
        await edits_of(source, [B])


async def test_late_device_nodes_are_waited_for(driver: Driver) -> None:
    """nvidia-ctk succeeds without the node of a GPU; we name it, and serve the GPU once it is there."""
    source = driver.edits()
    (driver.root / "dev/nvidia1").unlink()
    with pytest.raises(HardwareError, match=f"device node /dev/nvidia<minor> of GPU {B} is missing"):
        await edits_of(source, [B])
    driver.make_node("nvidia1", 195, 1)
    assert device_nodes((await edits_of(source, [B])).per_gpu[B]) == {"/dev/nvidia1": f"{driver.root}/dev/nvidia1"}


async def test_a_driver_that_is_not_loaded_is_said(driver: Driver, node: Any) -> None:
    """NVML_ERROR_DRIVER_NOT_LOADED ends in a clear error with the toolkit's own words."""
    node.write("fail nvmlInitWithFlags 9", driver=DRIVER)
    with pytest.raises(HardwareError, match=r"nvidia-ctk failed with status 1: .*NVML.*Is the driver loaded"):
        await edits_of(driver.edits(), [A])


async def test_an_updated_driver_is_seen(driver: Driver, node: Any, gpu_lines: Callable[..., str]) -> None:
    """After the libraries were replaced by another version, containers get the new ones."""
    source = driver.edits()
    await edits_of(source, [A])
    for link in [path for path in (driver.root / LIBRARIES).iterdir() if path.is_symlink()]:
        new = link.name.removesuffix("1") + "560.1"
        link.resolve().rename(link.with_name(new))
        link.unlink()
        link.symlink_to(new)
    node.write(gpu_lines(0), driver="560.1")
    mounts = [mount["containerPath"] for mount in (await edits_of(source, [A])).common["mounts"]]
    assert f"/{LIBRARIES}/libcuda.so.560.1" in mounts
    assert not any(DRIVER in path for path in mounts)


PROBE = r"""
#include <dlfcn.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

int main(void)
{
    static const char *const paths[] = {"/dev/nvidia0", "/dev/nvidia1", "/dev/nvidia2", "/dev/nvidiactl", "/dev/nvidia-uvm"};
    for (int i = 0; i < 5; i++) {
        struct stat found;
        if (stat(paths[i], &found) == 0)
            printf("%s %u:%u\n", paths[i], major(found.st_rdev), minor(found.st_rdev));
    }
    const char *const libraries[] = {"libcuda.so.1", "libnvidia-ml.so.1"};
    for (int i = 0; i < 2; i++)
        printf("%s %s\n", libraries[i], dlopen(libraries[i], RTLD_NOW) ? "loads" : dlerror());
    return 0;
}
"""


async def test_a_container_with_the_edits_finds_its_driver(driver: Driver, tmp_path: Path) -> None:
    """The real hooks, run by runc: the libraries load by the names that programs use, and only the claim's GPU is there."""
    need(shutil.which("runc"), "runc")
    edits = await edits_of(driver.edits(), [B])
    printed = await asyncio.to_thread(run_probe, edits, tmp_path / "bundle")
    assert printed.splitlines() == [
        "/dev/nvidia1 195:1",
        "/dev/nvidiactl 195:255",
        "/dev/nvidia-uvm 510:0",
        "libcuda.so.1 loads",
        "libnvidia-ml.so.1 loads",
    ]


def run_probe(edits: DriverEdits, bundle: Path) -> str:
    """What the probe prints in a container that has nothing but it, its C library and the edits."""
    rootfs, probe = bundle / "rootfs", bundle / "rootfs/usr/bin/probe"
    probe.parent.mkdir(parents=True)
    (rootfs / "etc").mkdir()
    (bundle / "probe.c").write_text(PROBE)
    subprocess.run(["gcc", "-o", probe, bundle / "probe.c", "-ldl"], check=True, timeout=60)
    listing = subprocess.run(["ldd", probe], check=True, capture_output=True, text=True, timeout=60).stdout
    for library in {word for word in listing.split() if word.startswith("/")}:
        (rootfs / library[1:]).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(library, rootfs / library[1:])
    (bundle / "config.json").write_text(json.dumps(oci_config(edits, ["/usr/bin/probe"])))
    words = ["--root", bundle / "state", "run", "--bundle", bundle, f"hami-edits-{os.getpid()}"]
    command = ["runc", *map(str, words)]
    result = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    return result.stdout


def oci_config(edits: DriverEdits, arguments: list[str]) -> dict[str, Any]:
    """A runtime spec with all the edits applied as a CDI runtime does it."""
    every = [edits.common, *edits.per_gpu.values()]
    devices = [
        {"path": path, "type": "c", "major": os.major(number), "minor": os.minor(number), "fileMode": 0o666}
        for each in every
        for path, host_path in device_nodes(each).items()
        for number in [os.stat(host_path).st_rdev]
    ]
    hooks: dict[str, list[dict[str, Any]]] = {}
    for hook in (hook for each in every for hook in each.get("hooks", ())):
        hooks.setdefault(hook["hookName"], []).append({key: hook[key] for key in ("path", "args", "env")})
    mounts = [
        {
            "destination": mount["containerPath"],
            "source": mount["hostPath"],
            "type": "bind",
            "options": mount["options"],
        }
        for each in every
        for mount in each.get("mounts", ())
    ]
    standard = [
        {"destination": "/proc", "type": "proc", "source": "proc"},
        {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"]},
    ]
    return {
        "ociVersion": "1.0.2",
        "root": {"path": "rootfs"},
        "process": {
            "args": arguments,
            "cwd": "/",
            "env": ["PATH=/usr/bin", *edits.common.get("env", ())],
            "user": {"uid": 0, "gid": 0},
        },
        "mounts": [*standard, *mounts],
        "hooks": hooks,
        "linux": {"devices": devices, "namespaces": [{"type": kind} for kind in ("pid", "mount", "ipc", "uts")]},
    }
