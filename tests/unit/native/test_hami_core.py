"""What can be said of our patches for HAMi-core, and of hack/hami-core, without HAMi-core's source.

Left out, since the source is not kept here: that the patches apply, that the library compiles, and that limits hold with it.
`hack/hami-core SOURCE` shows these, by hand: CONTRIBUTING.md says when.
"""

import re
import subprocess
from pathlib import Path

import pytest

from hami_kubeletplugin.hamicore.versions import Release
from tests import REPOSITORY

FOLDER = REPOSITORY / "native/hami-core"
BUILD = FOLDER / "build"
RUN = REPOSITORY / "hack/hami-core"
PATCHES = sorted(FOLDER.glob("*.patch"))
UUIDS = ("GPU-1a2b3c4d-0000-4000-8000-000000000001", "GPU-1a2b9f00-0000-4000-8000-000000000002")


def call(*words: object) -> tuple[int, str]:
    """Status and stderr."""
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False, timeout=60)
    return done.returncode, done.stderr


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.name)
def test_a_patch_is_whole_and_says_why(patch: Path) -> None:
    """Git can read it, it changes HAMi-core's sources only, and its head is a message that can be offered as it is."""
    done = subprocess.run(["git", "apply", "--numstat", patch], capture_output=True, text=True, check=True, timeout=30)
    changed = [line.split("\t")[2] for line in done.stdout.splitlines()]
    assert changed
    assert all(name.startswith("src/") for name in changed)
    head = patch.read_text().partition("\n---\n")[0]
    assert head.isascii()
    subject, reason = re.sub(r"\n ", " ", head).split("\n\n", 1)
    assert re.search(r"^Subject: \[PATCH \d/\d\] fix: ", subject, re.MULTILINE)
    assert len(reason) > 200


def test_the_driver_knows_the_patches_that_are_built() -> None:
    """The number that the build writes into versions.json is one that promises the right GPU's limit."""
    (name,) = re.findall(r"^layout=1\.2\npatch=(\S+)", BUILD.read_text(), re.MULTILINE)
    assert Release("", "1", None, name).maps_gpus
    assert PATCHES


def headers(folder: Path) -> Path:
    """A folder that looks as if they were in it."""
    for name in ("cuda.h", "nvml.h"):
        (folder / name).touch()
    return folder


@pytest.mark.parametrize("words", [(), ("a", "b"), ("--patched", "a", "b", "c"), ("a", "b", "c", "d")])
def test_the_build_says_how_it_is_called(words: tuple[str, ...]) -> None:
    """With too few words, too many, or an option that it doesn't have."""
    status, said = call(BUILD, *words)
    assert status == 2
    assert "build [--unpatched] SOURCE HEADERS OUT" in said


def test_the_build_wants_headers(tmp_path: Path) -> None:
    """Which, and where they come from."""
    status, said = call(BUILD, tmp_path, tmp_path, tmp_path / "out")
    assert status == 1
    assert f"{tmp_path} has no cuda.h" in said
    assert "requirements/headers.txt" in said


def test_the_build_wants_the_source_that_is_known(tmp_path: Path) -> None:
    """No source, another one, a repository without the commit: each is refused with what is wanted, and nothing is written."""
    known = headers(tmp_path)
    status, said = call(BUILD, tmp_path, known, tmp_path / "out")
    assert status == 1
    assert "there is no src/ in it; git clone https://github.com/Project-HAMi/HAMi-core" in said
    (tmp_path / "src").mkdir()
    (tmp_path / "src/a.c").write_text("int a;\n")
    status, said = call(BUILD, tmp_path, known, tmp_path / "out")
    assert status == 1
    assert re.search(
        r"the source is not that of commit [0-9a-f]{40}: the digest of src/ is [0-9a-f]{64}, not [0-9a-f]{64}", said
    )
    empty = tmp_path / "empty"
    subprocess.run(["git", "init", "-q", empty], check=True, timeout=30)
    status, said = call(BUILD, empty, known, tmp_path / "out")
    assert status == 1
    assert f"does not come from {empty}" in said
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("words", [(), ("--patched", "a"), ("a", "b"), ("a", "--headers")])
def test_the_run_says_how_it_is_called(words: tuple[str, ...]) -> None:
    """As the build does."""
    status, said = call(RUN, *words)
    assert status == 2
    assert "hack/hami-core SOURCE [--unpatched] [--headers FOLDER]" in said


@pytest.mark.skipif(
    not (REPOSITORY / ".venv/bin/python").exists(), reason="hack/hami-core uses .venv, which is not there"
)
def test_the_run_ends_where_the_build_does(tmp_path: Path) -> None:
    """With its message; no table is printed."""
    status, said = call(RUN, tmp_path, "--headers", headers(tmp_path))
    assert status == 1
    assert "is no source of HAMi-core" in said


def program(native: Path, state: Path, *lines: str, **variables: str) -> list[str]:
    """The answers of the program on the fake GPUs, without any HAMi-core."""
    gpus = native / "gpus"
    done = subprocess.run(
        [gpus / "cuda_program"],
        input="".join(f"{line}\n" for line in lines),
        env={"FAKE_GPUS": str(state), "LD_LIBRARY_PATH": str(gpus), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"} | variables,
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    return done.stdout.split("\n")[:-1]


@pytest.mark.parametrize(
    ("visible", "gpus"),
    [
        (None, [0, 1]),
        ("", []),
        ("0", [0]),
        ("1", [1]),
        ("1,0", [1, 0]),
        ("1,99,0", [1]),
        ("-1,0", []),
        ("1,1", [1]),
        ("junk", []),
        (UUIDS[1], [1]),
        (UUIDS[1][:9], [1]),
        ("GPU-1a2b", []),
        (f"MIG-{UUIDS[0]}/1/0", [0]),
    ],
)
def test_the_fake_driver_reads_the_variable_as_cuda_does(
    native: Path, tmp_path: Path, visible: str | None, gpus: list[int]
) -> None:
    """In the order of the list, up to its first invalid entry; what is taken of a device is taken of that GPU."""
    variables = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    lines = ["init", *(f"alloc {device} 500" for device in range(len(gpus))), "shown 0", "shown 1"]
    devices, *taken, first, second = program(native, tmp_path / "gpus", *lines, **variables)
    assert (int(devices), taken) == (len(gpus), ["1"] * len(gpus))
    assert [first, second] == [f"{600 if gpu in gpus else 0} 40960" for gpu in (0, 1)]


def test_the_fake_driver_has_an_order_of_its_own(native: Path, tmp_path: Path) -> None:
    """Unless it is told to number as NVML does; and it frees what a program held that is gone."""
    answers = program(native, tmp_path / "gpus", "unset CUDA_DEVICE_ORDER", "init", "alloc 0 500", "shown 0", "shown 1")
    assert answers[1:] == ["2", "1", "0 40960", "600 40960"]
    assert program(native, tmp_path / "gpus", "shown 1") == ["0 40960"]
