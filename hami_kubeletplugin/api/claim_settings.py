"""What is told of a claim that is prepared: to its containers, and in the object."""

from typing import Literal

from pydantic import BaseModel, Field


class ClaimSettings(BaseModel):
    """Who hears what a claim got."""

    device_metadata: Literal["mounted", "none"] = Field(
        "mounted",
        description="Whether containers can read which GPU and how much of it they have, in files below "
        "/var/run/kubernetes.io/dra-device-attributes: 'mounted' or 'none'.",
    )
    device_status: Literal["written", "none"] = Field(
        "none",
        description="Whether status.devices of claims says that they are prepared, with GPU and limits: 'written' = a write for "
        "each claim, for which the daemon needs the rights in claim-status.yaml; 'none'.",
    )
