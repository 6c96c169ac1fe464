"""Which programs of the NVIDIA Container Toolkit are used."""

from pathlib import Path

from pydantic import BaseModel, Field


class ToolkitSettings(BaseModel):
    """For `--driver-edits=toolkit`: what describes the driver, and what puts it in order in containers."""

    nvidia_ctk: str = Field("nvidia-ctk", description="The nvidia-ctk program, for --driver-edits=toolkit.")
    nvidia_cdi_hook: str = Field(
        "auto",
        pattern=r"^(auto|own|/.+)$",
        description="nvidia-cdi-hook on the host, for --driver-edits=toolkit: its path there, 'own' = the image's, installed "
        "below --hami-dir, 'auto' = that of the toolkit in one of its usual places, else the image's.",
    )
    own_cdi_hook: Path = Field(
        Path("/usr/local/lib/hami/nvidia-cdi-hook"),
        description="The nvidia-cdi-hook that the image ships for nodes without the toolkit.",
    )
