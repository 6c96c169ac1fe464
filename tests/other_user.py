"""What a user of the node who is neither root nor in a container gets done."""

import subprocess
from pathlib import Path

NOBODY = 65534
_TRY = """
for path; do
    ls "$path/" >/dev/null 2>&1 && echo "listed $path"
    cat "$path" >/dev/null 2>&1 && echo "read $path"
    (: >>"$path") 2>/dev/null && echo "written $path"
    (exec "$path" </dev/null) >/dev/null 2>&1 && echo "run $path"
done
exit 0
"""


def achieved(*paths: Path) -> list[str]:
    """Which of these such a user can list, read, write and run, as `WHAT PATH`. Needs root, to become somebody else."""
    ended = subprocess.run(
        ["sh", "-c", _TRY, "sh", *paths],
        user=NOBODY,
        group=NOBODY,
        extra_groups=[],
        cwd="/",
        check=True,
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert ended.stderr == ""
    return ended.stdout.splitlines()
