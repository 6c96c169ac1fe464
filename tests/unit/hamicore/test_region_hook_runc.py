"""The hook in a real container's life: before the first process, on the host, and its word is final."""

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.unit.hamicore.hook import CLAIM, CRIO, HOLDERS, POD, Use, content, process

INSIDE = "/tmp/cudevshr.cache"
LOOK = r"""
#include <stdio.h>

int main(int count, char **words) {
    FILE *file = fopen(words[1], "r+");
    int c;
    if (file == NULL) return 9;
    if (count > 2) return fputs(words[2], file) < 0 || fclose(file) != 0;
    while ((c = getc(file)) != EOF) putchar(c);
    return fflush(stdout) != 0;
}
"""


def need(there: object, what: str) -> None:
    """Leave the test out, saying why; in CI everything has to be there."""
    if not there:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(f"needs {what}")


class Container:
    """A use of a claim as containerd would make a container of it; one program, statically linked, is all of its image."""

    def __init__(self, folder: Path, use: Use) -> None:
        self.use, self._folder = use, folder
        self._runs = 0
        (folder / "rootfs/bin").mkdir(parents=True)
        for name in ("proc", "tmp"):
            (folder / "rootfs" / name).mkdir()
        (folder / "look.c").write_text(LOOK)
        subprocess.run(["gcc", "-static", "-o", "rootfs/bin/look", "look.c"], cwd=folder, check=True, timeout=60)

    def run(self, *words: str, pods: Sequence[str] = (POD,)) -> "subprocess.CompletedProcess[bytes]":
        """Start it, with the same files each time: it prints the region as its first process finds it, or writes a word there."""
        self._runs += 1
        self._folder.joinpath("config.json").write_text(json.dumps(self._config(["/bin/look", INSIDE, *words], pods)))
        name = f"hami-region-{os.getpid()}-{self._runs}"
        command = ["runc", "--root", str(self._folder / "state"), "run", "--bundle", str(self._folder), name]
        return subprocess.run(command, check=False, capture_output=True, timeout=60)

    def _config(self, arguments: list[str], pods: Sequence[str]) -> dict[str, Any]:
        hook = {"path": str(self.use.program), "args": self.use.arguments(*pods), "env": ["PATH="], "timeout": 10}
        region = {"destination": INSIDE, "source": str(self.use.region), "type": "bind", "options": ["bind", "rw"]}
        return {
            "ociVersion": "1.0.2",
            "root": {"path": "rootfs", "readonly": False},
            "process": {"args": arguments, "cwd": "/", "env": ["LD_PRELOAD=/x"], "user": {"uid": 65534, "gid": 65534}},
            "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"}, region],
            "hooks": {"createRuntime": [hook]},
            "annotations": {CRIO: POD},
            "linux": {"namespaces": [{"type": kind} for kind in ("pid", "mount", "ipc", "uts")]},
        }


@pytest.fixture
def container(native: Path, tmp_path: Path) -> Container:
    """Nothing of it runs yet."""
    need(os.geteuid() == 0, "root, to start containers")
    need(shutil.which("runc"), "runc")
    return Container(tmp_path / "bundle", Use(tmp_path, native / "hami-region-hook"))


def test_the_first_process_finds_it_pristine(container: Container) -> None:
    """At the first start and at each restart, whatever the one before wrote, as any user and through the mount of that start."""
    pristine = content(container.use.made)
    for _ in range(2):
        found = container.run()
        assert (found.returncode, found.stderr) == (0, b"")
        assert found.stdout == pristine
        assert container.run("limits that I like better").returncode == 0
        assert container.use.region.read_bytes().startswith(b"limits that I like better")


def test_a_refusal_ends_the_start_with_its_reason(container: Container) -> None:
    """The runtime's error, which the kubelet shows at the pod, has the whole line; the container's program never ran."""
    with process(HOLDERS["mapped for writing"], container.use.region):
        refused = container.run("was here")
        assert refused.returncode != 0
        for part in (CLAIM, str(container.use.region), "starts after its end"):
            assert part in refused.stderr.decode()
        assert b"was here" not in container.use.region.read_bytes()
    assert container.run().returncode == 0


def test_another_pod_is_refused(container: Container) -> None:
    """The runtime passes its annotations on to the hook."""
    refused = container.run(pods=["00000000-0000-0000-0000-000000000000"])
    assert refused.returncode != 0
    assert f"another pod than this one with UID {POD}" in refused.stderr.decode()
