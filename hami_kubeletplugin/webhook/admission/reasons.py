"""Why reviews are denied, in few words: for metrics and the log. Pure."""

from collections.abc import Mapping
from typing import Final

from hami_kubeletplugin.api.errors import (
    AdmissionError,
    ApiConflict,
    ApiDenied,
    ApiError,
    ApiForbidden,
    ApiUnavailable,
    ReviewError,
    TooMany,
    TooSoon,
)

INVALID: Final = "invalid"
"""What the object asks for can't be kept, or given by any device."""
REASONS: Final[Mapping[type[Exception], str]] = {
    AdmissionError: INVALID,
    TooMany: "too_many_templates",
    TooSoon: "too_soon",
    ReviewError: "no_review",
    TimeoutError: "timeout",
    ApiError: "api",
    ApiConflict: "api_conflict",
    ApiUnavailable: "api_unavailable",
    ApiForbidden: "api_forbidden",
    ApiDenied: "api_denied",
}
"""docs/operating.md says what each means. Classes below these are what these are."""


def reason(error: Exception) -> str:
    """Why something was denied, in one word of `REASONS`; empty for what is none of these."""
    return next((REASONS[each] for each in type(error).__mro__ if each in REASONS), "")
