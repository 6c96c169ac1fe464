"""Whether processes have HAMi-core, as `/proc` shows it."""

from pathlib import Path

import pytest

from hami_kubeletplugin.hamicore import loaded
from hami_kubeletplugin.hamicore.loaded import Answers, count, our_mappings
from hami_kubeletplugin.hamicore.processes import Process
from tests.unit.proc_tree import DAEMON, DAEMON_MAPS, HAMI, INSTALLED, LIBRARY_MAPS, OTHER_MAPS, ProcTree

LINE = "7f10-7f20 r-xp 00000000 08:01 42    /usr/local/vgpu/libvgpu.so\n"
LOADED, NOT, ENDED = Answers(1, 0, True), Answers(0, 1, True), Answers(0, 0, True)


@pytest.fixture
def proc(tmp_path: Path) -> ProcTree:
    """Nothing but the daemon runs, whose library is inode 42 on 08:01."""
    return ProcTree(tmp_path / "proc")


def answers(proc: ProcTree, *maps: str, enough: int | None = None) -> Answers:
    """What is found out about processes that have these mappings."""
    for pid, each in enumerate(maps, 20):
        proc.add(pid, "mnt:[20]", maps=each)
    processes = [Process(pid, pid, "sh") for pid in range(20, 20 + len(maps))]
    return count(processes, our_mappings(HAMI, proc.root), proc.root, enough=enough)


@pytest.mark.parametrize(
    ("maps", "expected"),
    [
        (LIBRARY_MAPS, LOADED),
        (OTHER_MAPS + LINE.rstrip(), LOADED),
        (OTHER_MAPS * 20_000 + LINE + OTHER_MAPS * 20_000, LOADED),
        ("7f00 " + "x" * (256 * 1024 - 30) + "\n" + LINE, LOADED),  # across the end of a piece
        (LINE.replace("/usr/local/vgpu/libvgpu.so", "/wherever/it is/mounted"), LOADED),
        (LINE.replace("libvgpu.so", "libvgpu.so (deleted)"), LOADED),  # the mount's own name is gone, not the file
        (OTHER_MAPS * 20_000, NOT),
        (LINE.replace(" 42 ", " 43 "), NOT),
        (LINE.replace("08:01", "08:02"), NOT),
        (LINE.replace("08:01", "00:31").replace(" 42 ", " 7 "), NOT),
        ("7f10-7f20 r-xp 00000000 08:02 9    /tmp/x r-xp 00000000 08:01 42 /libvgpu.so\n", NOT),
        ("", ENDED),
    ],
)
def test_whether_a_process_has_the_library(proc: ProcTree, maps: str, expected: Answers) -> None:
    """By the file itself, wherever it is in however long a list; a file that is only called like it is another one."""
    assert answers(proc, maps) == expected


def test_libraries_of_earlier_versions_count(proc: ProcTree) -> None:
    """A container keeps the one that it started with; other files of that folder, and what is gone from it, are none."""
    former = INSTALLED.replace("0123456789abcdef", "f" * 16)
    hook = f"{HAMI}/lib/hami-region-hook.0123456789abcdef"
    more = [
        f"7f30-7f40 r--p 0 08:01 {inode} {path}\n"
        for inode, path in ((50, former), (51, hook), (52, f"{former} (deleted)"))
    ]
    proc.maps(DAEMON, DAEMON_MAPS + "".join(more))
    maps = [LINE.replace(" 42 ", f" {inode} ") for inode in (42, 50, 51, 52)]
    assert answers(proc, *maps) == Answers(2, 2, True)


def test_without_a_library_nobody_has_it(proc: ProcTree) -> None:
    """As on a node on which none could be installed yet."""
    proc.maps(DAEMON, OTHER_MAPS)
    assert answers(proc, LIBRARY_MAPS) == NOT


def test_a_process_that_has_ended_is_not_counted(proc: ProcTree) -> None:
    """No answer is another answer than no."""
    assert count([Process(20, 20, "sh")], our_mappings(HAMI, proc.root), proc.root) == ENDED


def test_mappings_of_a_container_have_a_bound(proc: ProcTree, monkeypatch: pytest.MonkeyPatch) -> None:
    """For all of its processes together; what is not looked at is said not to have been."""
    monkeypatch.setattr(loaded, "_LIMIT", 10 * loaded._PIECE)
    large = OTHER_MAPS * (4 * loaded._PIECE // len(OTHER_MAPS))
    assert answers(proc, large, large, large, LIBRARY_MAPS) == Answers(0, 2, False)


def test_one_process_can_be_enough(proc: ProcTree) -> None:
    """Those after it are not looked at."""
    assert answers(proc, OTHER_MAPS, LIBRARY_MAPS, LIBRARY_MAPS, enough=1) == Answers(1, 1, False)
