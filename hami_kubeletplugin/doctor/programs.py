"""A program of the node run for the few lines that it prints. Blocks, bounded."""

import contextlib
import os
import re
import selectors
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Final, NamedTuple, cast

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
    """Run it, with an environment that has nothing but a PATH.

    Of what it says no more is kept than is looked at: in the daemon's pod all memory is the daemon's, too.

    Args:
        words: The program and its arguments.
        stdin: What it is given to read, less than a pipe takes.
        within: Seconds.
    """
    try:
        child = subprocess.Popen(  # noqa: S603 - a program that the node's options or its own processes name
            [str(word) for word in words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            env={"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
        )
    except OSError as error:
        return Ran(None, error.strerror or str(error))
    until = time.monotonic() + within
    try:
        said = _told(child, stdin, until)
        return Ran(child.wait(max(until - time.monotonic(), 0)), said.decode(errors="replace").strip())
    except subprocess.TimeoutExpired:
        # What it has started, too. Nobody has waited for it yet, so the number is still its own.
        os.killpg(child.pid, signal.SIGKILL)
        return Ran(None, f"it did not end within {within:g} s")
    finally:
        child.kill()
        child.wait()
        for pipe in (child.stdin, child.stdout, child.stderr):
            with contextlib.suppress(BrokenPipeError):
                pipe.close()  # type: ignore[union-attr] # all three are pipes


def _told(child: "subprocess.Popen[bytes]", stdin: bytes, until: float) -> bytes:
    """The beginning of both outputs, as soon as both have ended."""
    given, stdout, stderr = cast("tuple[IO[bytes], IO[bytes], IO[bytes]]", (child.stdin, child.stdout, child.stderr))
    with contextlib.suppress(BrokenPipeError):
        given.write(stdin)
        given.close()
    kept = {stdout.fileno(): b"", stderr.fileno(): b""}
    with selectors.DefaultSelector() as ready:
        for number in kept:
            ready.register(number, selectors.EVENT_READ)
        while ready.get_map():
            left = until - time.monotonic()
            events = ready.select(left) if left > 0 else []
            if not events:
                raise subprocess.TimeoutExpired(child.args, left)
            for key, _ in events:
                content = os.read(key.fd, 65536)
                kept[key.fd] = (kept[key.fd] + content)[:_MOST]
                if not content:
                    ready.unregister(key.fd)
    return b"".join(kept.values())


def version_in(text: str) -> tuple[int, int] | None:
    """The first thing in it that looks like a version: major and minor."""
    found = _VERSION.search(text)
    return (int(found[1]), int(found[2])) if found else None
