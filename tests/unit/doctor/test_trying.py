"""`--try`: our edits are tried out with a process, and nothing of it is left."""

import fcntl
import os
from pathlib import Path

import pytest

from hami_kubeletplugin.api.names import MIB
from hami_kubeletplugin.doctor import trying
from hami_kubeletplugin.doctor.place import Place
from hami_kubeletplugin.doctor.programs import Ran
from hami_kubeletplugin.doctor.scratch import folder_below
from hami_kubeletplugin.doctor.trying import Tried
from hami_kubeletplugin.findings import Level
from hami_kubeletplugin.hamicore.contract import (
    CONTAINER_LIBRARY,
    CONTAINER_LOCK_DIR,
    CONTAINER_PRELOAD,
    CONTAINER_REGION,
)
from tests.unit.claims.objects import GPUS
from tests.unit.doctor.objects import levels, place, worst
from tests.unit.hamicore.mounted import can_mount

CLAIM = trying.made_up(GPUS.gpus[0], "gpu.hami.io")


@pytest.fixture
def here(tmp_path: Path, native: Path) -> Place:
    """A node with the image's files."""
    return place(tmp_path, hami_core=native, region_hook=native / "hami-region-hook")


def files() -> set[str]:
    """What is on this machine where containers have HAMi-core's files."""
    return {
        path
        for path in (CONTAINER_LIBRARY, CONTAINER_PRELOAD, CONTAINER_REGION, CONTAINER_LOCK_DIR)
        if os.path.exists(path)
    }


@can_mount
def test_a_process_with_our_edits(here: Place) -> None:
    """The hook renews a soiled region, and the loader takes the library; on the machine nothing has changed."""
    before = files()
    found = list(trying.trial(here))
    assert levels(found) == [Level.ok, Level.ok, Level.hint]
    assert found[0].what == "the hook has made a soiled region new, with 1000 MiB and 30 % as the claim was given"
    assert "libcuda.so.1" in found[2].what
    assert (files(), [path.name for path in here.settings.hami_dir.iterdir()]) == (before, ["lib"])


@can_mount
def test_a_limit_that_is_not_in_force(here: Place, native: Path, tmp_path: Path) -> None:
    """CUDA is asked what there is. This library keeps no limit there, and so it is found out."""
    (tmp_path / "state").touch()
    found = worst(trying.trial(here, {"LD_LIBRARY_PATH": str(native / "gpus"), "FAKE_GPUS": str(tmp_path / "state")}))
    assert found.what == "CUDA says that there are 40960 MiB, and the limit is 1000 MiB"


def test_a_hook_that_fails(here: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its words are told, and no process is begun."""
    monkeypatch.setattr(trying, "ran", lambda *_, **__: Ran(1, "hami-region-hook: disk full"))
    (found,) = trying.trial(here)
    assert (found.level, "disk full" in found.what) == (Level.error, True)
    assert not list((tmp_path / "vgpu").glob(".doctor*"))


def test_what_a_process_says() -> None:
    """Each part of the limit being in force is judged; what libraries print beside it is no answer."""
    well = Tried(loaded=True, region=True, total=1000 * MIB)
    assert levels(trying.judged(well, CLAIM)) == [Level.ok, Level.ok]
    assert levels(trying.judged(Tried(loaded=False, region=False), CLAIM)) == [Level.error]
    assert (
        levels(trying.judged(Tried(loaded=True, region=False, failed="cuInit failed with 2"), CLAIM))[1]
        is Level.unknown
    )
    assert trying.said(Ran(0, 'loaded=1\ndoctor:{"mapped": ["/usr/local/vgpu/libvgpu.so"], "total": 5}')) == Tried(
        loaded=True, region=False, total=5
    )
    assert trying.said(Ran(1, "dead")) is None


def test_what_a_killed_one_left_is_removed(tmp_path: Path) -> None:
    """And not what one that runs has."""
    for name in ("left", "used"):
        (tmp_path / f".doctor-{name}/vgpu").mkdir(parents=True)
    handle = os.open(tmp_path / ".doctor-used", os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        with folder_below(tmp_path) as own:
            assert {path.name for path in tmp_path.iterdir()} == {".doctor-used", own.name}
        assert {path.name for path in tmp_path.iterdir()} == {".doctor-used"}
    finally:
        os.close(handle)
