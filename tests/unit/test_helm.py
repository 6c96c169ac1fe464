"""hack/helm keeps what it makes whole or not at all."""

import os
import subprocess
from pathlib import Path

from tests import REPOSITORY

GO = """#!/bin/sh
# Go, as far as it is asked: one version of Kubernetes can't be had, and one has another form.
case "$*" in
  "env GOMODCACHE") echo /nowhere ;;
  *"$LACKING"*) exit 1 ;;
  "mod download "*) mkdir -p "$GOMODCACHE/k8s.io/${3#k8s.io/}/api/openapi-spec/v3" ;;
esac
"""


def schemas(cache: Path, lacking: str) -> "subprocess.CompletedProcess[str]":
    """Call it where Go is that."""
    programs = cache.parent / "bin"
    programs.mkdir(exist_ok=True)
    for name, text in {"go": GO, "sleep": "#!/bin/sh\n"}.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    environment = {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "HOME": str(cache),
        "HAMI_CLUSTER_CACHE": str(cache),
        "LACKING": lacking,
    }
    command = [str(REPOSITORY / "hack/helm"), "--schemas"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


def test_schemas_of_all_versions_or_of_none(tmp_path: Path) -> None:
    """Where the second of three versions can't be had nothing is kept, and the exit status says so: it is tried again the next time."""
    cache = tmp_path / "a cache"
    failed = schemas(cache, "v1.36")
    assert failed.returncode == 1, failed.stdout
    assert [*cache.iterdir()] == []
    made = schemas(cache, "v9.99")
    assert made.returncode == 0, made.stderr
    assert sorted(each.name[:5] for each in Path(made.stdout.strip()).iterdir()) == ["v1.35", "v1.36", "v1.37"]
