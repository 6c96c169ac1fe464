"""promtool, as hack/prometheus has it."""

import os
import subprocess
from collections.abc import Callable

import pytest

from tests import REPOSITORY

Promtool = Callable[..., str]


@pytest.fixture(scope="session")
def promtool() -> Promtool:
    """Run it; gives what it writes, or fails with that."""
    program = REPOSITORY / "build" / "prometheus" / "promtool"
    if not program.exists():
        assert os.environ.get("CI") != "true", "no promtool: hack/prometheus"
        pytest.skip("no promtool: hack/prometheus")

    def run(*words: str, stdin: str = "", may_fail: bool = False) -> str:
        done = subprocess.run(
            [program, *words], input=stdin, capture_output=True, text=True, check=False, timeout=60, encoding="utf-8"
        )
        said = done.stdout + done.stderr
        assert may_fail or done.returncode == 0, said
        return said

    return run
