"""What is done where others give out the same GPUs."""

from typing import Final, Literal

from pydantic import BaseModel, Field

_PLUGINS: Final = "nvidia.com/gpu,nvidia.com/gpu.shared,volcano.sh/vgpu-number"


class BesideSettings(BaseModel):
    """How the daemon stands beside other drivers and device plugins on its node."""

    given_out_twice: Literal["withheld", "published"] = Field(
        "withheld",
        description="GPUs that another DRA driver, or a device plugin, gives out too: 'withheld' = not published until it is "
        "gone, 'published' = published all the same, so that their memory is given out twice.",
    )
    device_plugin_resources: str = Field(
        _PLUGINS,
        description="Resources of nodes, with commas between, by which device plugins give out this node's GPUs.",
    )

    @property
    def plugin_resources(self) -> frozenset[str]:
        """`device_plugin_resources`, one by one."""
        return frozenset(name.strip() for name in self.device_plugin_resources.split(",")) - {""}
