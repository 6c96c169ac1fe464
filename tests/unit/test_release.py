"""hack/release, on a clone: what it makes of a commit, and what it refuses."""

import hashlib
import json
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import REPOSITORY

VERSION = "97.1.0"
NEWS = "* Something that users notice."


def git(folder: Path, *arguments: str) -> str:
    """What git says."""
    command = ["git", "-c", "user.name=test", "-c", "user.email=test@example.com", *arguments]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True, timeout=60).stdout.strip()


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clean checkout of what is here now, of which it is known that it is green."""
    if not (REPOSITORY / ".git").exists():
        pytest.skip("not a checkout of git")
    folder = tmp_path / "clone"
    git(tmp_path, "clone", "-q", "--no-tags", str(REPOSITORY), str(folder))
    git(folder, "config", "user.name", "test")
    git(folder, "config", "user.email", "test@example.com")
    for name in (
        "hack/release",
        "hack/sbom.py",
        "hack/chart",
        "tests/unit/test_version.py",
        ".gitignore",
    ):  # as they are being written
        (folder / name).write_bytes((REPOSITORY / name).read_bytes())
        (folder / name).chmod((REPOSITORY / name).stat().st_mode)
    changelog = folder / "CHANGELOG.md"
    changelog.write_text(f"# Changelog\n\n## Unreleased\n\n### Added\n\n{NEWS}\n\n## 0.0.1 - 2026-01-01\n\n* Older.\n")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "What is here")
    green(folder)
    return folder


def green(folder: Path) -> None:
    """Say of what is committed that .ci/run was green on it."""
    (folder / "build").mkdir(exist_ok=True)
    (folder / "build/green").write_text(git(folder, "rev-parse", "HEAD^{tree}") + "\n")


def release(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Call it. The chart and the image have tests of their own, and take minutes where they were never built."""
    command = ["hack/release", *arguments, "--without", "image", "--without", "chart"]
    environment = {**os.environ, "PYTHON": sys.executable}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=100, check=False
    )


def test_a_release_is_a_commit_a_tag_and_files(clone: Path) -> None:
    """The version stands everywhere, the changelog has it with what is new, and dist/ has wheel, source, SBOM and their sums.

    A dry run before does all of it, and keeps nothing.
    """
    before = git(clone, "rev-parse", "HEAD")
    tried = release(clone, VERSION, "--dry-run")
    assert tried.returncode == 0, tried.stderr
    assert f"Release {VERSION}" in tried.stderr
    assert (git(clone, "rev-parse", "HEAD"), git(clone, "tag")) == (before, "")
    assert not (clone / "dist").exists()

    done = release(clone, VERSION)
    assert done.returncode == 0, done.stderr
    assert f'__version__ = "{VERSION}"' in (clone / "hami_kubeletplugin/__init__.py").read_text()
    assert f"image: hami-dra:{VERSION}" in (clone / "daemonset.yaml").read_text()
    lines = (clone / "CHANGELOG.md").read_text().splitlines()
    assert lines.index("## Unreleased") < lines.index(NEWS)
    assert [line.split(" - ")[0] for line in lines if line.startswith("## ")] == [
        "## Unreleased",
        f"## {VERSION}",
        "## 0.0.1",
    ]
    assert git(clone, "cat-file", "-t", f"v{VERSION}") == "tag"
    assert git(clone, "rev-parse", f"v{VERSION}^{{commit}}") == git(clone, "rev-parse", "HEAD")
    assert NEWS in git(clone, "tag", "-l", "--format=%(contents)", f"v{VERSION}")
    assert git(clone, "status", "--porcelain") == ""
    assert f'git push origin HEAD "v{VERSION}"' in done.stdout

    dist = clone / "dist"
    for line in (dist / "SHA256SUMS").read_text().splitlines():
        digest, name = line.split()
        assert hashlib.sha256((dist / name).read_bytes()).hexdigest() == digest
    (wheel,) = dist.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert f"hami_kubeletplugin-{VERSION}.dist-info/METADATA" in archive.namelist()
        assert "hami_kubeletplugin/py.typed" in archive.namelist()
    (source,) = dist.glob("*.tar.gz")
    with tarfile.open(source) as tar:
        assert f"hami_kubeletplugin-{VERSION}/pyproject.toml" in tar.getnames()
    bom = json.loads((dist / f"hami-dra-{VERSION}.cdx.json").read_text())
    assert {"grpcio", "pydantic", "HAMi-core"} <= {component["name"] for component in bom["components"]}


def refused(folder: Path, version: str = VERSION) -> str:
    """Why it is refused; nothing is tagged then."""
    tags = git(folder, "tag")
    done = release(folder, version)
    assert done.returncode == 1
    assert git(folder, "tag") == tags
    return done.stderr.strip().splitlines()[-1]


def test_what_has_to_be_true_before(clone: Path) -> None:
    """Each thing that is missing is said in a sentence, and nothing has been done then."""
    assert "write three numbers" in refused(clone, "1.2")
    assert "is older than" in refused(clone, "0.0.1")
    git(clone, "tag", f"v{VERSION}")
    assert "tagged already" in refused(clone)
    git(clone, "tag", "-d", f"v{VERSION}")

    (clone / "new").touch()
    assert refused(clone).endswith("not committed: ?? new")
    git(clone, "add", "new")
    git(clone, "commit", "-qm", "Another one")
    assert "run .ci/run on it first" in refused(clone)

    (clone / "CHANGELOG.md").write_text("# Changelog\n\n## Unreleased\n\n## 0.0.1\n\n* Older.\n")
    git(clone, "commit", "-qam", "No news")
    green(clone)
    assert "nothing below Unreleased" in refused(clone)


def test_forms_of_issues_are_what_github_takes() -> None:
    """Each has a name, a description, and parts with an id of their own, a label, and whether they must be filled in."""
    forms = sorted((REPOSITORY / ".github/ISSUE_TEMPLATE").glob("*.yml"))
    assert [form.stem for form in forms] == ["bug", "feature"]
    for path in forms:
        form: dict[str, Any] = yaml.safe_load(path.read_text())
        assert form.keys() <= {"name", "description", "title", "labels", "body"}
        assert form["name"]
        assert form["description"]
        asked = [part for part in form["body"] if part["type"] != "markdown"]
        assert {part["type"] for part in asked} <= {"input", "textarea", "dropdown", "checkboxes"}
        assert len({part["id"] for part in asked}) == len(asked)
        assert all(part["attributes"]["label"] for part in asked)
        assert any(part.get("validations", {}).get("required") is True for part in asked)
