"""The version stands in one place; what has to repeat it agrees."""

import re
import tomllib
from pathlib import Path

import pytest

import hami_kubeletplugin
from hami_kubeletplugin.program import built
from tests import REPOSITORY

TAG = re.compile(r"\bhami-dra:v?([0-9][\w.-]*)")
"""An image of ours as manifests and commands name it."""


def tagged() -> dict[Path, list[str]]:
    """Files for people and clusters that name our image, with the tags in them."""
    files = [REPOSITORY / "Dockerfile"]
    for folder in (".", "docs", "examples", "hack/cluster"):
        files += [path for kind in ("md", "yaml") for path in (REPOSITORY / folder).glob(f"*.{kind}")]
    # What the changelog tells of earlier versions stays.
    found = {
        path.relative_to(REPOSITORY): TAG.findall(path.read_text()) for path in files if path.name != "CHANGELOG.md"
    }
    return {path: tags for path, tags in found.items() if tags}


def test_manifests_and_docs_name_the_image_of_this_version() -> None:
    """Each tag of our image, in manifests, docs and Dockerfile, is the version of the package; the others are listed."""
    found = tagged()
    assert {Path("daemonset.yaml"), Path("webhook.yaml"), Path("README.md")} <= found.keys()
    version = hami_kubeletplugin.__version__
    wrong = [f"{path}: hami-dra:{tag}" for path, tags in found.items() for tag in tags if tag != version]
    assert not wrong, f"the version is {version} (hami_kubeletplugin/__init__.py), but these say otherwise: {wrong}"


def test_the_package_takes_its_version_from_the_code() -> None:
    """pyproject.toml has no version of its own, so what is built can't have another one than the program says."""
    pyproject = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    assert "version" not in pyproject["project"]
    assert pyproject["project"]["dynamic"] == ["version"]
    assert pyproject["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "hami_kubeletplugin.__version__"}


def test_an_image_says_what_it_was_built_from(tmp_path: Path) -> None:
    """`--version` has our commit and which HAMi-core it is, below the version."""
    versions = tmp_path / "versions.json"
    versions.write_text('[{"sha256": "ab", "version": "2026.06.30+8f3a89c", "layout": "1.2", "patch": "hami-dra-1"}]')
    assert built({"HAMI_REVISION": "1d8fce0"}, versions) == [
        "commit 1d8fce0",
        "HAMi-core 2026.06.30+8f3a89c+hami-dra-1 sha256:ab",
    ]


@pytest.mark.parametrize("content", [None, "", "{}", "[1]", '[{"sha256": 1}]'])
def test_outside_of_an_image_there_is_only_the_version(tmp_path: Path, content: str | None) -> None:
    """And where versions.json is not one: what runs here doesn't need it, and who does says what is wrong with it."""
    versions = tmp_path / "versions.json"
    if content is not None:
        versions.write_text(content)
    assert built({"HAMI_REVISION": ""}, versions) == []
