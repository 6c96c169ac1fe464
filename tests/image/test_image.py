"""The image as it comes out of the Dockerfile: run with its root read-only, by nobody, without a right. No cluster is needed."""

import hashlib
import json
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest

import hami_kubeletplugin
from tests import REPOSITORY

ARCHIVE = REPOSITORY / "tests/build/hami-dra.tar"
VERSION = hami_kubeletplugin.__version__
READ_ONLY = 'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" && exec chroot "$0" "$@"'
NOBODY = [
    "setpriv",
    "--reuid=65532",
    "--regid=65532",
    "--clear-groups",
    "--no-new-privs",
    "--bounding-set=-all",
    "--inh-caps=-all",
]


class Image:
    """What is in the archive, unpacked."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.chmod(0o755)
        with tarfile.open(ARCHIVE) as archive:
            (manifest,) = json.load(self._member(archive, "manifest.json"))
            self.names: list[str] = manifest["RepoTags"]
            self.config: dict[str, Any] = json.load(self._member(archive, manifest["Config"]))["config"]
            for layer in manifest["Layers"]:
                with tarfile.open(fileobj=self._member(archive, layer)) as content:
                    content.extractall(root, filter="fully_trusted")

    @staticmethod
    def _member(archive: tarfile.TarFile, name: str) -> Any:
        return archive.extractfile(name)

    def run(self, *command: str) -> "subprocess.CompletedProcess[str]":
        """A program in it."""
        return subprocess.run(
            ["unshare", "--mount", "sh", "-c", READ_ONLY, str(self.root), *NOBODY, *command],
            env=dict(variable.split("=", 1) for variable in self.config["Env"]),
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    def output(self, *command: str) -> str:
        """What it prints; it has to end well, and to complain of nothing."""
        done = self.run(*command)
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        return done.stdout

    @property
    def bill(self) -> dict[tuple[str, str], dict[str, Any]]:
        """Its bill of materials, by type and name."""
        found = json.loads((self.root / "usr/share/doc/hami-dra/sbom.cdx.json").read_text())
        assert (found["bomFormat"], found["specVersion"]) == ("CycloneDX", "1.6")
        references = [component["bom-ref"] for component in found["components"]]
        assert len(references) == len(set(references))
        return {(component["type"], component["name"]): component for component in found["components"]}


@pytest.fixture(scope="session")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    """Built if it is not there yet; hack/e2e does that before, outside of a test's time."""
    subprocess.run([REPOSITORY / "hack/image"], check=True, timeout=110)
    return Image(tmp_path_factory.mktemp("image"))


@pytest.mark.parametrize("program", ["hami-kubeletplugin", "hami-webhook", "kubectl-hami"])
def test_programs_run(image: Image, program: str) -> None:
    """Each says its version, and what can be said to it, with nothing that it could write or do."""
    assert image.output(program, "--version").splitlines()[0] == VERSION
    assert f"Usage: {program}" in image.output(program, "--help")


def test_it_says_what_it_was_built_from(image: Image) -> None:
    """Our commit, in `--version` and in its label, and the HAMi-core that is in it, by its digest."""
    _, commit, core = image.output("hami-kubeletplugin", "--version").splitlines()
    labels = image.config["Labels"]
    assert commit == f"commit {labels['org.opencontainers.image.revision']}"
    assert labels["org.opencontainers.image.version"] == VERSION
    assert labels["org.opencontainers.image.licenses"] == "Apache-2.0"
    assert image.names == [f"localhost/hami-dra:{VERSION}"]
    digest = hashlib.sha256((image.root / "usr/local/lib/hami/libvgpu.so").read_bytes()).hexdigest()
    assert core.endswith(f"sha256:{digest}")


def test_every_module_of_ours_can_be_imported(image: Image) -> None:
    """Nothing was taken out that one of them needs; kubectl's own, which need more packages, are not for the image."""
    script = (
        "import importlib, pkgutil, hami_kubeletplugin as ours\n"
        "for each in pkgutil.walk_packages(ours.__path__, 'hami_kubeletplugin.'):\n"
        "    if '.kubectl' not in each.name and '.people' not in each.name: importlib.import_module(each.name)\n"
        "print('all')"
    )
    assert image.output("python3", "-c", script) == "all\n"


def test_all_is_compiled(image: Image) -> None:
    """Nothing is compiled at a start, which could not keep it: what Python loads for `--help` comes from what the image has."""
    done = image.run("python3", "-v", "/opt/hami/bin/hami-kubeletplugin", "run", "--help")
    compiled = [line for line in done.stderr.splitlines() if line.startswith("# code object from") and ".pyc" in line]
    sources = [
        line for line in done.stderr.splitlines() if line.startswith("# code object from") and ".pyc" not in line
    ]
    assert len(compiled) > 200
    assert not sources


def test_nobody_can_install_into_it(image: Image) -> None:
    """No installer, of Python's packages, is in it; and it has no shell history of its own making, such as pip's cache."""
    found = [path for path in image.root.rglob("*") if path.name in {"pip", "pip3", "ensurepip", "setuptools"}]
    assert not found
    assert not list((image.root / "tmp").iterdir())


def test_its_bill_lists_what_is_there(image: Image) -> None:
    """Each Python package in its version; the toolkit's programs; HAMi-core by its digest; Debian's packages."""
    bill = image.bill
    script = "import importlib.metadata as m; print(*(f'{d.name}={d.version}' for d in m.distributions()))"
    installed = dict(each.split("=") for each in image.output("python3", "-c", script).split())
    assert installed.pop("hami-kubeletplugin") == bill["application", "hami-kubeletplugin"]["version"] == VERSION
    assert {name: bill["library", name]["version"] for name in installed} == installed
    for program in ("nvidia-ctk", "nvidia-cdi-hook"):
        assert bill["application", program]["version"] in f"v{image.output(*TOOLKIT[program], '--version')}".replace(
            "version ", "v"
        )
    (core,) = json.loads((image.root / "usr/local/lib/hami/versions.json").read_text())
    assert bill["library", "libvgpu.so"]["hashes"] == [{"alg": "SHA-256", "content": core["sha256"]}]
    assert any(component.get("purl", "").startswith("pkg:deb/debian/libc6@") for component in bill.values())
    assert (
        (image.root / "usr/share/doc/nvidia-container-toolkit/LICENSE").read_text().strip().startswith("Apache License")
    )


TOOLKIT = {"nvidia-ctk": ["nvidia-ctk"], "nvidia-cdi-hook": ["/usr/local/lib/hami/nvidia-cdi-hook"]}


def test_the_hook_needs_nothing_of_the_host(image: Image, tmp_path: Path) -> None:
    """It is static, so it runs on hosts whose glibc is older than the image's: here in a root that has nothing else."""
    hook = tmp_path / "nvidia-cdi-hook"
    hook.write_bytes((image.root / "usr/local/lib/hami/nvidia-cdi-hook").read_bytes())
    hook.chmod(0o755)
    done = subprocess.run(
        ["chroot", str(tmp_path), "/nvidia-cdi-hook", "--version"],
        capture_output=True,
        text=True,
        check=False,
        timeout=20,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "NVIDIA CDI Hook version" in done.stdout
