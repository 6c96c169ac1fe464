"""What `uninstall` takes and what it leaves, without a daemon: tests/unit/process/test_uninstall.py has one."""

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from hami_kubeletplugin.api.settings import Places
from hami_kubeletplugin.uninstall import uninstall

UID = "0d8f2d51-0000-4000-8000-000000000000"


@pytest.fixture
def places(tmp_path: Path) -> Places:
    """A node on which the daemon has been."""
    names = ("registry", "plugin", "cdi", "vgpu/lib", f"vgpu/cache/{UID}", "plugin/claims")
    for name in names:
        (tmp_path / name).mkdir(parents=True)
    for name in ("libvgpu.so", "hami-region-hook", "nvidia-cdi-hook"):
        (tmp_path / "vgpu" / "lib" / f"{name}.0123456789abcdef").touch()
    return Places(
        registry_dir=tmp_path / "registry",
        plugin_dir=tmp_path / "plugin",
        cdi_dir=tmp_path / "cdi",
        hami_dir=tmp_path / "vgpu",
    )


async def test_all_programs_of_the_image_go(places: Places) -> None:
    """Nothing of what the daemon has put on the host is left, the toolkit's hook neither."""
    gone = await uninstall(places, claims=False, dry_run=False)
    assert places.hami_dir in gone
    assert not places.hami_dir.exists()
    assert not places.plugin_dir.exists()


async def test_what_stays_is_not_said_to_be_gone(places: Places) -> None:
    """A folder in which somebody has put something is not listed: it is still there."""
    (places.hami_dir / "license").touch()
    (places.plugin_dir / "note").touch()
    gone = await uninstall(places, claims=False, dry_run=False)
    assert gone
    assert [path for path in gone if path.exists()] == []


async def test_files_that_claims_of_another_driver_use_stay(places: Places) -> None:
    """Two driver names on a node share HAMi-core's files: they stay as long as a CDI spec of the other names them; said why."""
    spec = places.cdi_dir / f"k8s.gpu.other.io-claim_{UID}.json"
    spec.write_text(f'{{"hostPath": "{places.hami_dir}/lib/libvgpu.so.0123456789abcdef"}}')
    with capture_logs() as logs:
        gone = await uninstall(places, claims=True, dry_run=False)
    assert (places.hami_dir / "cache" / UID).is_dir()
    assert (places.hami_dir / "lib" / "libvgpu.so.0123456789abcdef").exists()
    assert places.plugin_dir in gone
    [said] = [str(entry) for entry in logs if "stay" in entry["event"]]
    assert str(spec) in said
