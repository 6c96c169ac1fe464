"""An Event: what is told to people about an object, where `kubectl describe` shows it. Pure."""

import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, Literal, Protocol

Json = Mapping[str, Any]

LONGEST_MESSAGE: Final = 1024


class EventApi(Protocol):
    """What it takes to have one."""

    async def create_event(self, obj: Json) -> Json:
        """POST a core/v1 Event; raises an ApiError, an ApiConflict if there is one of that name."""


def event(
    about: Json, key: str, *, driver: str, node: str, severity: Literal["Normal", "Warning"], reason: str, message: str
) -> Json:
    """One of now.

    Args:
        about: The `involvedObject`; those without a namespace have their Events in `default`, as Kubernetes demands.
        key: What makes it another one than others about that object. Its name follows from it: a daemon that is started anew
            meets the Event instead of repeating it.
        driver: Our driver name.
        node: Our node name.
        severity: Whether somebody has to do something.
        reason: For programs.
        message: For people.
    """
    name, namespace = str(about["name"]), about.get("namespace", "default")
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    digest = hashlib.sha256(key.encode()).hexdigest()[:16]
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"namespace": namespace, "name": f"{name[:230].rstrip('.-')}.{digest}"},
        "involvedObject": about,
        "type": severity,
        "reason": reason,
        "message": message[:LONGEST_MESSAGE],
        "source": {"component": driver, "host": node},
        "reportingComponent": driver,
        "reportingInstance": node,
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }
