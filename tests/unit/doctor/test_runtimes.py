"""What the doctor says of the container runtime and CDI."""

import os
from pathlib import Path

import pytest

from hami_kubeletplugin.doctor import runtimes
from hami_kubeletplugin.doctor.place import Place
from hami_kubeletplugin.findings import Finding, Level
from tests.unit.doctor.objects import place, worst


def configured(root: Path, text: str | None, path: str = "/etc/containerd/config.toml") -> Place:
    """A node where containerd has this configuration and isn't seen running."""
    here = place(root)
    if text is not None:
        file = root / f"host{path}"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    (root / f"host{root}").mkdir(parents=True)
    (root / f"host{root}/cdi").symlink_to(root / "cdi")
    return here


def of(root: Path, text: str | None, **more: str) -> list[Finding]:
    """What is found then."""
    return list(runtimes.cdi(configured(root, text, **more)))


V2 = '[plugins."io.containerd.grpc.v1.cri"]\n'
V3 = "version = 3\n[plugins.'io.containerd.cri.v1.runtime']\n"


@pytest.mark.parametrize("section", [V2 + "enable_cdi = true\n", V3])
def test_a_runtime_that_reads_our_folder(tmp_path: Path, section: str) -> None:
    """In both versions of containerd's configuration; in version 3 CDI is on by itself."""
    (found,) = of(tmp_path, f"{section}cdi_spec_dirs = ['{tmp_path}/cdi']\n")
    assert found.level is Level.hint  # the file says so; nobody runs
    assert "CDI on" in found.what


@pytest.mark.parametrize("section", [V2 + "enable_cdi = true\n", V3])
def test_a_runtime_that_reads_other_folders(tmp_path: Path, section: str) -> None:
    """Is an error that names both, the file to change, and the restart."""
    found = worst(of(tmp_path, f"{section}cdi_spec_dirs = ['/etc/cdi']\n"))
    assert found.level is Level.error
    assert "reads CDI specs in /etc/cdi only" in found.what
    assert "/etc/containerd/config.toml" in found.mend
    assert found.mend.endswith("systemctl restart containerd")


def test_cdi_that_is_switched_off(tmp_path: Path) -> None:
    """Whatever the version."""
    found = worst(of(tmp_path, f"{V3}enable_cdi = false\ncdi_spec_dirs = ['{tmp_path}/cdi']\n"))
    assert "CDI switched off" in found.what


def test_an_old_configuration_that_says_nothing(tmp_path: Path) -> None:
    """Depends on the version, which a file doesn't tell; where it is known it decides."""
    here = configured(tmp_path, f"{V2}cdi_spec_dirs = ['{tmp_path}/cdi']\n")
    assert worst(runtimes.cdi(here)).level is Level.unknown
    (seen,) = runtimes.runtimes(here)
    files, config = seen.files, seen.config

    def with_version(*version: int) -> Level:
        runtime = runtimes.Runtime("containerd", config, files, there=True, version=(version[0], version[1]))
        return next(runtimes.judged(runtime, tmp_path / "cdi", lambda _: True)).level

    assert [with_version(1, 7), with_version(2, 0)] == [Level.error, Level.ok]


def test_imported_files_count(tmp_path: Path) -> None:
    """As containerd reads them: k3s and others say it there."""
    extra = tmp_path / "host/etc/containerd/more.d/cdi.toml"
    extra.parent.mkdir(parents=True)
    extra.write_text(f"{V3}cdi_spec_dirs = ['{tmp_path}/cdi']\n")
    (found,) = of(tmp_path, "version = 3\nimports = ['more.d/*.toml']\n")
    assert found.level is Level.hint


@pytest.mark.parametrize("path", runtimes.PLACES)
def test_distributions_have_it_elsewhere(tmp_path: Path, path: str) -> None:
    """Each of the usual places is looked at."""
    (found,) = of(tmp_path, f"{V3}cdi_spec_dirs = ['{tmp_path}/cdi']\n", path=path)
    assert path in found.what


def test_crio(tmp_path: Path) -> None:
    """Its folder of files counts, and it has no switch."""
    here = configured(tmp_path, "[crio.runtime]\n", path="/etc/crio/crio.conf")
    assert (
        "CRI-O (/etc/crio/crio.conf) reads CDI specs in /etc/cdi, /var/run/cdi only" in worst(runtimes.cdi(here)).what
    )
    (tmp_path / "host/etc/crio/crio.conf.d").mkdir()
    (tmp_path / "host/etc/crio/crio.conf.d/10.conf").write_text(f"[crio.runtime]\ncdi_spec_dirs = ['{tmp_path}/cdi']\n")
    assert [each.level for each in runtimes.cdi(here)] == [Level.hint]


@pytest.mark.parametrize("text", [None, "not toml at all ="])
def test_what_can_not_be_known_is_said(tmp_path: Path, text: str | None) -> None:
    """No runtime, or a file that nobody understands: not known, with what to look at."""
    found = worst(of(tmp_path, text))
    assert found.level is Level.unknown
    assert found.mend


def test_the_runtime_that_runs_is_asked_for_its_version(tmp_path: Path) -> None:
    """By the program of its own process; a process of a container that is called like it does not count."""
    here = configured(tmp_path, f"{V2}cdi_spec_dirs = ['{tmp_path}/cdi']\n", path="/elsewhere.toml")
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\necho containerd x v1.7.27 abc\n")
    program.chmod(0o755)
    (tmp_path / "proc/1/ns").mkdir()
    (tmp_path / "proc/1/ns/mnt").touch()
    for pid, mounts in ((7, "proc/1/ns/mnt"), (8, "theirs")):
        (tmp_path / "theirs").touch()
        folder = tmp_path / f"proc/{pid}"
        (folder / "ns").mkdir(parents=True)
        os.link(tmp_path / mounts, folder / "ns/mnt")
        (folder / "comm").write_text("containerd\n")
        (folder / "cmdline").write_bytes(b"containerd\0-c\0/elsewhere.toml\0")
        (folder / "exe").symlink_to(program)
    (runtime,) = runtimes.runtimes(here)
    assert (runtime.config, runtime.version) == ("/elsewhere.toml", (1, 7))
    assert "switched off" in worst(runtimes.cdi(here)).what


def test_in_a_pod_files_are_read_where_the_runtime_reads_them(tmp_path: Path) -> None:
    """Of the host's root the pod has parts only. The runtime is known by the mounts of the shim that started us."""
    here = configured(tmp_path, None)
    shim, folder, root = tmp_path / f"proc/{os.getppid()}", tmp_path / "proc/7", tmp_path / "root"
    for each in (shim, folder):
        (each / "ns").mkdir(parents=True)
    (shim / "ns/mnt").touch()
    os.link(shim / "ns/mnt", folder / "ns/mnt")
    (folder / "comm").write_text("containerd\n")
    (folder / "cmdline").write_bytes(b"containerd\0-c\0/var/lib/rancher/c.toml\0")
    (folder / "root").symlink_to(root)
    (root / "var/lib/rancher").mkdir(parents=True)
    (root / "specs").symlink_to(tmp_path / "cdi")
    config = root / "var/lib/rancher/c.toml"
    config.write_text(f"{V3}cdi_spec_dirs = ['/elsewhere']\n")
    assert "reads CDI specs in /elsewhere only" in worst(runtimes.cdi(here)).what
    config.write_text(f"{V3}cdi_spec_dirs = ['{tmp_path}/cdi']\n")
    assert [each.level for each in runtimes.cdi(here)] == [Level.ok]


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    """No claim could be prepared, so it is an error that says how to make it."""
    assert worst(runtimes.folder_judged(tmp_path / "none")).mend == f"mkdir -p {tmp_path}/none"
