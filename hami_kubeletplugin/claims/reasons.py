"""Why claims fail, in few words: for metrics and the log. Pure."""

from collections.abc import Mapping
from typing import Final

from hami_kubeletplugin.api.errors import (
    ApiDenied,
    ApiError,
    ApiForbidden,
    ApiUnavailable,
    ClaimError,
    ConfigError,
    DriverMissing,
    HamiError,
    HardwareError,
    NoRoom,
    NotBegun,
    StorageError,
    TimedOut,
)

INTERNAL: Final = "internal"
"""A fault of ours."""
REASONS: Final[Mapping[type[HamiError], str]] = {
    ClaimError: "refused",
    ConfigError: "config",
    NoRoom: "no_room",
    TimedOut: "timeout",
    NotBegun: "not_begun",
    ApiError: "api",
    ApiUnavailable: "api_unavailable",
    ApiForbidden: "api_forbidden",
    ApiDenied: "api",
    HardwareError: "hardware",
    DriverMissing: "driver_missing",
    StorageError: "storage",
}
"""Why a claim failed, for metrics: docs/operating.md says what each means. Classes below these are what these are."""


def reason(error: Exception) -> str:
    """Why it failed, in one word of few: one of `REASONS`, or `INTERNAL`."""
    return next((REASONS[each] for each in type(error).__mro__ if each in REASONS), INTERNAL)
