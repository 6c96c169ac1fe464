"""What comes into the image, and into `.venv`, is known before: no name that can come to mean something else."""

import hashlib
import json
import os
import re
import shutil
import string
import subprocess
import tomllib
from pathlib import Path

import pytest

from tests import REPOSITORY

DOCKERFILE = re.sub(r"\\\n\s*", "", re.sub(r"^#.*\n", "", (REPOSITORY / "Dockerfile").read_text(), flags=re.MULTILINE))
ARGUMENTS = dict(re.findall(r"^ARG (\w+)=(.*)$", DOCKERFILE, re.MULTILINE))
RUNS = re.findall(r"^RUN (.*)$", DOCKERFILE, re.MULTILINE)
LIBRARY = b"\x7fELF and so on"
DIGEST = hashlib.sha256(LIBRARY).hexdigest()


def test_images_are_taken_by_digest() -> None:
    """Each FROM is a stage of this file, nothing, or an image with its registry and digest; so is each COPY --from."""
    stages = {"scratch"}
    found = re.findall(r"^FROM (\S+)(?: AS (\S+))?$", DOCKERFILE, re.MULTILINE)
    for image, stage in found:
        named = string.Template(image).substitute(ARGUMENTS)
        assert named in stages or re.fullmatch(r"docker\.io/[\w./-]+:[\w.-]+@sha256:[0-9a-f]{64}", named), named
        stages.add(stage)
    assert len(found) == len(re.findall(r"^FROM", DOCKERFILE, re.MULTILINE)) > 1
    assert set(re.findall(r"--from=(\S+)", DOCKERFILE)) <= stages


def test_the_image_of_hami_core_is_the_version_that_is_said() -> None:
    """The tag beside its digest, for people, and the version from which the region's layout follows."""
    assert f":v{ARGUMENTS['HAMI_CORE_VERSION']}@" in ARGUMENTS["HAMI_CORE"]


@pytest.mark.parametrize("file", ["Dockerfile", "Makefile"])
def test_python_packages_are_hashed(file: str) -> None:
    """Pip gets a hash for each file that it may fetch, or may fetch none: the build's own requirements too."""
    text = (REPOSITORY / file).read_text().replace("\\\n", " ")
    calls = re.findall(r"pip install\b[^&\n]*", text)
    assert calls
    for call in calls:
        alone = {"--no-deps", "--no-build-isolation"} <= {*call.split()}
        assert alone != ("--require-hashes" in call.split()), call
    assert not re.search(r"(?<!no-emit)-(-find-links|-extra-index-url|-index-url|-trusted-host)", text)


def pins(file: str) -> dict[str, str]:
    """Name -> version; each line is one, with its hashes."""
    text = re.sub(r"#.*", "", (REPOSITORY / "requirements" / file).read_text()).replace("\\\n", " ")
    found = {}
    for line in filter(str.strip, text.splitlines()):
        match = re.fullmatch(r"([\w.-]+)==(\S+)((?:\s+--hash=sha256:[0-9a-f]{64})+)\s*", line)
        assert match, f"requirements/{file}: {line}"
        found[match[1].lower()] = match[2]
    return found


def test_the_headers_are_those_of_one_release_for_both_architectures() -> None:
    """CUDA's and NVML's, which HAMi-core is compiled with; pip finds a wheel for amd64 and for arm64."""
    found = pins("headers.txt")
    assert found.keys() == {"nvidia-cuda-runtime", "nvidia-nvml-dev"}
    assert len(set(found.values())) == 1
    assert (REPOSITORY / "requirements/headers.txt").read_text().count("--hash=") == 4


def test_the_source_of_hami_core_is_known() -> None:
    """By commit and by digest; the image takes it, with our patches, unless it is told otherwise."""
    build = (REPOSITORY / "native/hami-core/build").read_text()
    assert re.search(r"^commit=[0-9a-f]{40}\ndigest=[0-9a-f]{64}$", build, re.MULTILINE)
    assert ARGUMENTS["HAMI_CORE_FROM"] == "source"
    (step,) = (command for command in RUNS if command.startswith("/build/build"))
    assert "--unpatched" not in step


def test_locks_agree() -> None:
    """Each requirement is one version with hashes, the same wherever it is; what builds the package is among them."""
    run, build, dev = pins("run.txt"), pins("build.txt"), pins("dev.txt")
    assert run.items() | build.items() <= dev.items()
    required = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["build-system"]["requires"]
    assert required == [f"{name}=={version}" for name, version in build.items()]


def test_the_build_sees_what_it_copies() -> None:
    """What the Dockerfile copies of the checkout is there, and .dockerignore lets it through."""
    through = {line[1:] for line in (REPOSITORY / ".dockerignore").read_text().split() if line.startswith("!")}
    copied = {
        word for words in re.findall(r"^COPY (?!--from)(.*) \S+$", DOCKERFILE, re.MULTILINE) for word in words.split()
    }
    assert through == {name if name in through else name.partition("/")[0] for name in copied}
    assert all((REPOSITORY / name).exists() for name in copied)


def run(command: str, folder: Path, **environment: str) -> "subprocess.CompletedProcess[str]":
    """A step of the build, here."""
    path = f"{folder}:{os.environ['PATH']}"
    return subprocess.run(
        ["sh", "-c", command],
        cwd=folder,
        env={"PATH": path, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=20,
    )


@pytest.mark.parametrize("given", [DIGEST, "", "0" * 64, DIGEST[:-1], DIGEST.upper()])
def test_the_library_is_the_one_that_is_known(tmp_path: Path, given: str) -> None:
    """The build writes versions.json only for a library with the digest that it was given; else it ends and names both."""
    (step,) = (command for command in RUNS if "versions.json" in command)
    assert "HAMI_CORE_SHA256" not in ARGUMENTS or re.fullmatch("[0-9a-f]{64}", ARGUMENTS["HAMI_CORE_SHA256"])
    (tmp_path / "libvgpu.so").write_bytes(LIBRARY)
    done = run(step, tmp_path, HAMI_CORE_SHA256=given, HAMI_CORE_VERSION="2.10.0")
    if given == DIGEST:
        assert done.returncode == 0, done.stderr
        assert json.loads((tmp_path / "versions.json").read_text()) == [{"sha256": DIGEST, "version": "2.10.0"}]
    else:
        assert done.returncode != 0
        assert f"libvgpu.so has SHA-256 {DIGEST}, HAMI_CORE_SHA256 is '{given}'" in done.stderr
        assert not (tmp_path / "versions.json").exists()


@pytest.mark.parametrize("known", [True, False])
def test_the_toolkit_is_the_one_that_is_known(tmp_path: Path, *, known: bool) -> None:
    """It is built only if the module has the sum that is written down."""
    (step,) = (command for command in RUNS if "go install" in command)
    total = ARGUMENTS["TOOLKIT_SUM"] if known else "h1:another"
    go = tmp_path / "go"
    go.write_text(f'#!/bin/sh\n[ $1 = mod ] && echo \'{{"Sum": "{total}"}}\' || echo $* >installed\n')
    go.chmod(0o755)
    given = {name: ARGUMENTS[name] for name in ("TOOLKIT", "TOOLKIT_VERSION", "TOOLKIT_SUM")}
    assert shutil.which("go", path=str(tmp_path))
    done = run(step, tmp_path, **given)
    assert (done.returncode == 0) == known == (tmp_path / "installed").exists()
    assert known or "is not TOOLKIT_SUM" in done.stderr
