"""A node for the checks: folders of its own, and findings in short."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hami_kubeletplugin.api.settings import Settings
from hami_kubeletplugin.doctor.place import Place
from hami_kubeletplugin.findings import Finding, Level


def place(root: Path, **options: Any) -> Place:
    """A node below a folder; its host's root is `host`, and process 1 is there."""
    host = root / "host"
    for folder in (host / "etc", root / "vgpu/lib", root / "plugin", root / "cdi", root / "sys", root / "registry"):
        folder.mkdir(parents=True, exist_ok=True)
    link = root / "proc/1/root"
    if not link.is_symlink():
        link.parent.mkdir(parents=True)
        link.symlink_to(host)
    settings = Settings.checked(
        **{
            "node_name": "n1",
            "simulate": "a100x8",
            "driver_edits": "none",
            "hami_dir": root / "vgpu",
            "plugin_dir": root / "plugin",
            "registry_dir": root / "registry",
            "cdi_dir": root / "cdi",
            "hami_core": root / "image",
            "region_hook": root / "image/hami-region-hook",
            "sysfs": root / "sys",
            **options,
        }
    )
    return Place(settings, proc=root / "proc", dev=root / "dev")


def levels(found: Iterable[Finding]) -> list[Level]:
    """How bad each is."""
    return [each.level for each in found]


def worst(found: Iterable[Finding]) -> Finding:
    """The first of those that are not well. Whatever is wrong says why that matters, and what to do."""
    (first, *_) = [each for each in found if each.level not in {Level.ok, Level.hint}]
    if first.level is not Level.unknown:
        assert first.why
        assert first.why.endswith((".", ")"))
    return first
