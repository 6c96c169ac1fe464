"""A program of the node run for the few lines that it prints. Blocks, bounded."""

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

_MOST: Final = 4096
_WITHIN: Final = 5.0
_VERSION: Final = re.compile(r"\bv?(\d{1,4})\.(\d{1,4})(?:\.\d{1,6})?")


class Ran(NamedTuple):
    """What came of it.

    Attributes:
        status: Its exit status; None: it could not be run, or did not end in time.
        said: Its first output, stderr behind stdout; or why it could not be run.
    """

    status: int | None
    said: str


def ran(words: Sequence[str | Path], *, stdin: bytes = b"", within: float = _WITHIN) -> Ran:
    """Run it, with an environment that has nothing but a PATH."""
    try:
        done = subprocess.run(  # noqa: S603 - a program that the node's options or its own processes name
            [str(word) for word in words],
            input=stdin,
            capture_output=True,
            timeout=within,
            check=False,
            env={"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
        )
    except subprocess.TimeoutExpired:
        return Ran(None, f"it did not end within {within:g} s")
    except OSError as error:
        return Ran(None, error.strerror or str(error))
    return Ran(done.returncode, (done.stdout[:_MOST] + done.stderr[:_MOST]).decode(errors="replace").strip())


def version_in(text: str) -> tuple[int, int] | None:
    """The first thing in it that looks like a version: major and minor."""
    found = _VERSION.search(text)
    return (int(found[1]), int(found[2])) if found else None
