"""What a container got, as it sees it itself."""

from dataclasses import dataclass

from tests.e2e.cluster import Cluster
from tests.e2e.manifests import LOOK


@dataclass(frozen=True)
class Mount:
    """A line of /proc/self/mountinfo: file system, what of it is mounted, how, and of which type."""

    device: str
    source: str
    options: frozenset[str]
    kind: str


@dataclass(frozen=True)
class Inside:
    """A container from the inside.

    Attributes:
        env: Its variables.
        preload: Content of /etc/ld.so.preload.
        mounts: By mount point.
        report: What the fake of libvgpu.so said; empty if it was not loaded.
    """

    env: dict[str, str]
    preload: str
    mounts: dict[str, Mount]
    report: dict[str, str]

    @property
    def limits(self) -> list[tuple[int, int]]:
        """(MiB, percent) of each GPU as the library keeps them, in its order; percent 0 = not limited."""
        count = sum(key.startswith("memory.") for key in self.report)
        return [
            (int(self.report[f"memory.{index}"]) // 2**20, int(self.report.get(f"cores.{index}", "0")))
            for index in range(count)
        ]


def look(cluster: Cluster, pod: str, container: str = "main") -> Inside:
    """Look into a running container."""
    return read(cluster.run_in(pod, container, "sh", "-c", LOOK))


def look_cleared(cluster: Cluster, pod: str, container: str = "main") -> Inside:
    """What the library tells a process that was started without any variable."""
    text = cluster.run_in(pod, container, "env", "-i", "VGPU_REPORT=1", "sleep", "0")
    return Inside(env={}, preload="", mounts={}, report=_pairs(text.splitlines()))


def read(text: str) -> Inside:
    """Understand the output of LOOK."""
    assert "## end" in text, f"the script did not get to its end:\n{text}"
    parts: dict[str, list[str]] = {}
    for line in text.splitlines():
        if line.startswith("## "):
            lines = parts.setdefault(line[3:], [])
        else:
            lines.append(line)
    return Inside(
        env=_pairs(parts["env"]),
        preload="\n".join(parts["preload"]),
        mounts=dict(map(_mount, parts["mounts"])),
        report=_pairs(parts["report"]),
    )


def _pairs(lines: list[str]) -> dict[str, str]:
    return {key: value for key, _, value in (line.partition("=") for line in lines)}


def _mount(line: str) -> tuple[str, Mount]:
    # 36 35 98:0 /root /mountpoint rw,noatime master:1 - ext4 /dev/root rw (proc_pid_mountinfo(5))
    before, _, after = line.partition(" - ")
    _, _, device, root, point, options, *_ = before.split()
    return point, Mount(device, root, frozenset(options.split(",")), after.split()[0])
