"""Whether the container runtime reads the folder of our CDI specs, seen in a /proc made of files."""

import os
from pathlib import Path

import pytest

from hami_kubeletplugin.api.errors import StorageError
from hami_kubeletplugin.health.runtimes import check_cdi_directory

SHIM, RUNTIME, OTHER = 100, 200, 300
ADDRESS = "/run/containerd/containerd.sock"


class Node:
    """A node's root directory and /proc, with the runtime that runs us."""

    def __init__(self, folder: Path) -> None:
        self.root, self.proc = folder / "root", folder / "proc"
        for path in ("run/cdi", "etc/cdi", "opt/cdi"):
            (self.root / path).mkdir(parents=True)
        (self.root / "var").mkdir()
        (self.root / "var/run").symlink_to("/run")  # of that root, not of ours
        self.cdi = self.root / "run/cdi"

    def process(self, pid: int, name: str, *words: str, mounts: str = "node's") -> None:
        """One process of the node, with the mounts that it sees."""
        folder = self.proc / str(pid)
        folder.mkdir(parents=True)
        (folder / "comm").write_text(f"{name}\n")
        (folder / "cmdline").write_bytes(b"".join(word.encode() + b"\0" for word in (name, *words)))
        (folder / "root").symlink_to(self.root)
        (folder / "ns").mkdir()
        (self.proc / mounts).touch()
        (folder / "ns/mnt").symlink_to(self.proc / mounts)

    def write(self, path: str, text: str) -> None:
        """A file of the node."""
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def check(self, directory: Path | None = None) -> str | None:
        """What is said about a folder."""
        try:
            check_cdi_directory(directory or self.cdi, proc=self.proc, parent=SHIM)
        except StorageError as error:
            return str(error)
        return None


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """Containerd runs us, with the configuration that packages have."""
    made = Node(tmp_path)
    made.process(SHIM, "containerd-shim", "-namespace", "k8s.io", "-address", ADDRESS, "-id", "x")
    made.process(RUNTIME, "containerd")
    made.write("etc/containerd/config.toml", "version = 3\n")
    return made


def section(directories: str, name: str = "io.containerd.cri.v1.runtime") -> str:
    """Containerd's section."""
    return f"[plugins.'{name}']\ncdi_spec_dirs = [{directories}]\n"


def test_the_defaults_are_read(node: Node) -> None:
    """/var/run/cdi, by whatever name, and /etc/cdi are read without a word in the configuration; another folder isn't."""
    assert node.check() is None
    assert node.check(node.root / "etc/cdi") is None
    words = node.check(node.root / "opt/cdi")
    assert words is not None
    assert f"/etc/cdi, /var/run/cdi only, and not in {node.root}/opt/cdi (--cdi-dir)" in words


@pytest.mark.parametrize("name", ["io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri"])
def test_what_the_configuration_says(node: Node, name: str) -> None:
    """Both forms of containerd's configuration are understood; a change is seen at the next look."""
    node.write("etc/containerd/config.toml", section("'/opt/cdi'", name))
    assert "containerd reads CDI specs in /opt/cdi only" in str(node.check())
    assert node.check(node.root / "opt/cdi") is None
    node.write("etc/containerd/config.toml", section("'/opt/cdi', '/var/run/cdi'", name))
    assert node.check() is None


@pytest.mark.parametrize("place", ["etc/containerd/conf.d/9.toml", "etc/containerd/more/9.toml", "etc/containerd/one"])
def test_imports(node: Node, place: str) -> None:
    """A folder that an imported file names is read."""
    imports = 'imports = ["more/*.toml", "/etc/containerd/one"]\n'
    node.write("etc/containerd/config.toml", imports + section("'/opt/cdi'"))
    assert node.check() is not None
    node.write(place, section("'/run/cdi'"))
    assert node.check() is None


def test_the_runtime_that_runs_us_counts(tmp_path: Path) -> None:
    """Of several containerds the one at whose address our shim calls, wherever its configuration is; others are not asked."""
    node = Node(tmp_path)
    node.process(SHIM, "containerd-shim", "-address", "/run/k3s/containerd.sock", "-id", "x")
    node.process(OTHER, "containerd", "--config=/etc/docker.toml")
    node.write("etc/docker.toml", section("'/etc/cdi'"))
    node.process(RUNTIME, "containerd", "-c", "/var/k3s.toml")
    assert node.check() is None  # its configuration can't be read
    node.write("var/k3s.toml", "[grpc]\naddress = '/run/k3s/containerd.sock'\n" + section("'/opt/cdi'"))
    assert "/opt/cdi only" in str(node.check())
    assert node.check(node.root / "opt/cdi") is None


def test_a_configuration_beside_the_runtime(tmp_path: Path) -> None:
    """A path in the command line may start at the working directory of the runtime."""
    node = Node(tmp_path)
    node.process(SHIM, "containerd-shim", "-address", ADDRESS)
    node.process(RUNTIME, "containerd", "--config", "containerd.toml")
    (node.proc / str(RUNTIME) / "cwd").symlink_to("/opt/node")
    node.write("opt/node/containerd.toml", section("'/opt/cdi'"))
    assert "/opt/cdi only" in str(node.check())


def test_cri_o(tmp_path: Path) -> None:
    """CRI-O's configuration and what is dropped in beside it."""
    node = Node(tmp_path)
    node.process(SHIM, "conmon", "-c", "x")
    node.process(RUNTIME, "crio")
    node.write("etc/crio/crio.conf", "[crio.runtime]\ncgroup_manager = 'systemd'\n")
    assert node.check() is None
    node.write("etc/crio/crio.conf.d/10-cdi.conf", "[crio.runtime]\ncdi_spec_dirs = ['/opt/cdi']\n")
    assert "CRI-O reads CDI specs in /opt/cdi only" in str(node.check())


@pytest.mark.parametrize("text", ["torn [", "[" * 100_000, "plugins = 3\nimports = 'x'\ngrpc = 1\n", ""])
def test_what_is_not_known_is_not_claimed(node: Node, text: str) -> None:
    """A configuration that can't be understood says nothing; nor does a daemon that no container runtime started."""
    node.write("etc/containerd/config.toml", text)
    assert node.check() is None
    node.write("etc/containerd/config.toml", section("'/opt/cdi'"))
    assert node.check() is not None
    (node.proc / str(SHIM) / "comm").write_text("bash\n")
    assert node.check() is None


def test_hostile_roots(node: Node) -> None:
    """Links that go in a circle, and a FIFO in the place of a file, neither hang nor lead out of the runtime's root."""
    (node.root / "loop").symlink_to("/loop")
    node.write("etc/containerd/config.toml", section("'/loop/../../../..', '/opt/cdi'"))
    assert node.check() is not None
    config = node.root / "etc/containerd/config.toml"
    config.unlink()
    os.mkfifo(config)
    assert node.check() is None


@pytest.mark.parametrize(
    ("ours", "name", "words"), [("containerd-shim", "containerd", ["-a", ADDRESS]), ("conmon", "crio", [])]
)
def test_a_container_that_plays_the_runtime(tmp_path: Path, ours: str, name: str, words: list[str]) -> None:
    """Any process can give itself the runtime's name and options: what its container has for a configuration is not believed."""
    node = Node(tmp_path)
    node.process(SHIM, ours, "-address", ADDRESS)
    node.write("etc/containerd/config.toml", section("'/opt/cdi'"))
    node.write("etc/crio/crio.conf", "[crio.runtime]\ncdi_spec_dirs = ['/opt/cdi']\n")
    node.process(OTHER, name, *words, mounts="a container's")
    assert node.check() is None
    node.process(RUNTIME, name, *words)
    assert node.check() is not None
