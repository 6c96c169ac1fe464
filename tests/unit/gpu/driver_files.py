"""A driver of files and device nodes for the real nvidia-ctk, and what the daemon sees of it at /driver-root."""

import os
import re
import shutil
import stat
import subprocess
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import yaml

from hami_kubeletplugin.gpu.toolkit import ToolkitDriverEdits
from tests import REPOSITORY

DRIVER = "550.54.15"
LIBRARIES = f"usr/lib/{os.uname().machine}-linux-gnu"
A, B, C = (f"GPU-00000000-0000-0000-0000-{minor:012d}" for minor in range(3))
DRIVER_ROOT = PurePosixPath("/driver-root")


def need(there: object, what: str) -> None:
    """Leave the test out, saying why; in CI everything has to be there."""
    if not there:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(f"needs {what}")


class Driver:
    """An installed driver: libraries, a program and device nodes below a root of its own."""

    def __init__(self, root: Path, nvml: Path, tools: Path) -> None:
        self.root, self._tools = root, tools
        libraries = root / LIBRARIES
        for folder in (libraries, root / "dev", root / "usr/bin"):
            folder.mkdir(parents=True)
        source = root / "empty.c"
        source.write_text("int driver;\n")
        for name in ("libcuda", "libnvidia-ptxjitcompiler"):
            versioned = libraries / f"{name}.so.{DRIVER}"
            subprocess.run(
                ["gcc", "-shared", f"-Wl,-soname,{name}.so.1", "-o", versioned, source], check=True, timeout=60
            )
        shutil.copy(nvml, libraries / f"libnvidia-ml.so.{DRIVER}")
        for name in ("libcuda", "libnvidia-ptxjitcompiler", "libnvidia-ml"):
            (libraries / f"{name}.so.1").symlink_to(f"{name}.so.{DRIVER}")
        shutil.copy("/bin/true", root / "usr/bin/nvidia-smi")
        for name, major, minor in (("nvidiactl", 195, 255), ("nvidia-uvm", 510, 0), ("nvidia-uvm-tools", 510, 1)):
            self.make_node(name, major, minor)
        for minor in range(3):
            self.make_node(f"nvidia{minor}", 195, minor)

    def make_node(self, name: str, major: int, minor: int) -> None:
        """As nvidia-modprobe does it."""
        os.mknod(self.root / "dev" / name, 0o666 | stat.S_IFCHR, os.makedev(major, minor))

    def edits(self, **options: Any) -> ToolkitDriverEdits:
        """The daemon's source."""
        programs: dict[str, Any] = {
            "toolkit": str(self._tools / "nvidia-ctk"),
            "hook": lambda: str(self._tools / "nvidia-cdi-hook"),
        }
        return ToolkitDriverEdits(**(programs | {"driver_root": self.root} | options))


def as_mounted(host: Path, seen: Path) -> None:
    """Copy of a host what daemonset.yaml mounts there, and only that, to where the image has a link.

    Args:
        host: Its root.
        seen: An empty folder, as the image's.
    """
    objects = yaml.safe_load_all((REPOSITORY / "daemonset.yaml").read_text())
    (spec,) = (item["spec"]["template"]["spec"] for item in objects if item["kind"] == "DaemonSet")
    paths = {volume["name"]: volume["hostPath"]["path"] for volume in spec["volumes"] if "hostPath" in volume}
    for target, name in re.findall(r"ln -s (\S+) /driver-root/(\S+)", (REPOSITORY / "Dockerfile").read_text()):
        (seen / name).symlink_to(target)
    for mount in spec["containers"][0]["volumeMounts"]:
        point = PurePosixPath(mount["mountPath"])
        if point.is_relative_to(DRIVER_ROOT):
            there, here = host / paths[mount["name"]].lstrip("/"), seen / point.relative_to(DRIVER_ROOT)
            here.parent.mkdir(parents=True, exist_ok=True)
            if there.exists():
                subprocess.run(["cp", "-a", there, here], check=True, timeout=30)
