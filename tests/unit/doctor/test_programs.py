"""Programs that are run for the few lines that they print."""

import os
import select
import tracemalloc
from pathlib import Path

from hami_kubeletplugin.doctor.programs import Ran, ran


def test_what_a_program_says() -> None:
    """Its status and its output, stderr behind stdout; it reads what it is given, or doesn't; one that isn't there says why."""
    assert ran(["sh", "-c", "cat; echo err >&2; exit 3"], stdin=b"in\n") == Ran(3, "in\nerr")
    assert ran(["true"], stdin=b"x" * 1000) == Ran(0, "")
    assert ran(["/nowhere"]) == Ran(None, "No such file or directory")


def test_one_that_says_too_much() -> None:
    """It is ended in its time, and costs no memory: that is the daemon's, too."""
    tracemalloc.start()
    try:
        found = ran(["yes"], within=0.3)
        assert tracemalloc.get_traced_memory()[1] < 4 * 2**20
    finally:
        tracemalloc.stop()
    assert found == Ran(None, "it did not end within 0.3 s")


def test_one_whose_child_stays(tmp_path: Path) -> None:
    """Who holds its output open is not waited for, and is ended with it."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    seen = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert ran(["sh", "-c", f"sleep 60 3>'{fifo}' & echo v1.2"], within=0.3).status is None
        assert select.select([seen], [], [], 30)[0]
        assert os.read(seen, 1) == b"", "its end: nobody writes there any more"
    finally:
        os.close(seen)
