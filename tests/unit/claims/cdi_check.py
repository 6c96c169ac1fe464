"""Is this what a CDI runtime accepts?"""

import json
from pathlib import Path
from typing import Any

import jsonschema

from hami_kubeletplugin.api.cdi import Spec

_VALIDATOR: Any = jsonschema.Draft7Validator(json.loads((Path(__file__).parent / "cdi_schema.json").read_text()))


def check(spec: Spec) -> None:
    """Fail unless the spec is valid, its device names are unique, and its version is the lowest for what it holds."""
    _VALIDATOR.validate(spec)
    names = [device["name"] for device in spec["devices"]]
    assert len(set(names)) == len(names), f"device names are not unique: {names}"
    text = json.dumps(spec)
    nodes = [n for e in _edits(spec) for n in e.get("deviceNodes", [])]
    mounts = [m for e in _edits(spec) for m in e.get("mounts", [])]
    assert '"additionalGids"' not in text
    needed = (
        "0.5.0" if any("hostPath" in n for n in nodes) else "0.4.0" if any("type" in m for m in mounts) else "0.3.0"
    )
    assert spec["cdiVersion"] == needed


def _edits(spec: Spec) -> list[Any]:
    return [spec.get("containerEdits", {}), *(device["containerEdits"] for device in spec["devices"])]
