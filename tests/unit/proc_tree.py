"""A `/proc` made of files: a daemon with `/usr/local/vgpu` mounted from the host, and processes of containers."""

import os
import shutil
from pathlib import Path

HAMI = Path("/usr/local/vgpu")
DAEMON = 900
OTHER_MAPS = "7f00-7f01 r-xp 00000000 08:01 77 /usr/lib/libc.so.6\n"
INSTALLED = f"{HAMI}/lib/libvgpu.so.0123456789abcdef"
DAEMON_MAPS = f"{OTHER_MAPS}7f10-7f20 r--p 00000000 08:01 42    {INSTALLED}\n"
"""The library, and the kernel's name of it, as the daemon finds it out by mapping it."""
LIBRARY_MAPS = (
    f"{OTHER_MAPS}7f10-7f20 r-xp 00000000 08:01 42 /usr/local/vgpu/libvgpu.so\n7ffd-7ffe rw-p 0 00:00 0 [stack]\n"
)


class ProcTree:
    """What `processes.look` reads of procfs."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.add(DAEMON, "mnt:[1]", f"50 40 8:1 {HAMI} {HAMI} rw - ext4 /dev/sda1 rw\n", name="hami-kubeletplu")
        self.maps(DAEMON, DAEMON_MAPS)
        (root / "self").symlink_to(str(DAEMON))
        (root / "meminfo").write_text("")

    def add(
        self,
        pid: int,
        namespace: str,
        mounts: str = "",
        *,
        maps: str = OTHER_MAPS,
        started: int | None = None,
        name: str = "sh",
        root: str = "/",
        cgroup: str = "/system.slice/x.service",
    ) -> None:
        """A process; `mounts` are lines of its mountinfo besides its root's."""
        folder = self.root / str(pid)
        (folder / "ns").mkdir(parents=True)
        (folder / "ns/mnt").symlink_to(namespace)
        (folder / "root").symlink_to(root)
        (folder / "mountinfo").write_text(f"40 30 0:7 / / rw,relatime - overlay overlay rw\n{mounts}")
        (folder / "maps").write_text(maps)
        (folder / "cgroup").write_text(f"0::{cgroup}\n")
        (folder / "stat").write_text(
            f"{pid} ({name}) S {' '.join(['0'] * 18)} {pid if started is None else started} 0 0\n"
        )

    def container(self, pid: int, uid: str, use: str = "use-0", *, namespace: str = "", maps: str = OTHER_MAPS) -> None:
        """The first process of a container with a region."""
        mount = f"60 40 8:1 {HAMI}/cache/{uid}/{use}.region /tmp/cudevshr.cache rw - ext4 /dev/sda1 rw\n"
        self.add(pid, namespace or f"mnt:[{pid}]", mount, maps=maps)

    def maps(self, pid: int, maps: str) -> None:
        """Change what a process has mapped."""
        (self.root / str(pid) / "maps").write_text(maps)

    def end(self, pid: int) -> None:
        """A process is gone."""
        shutil.rmtree(self.root / str(pid))


def is_root() -> bool:
    """Whether name spaces can be made here."""
    return os.geteuid() == 0
