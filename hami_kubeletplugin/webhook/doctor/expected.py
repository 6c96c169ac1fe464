"""What this version's manifests have, and in what a cluster differs from it. Pure.

`expected.json` is made from them by hack/expected, and a test holds it equal: the image has no manifests. What people may set for
themselves, which is the namespace, the names of accounts, the driver's name and the names of resources, is no difference.
"""

import functools
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from hami_kubeletplugin.api import names

_ACCOUNT: Final = re.compile(r"system:serviceaccount:(?!kube-system:)([^\":]+):([^\":]+)")
_RESOURCES: Final = re.compile(r"exists\(name, name in \[([^\]]*)\]")
"""In the webhook's conditions, and nowhere else: what they ask for is looked at by itself."""
_SAID: Final = ("message", "messageExpression")
"""Only words, with names in them."""
_MOST: Final = 3
"""Differences of one object that are told."""
_DEEPEST: Final = 40


@functools.cache
def manifests() -> Mapping[str, Any]:
    """`webhooks`, `policies` and `classes` by name."""
    found: Mapping[str, Any] = json.loads((Path(__file__).parent / "expected.json").read_text())
    return found


def accounts(value: object) -> set[tuple[str, str]]:
    """Namespaces and names of the ServiceAccounts that expressions name, those of Kubernetes itself aside."""
    return {(found[1], found[2]) for text in _texts(value) for found in _ACCOUNT.finditer(text)}


def resources(value: object) -> set[str]:
    """The resources of containers that conditions ask for by name."""
    lists = (found[1] for text in _texts(value) for found in _RESOURCES.finditer(text))
    return {name for each in lists for name in re.findall(r'"([^"]*)"', each)}


def differences(expected: object, found: object, *, driver: str, called: Mapping[str, str]) -> list[str]:
    """In what fields something differs from what this version's manifest has; a few of them.

    Fields that the manifest doesn't have are the API server's defaults, or its own.

    Args:
        expected: As in the manifest.
        found: As in the cluster.
        driver: The name of the driver there.
        called: What is called otherwise there: its name -> the manifest's.
    """
    seen = list(_differ(expected, _plainly(found, driver), called, ""))
    more = [f"{len(seen) - _MOST} more"] if len(seen) > _MOST else []
    return [*seen[:_MOST], *more]


def _texts(value: object, depth: int = 0) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif depth < _DEEPEST and isinstance(value, Mapping | list):
        for each in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(each, depth + 1)


def _plainly(value: Any, driver: str, depth: int = 0) -> Any:
    """The same with the driver's default name, and without the names that people may choose."""
    if depth > _DEEPEST:
        return None
    if isinstance(value, Mapping):
        return {key: _plainly(each, driver, depth + 1) for key, each in value.items()}
    if isinstance(value, list):
        return [_plainly(each, driver, depth + 1) for each in value]
    return _plain(value, driver) if isinstance(value, str) else value


def _plain(text: str, driver: str = names.DRIVER) -> str:
    text = " ".join(text.split()).replace(f'"{driver}"', f'"{names.DRIVER}"')
    return _RESOURCES.sub("exists(name, name in [...]", _ACCOUNT.sub("system:serviceaccount:...", text))


def _differ(expected: object, found: object, called: Mapping[str, str], path: str) -> Iterator[str]:
    if isinstance(expected, Mapping):
        known = found if isinstance(found, Mapping) else {}
        for key, each in expected.items():
            if key in _SAID:
                continue
            yield from _differ(each, known.get(key), called, f"{path}.{key}" if path else key)
    elif isinstance(expected, list):
        others = found if isinstance(found, list) else []
        if len(expected) != len(others):
            yield f"{path} has {len(others)} entries instead of {len(expected)}"
            return
        for index, (each, other) in enumerate(zip(expected, others, strict=True)):
            yield from _differ(each, other, called, f"{path}[{index}]")
    elif isinstance(expected, str) and isinstance(found, str):
        if found != _plain(expected) and called.get(found) != expected:
            yield path
    elif expected != found:
        yield path
