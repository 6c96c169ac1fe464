"""How GPUs are watched, and what their errors mean."""

import re
from typing import Final, Literal, Self

from pydantic import BaseModel, Field, field_validator, model_validator

_NUMBERS: Final = re.compile(r"\s*(\d{1,5}(\s*,\s*\d{1,5})*)?\s*", re.ASCII)


class HealthSettings(BaseModel):
    """How the driver is asked how the GPUs are."""

    health_poll: float = Field(
        15.0, ge=0.05, le=3600, description="Seconds between questions to the driver how each GPU is."
    )
    health_events: Literal["watched", "off"] = Field(
        "watched",
        description="Errors (Xid) that the driver tells of: 'watched' = the driver is held open for them while containers "
        "use its GPUs, 'off' = never held open; what --health-poll finds is told all the same.",
    )
    xids_informational: str = Field(
        "",
        description="Xids, with commas between, after which a GPU is as good as before, beside 13,31,43,45,68,109. They count "
        "if the driver itself says that an action is needed.",
    )
    xids_critical: str = Field(
        "",
        description="Xids, with commas between, after which a GPU waits for a reset, whatever the driver says.",
    )

    @field_validator("xids_informational", "xids_critical")
    @classmethod
    def _are_numbers(cls, value: str) -> str:
        if not _NUMBERS.fullmatch(value):
            raise ValueError("must be numbers of Xids with commas between, such as 48,63")
        return value

    @model_validator(mode="after")
    def _not_both(self) -> Self:
        informational, critical = self.xids
        if informational & critical:
            raise ValueError(f"--xids-informational and --xids-critical both name Xid {min(informational & critical)}")
        return self

    @property
    def xids(self) -> tuple[frozenset[int], frozenset[int]]:
        """Those that are informational and those that are critical."""
        return _numbers(self.xids_informational), _numbers(self.xids_critical)


def _numbers(text: str) -> frozenset[int]:
    return frozenset(int(number) for number in text.split(",") if number.strip())
