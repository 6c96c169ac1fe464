"""Apply a JSON patch that `convert` made: its operations only ever set a field of an object. Pure."""

import copy
from collections.abc import Iterable
from typing import Any

from hami_kubeletplugin.webhook.conversion.convert import Operation


def patched(obj: dict[str, Any], patch: Iterable[Operation]) -> dict[str, Any]:
    """A copy of `obj` with the patch applied."""
    result = copy.deepcopy(obj)
    for operation in patch:
        *parents, field = operation["path"].removeprefix("/").split("/")
        target: Any = result
        for step in parents:
            target = target[int(step) if isinstance(target, list) else step]
        target[field] = operation["value"]
    return result
