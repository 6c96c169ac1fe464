"""The version stands in one place; what has to repeat it agrees."""

import re
import tomllib
from pathlib import Path

import hami_kubeletplugin
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
