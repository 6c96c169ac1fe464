"""What is on a node, as a daemon finds it that may not write yet."""

import shutil
from pathlib import Path
from typing import cast

from hami_kubeletplugin.api.settings import Settings
from hami_kubeletplugin.daemon.node import ThisNode
from hami_kubeletplugin.gpu.conditions import Conditions
from hami_kubeletplugin.observe.counts import UNCOUNTED
from hami_kubeletplugin.usage.pods import PodApi


def test_who_stands_by_puts_no_hook_on_the_host(tmp_path: Path) -> None:
    """On a node without the toolkit it says where the image's nvidia-cdi-hook will be; it is there when the daemon may write."""
    shipped = Path(shutil.copy("/bin/true", tmp_path / "nvidia-cdi-hook"))
    settings = Settings(
        node_name="node-1",
        plugin_dir=tmp_path / "plugin",
        cdi_dir=tmp_path / "cdi",
        hami_dir=tmp_path / "vgpu",
        own_cdi_hook=shipped,
        simulate="a100x8",
    )
    node = ThisNode(
        settings, "boot", conditions=Conditions(), counts=UNCOUNTED, pods=cast(PodApi, None), changed=lambda _: None
    )
    planned = node.own_hook()
    assert not (tmp_path / "vgpu").exists()
    node.clear()
    assert node.own_hook() == planned
    assert Path(planned).read_bytes() == shipped.read_bytes()
