"""The chart as helm renders it."""

import os
from pathlib import Path

import pytest

from tests.chart.rendering import Chart


@pytest.fixture(scope="session")
def programs() -> Path:
    """The folder with helm and kubeconform; hack/chart --test sets it."""
    if "HELM" not in os.environ:
        pytest.skip("run these by hack/chart --test, which has helm")
    return Path(os.environ["HELM"])


@pytest.fixture
def chart(programs: Path, tmp_path: Path) -> Chart:
    """Ours."""
    return Chart(programs / "helm", tmp_path)
