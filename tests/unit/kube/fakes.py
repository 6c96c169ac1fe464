"""Objects for the tests of the client."""

from typing import Any

CLAIM = {"metadata": {"namespace": "default", "name": "c1", "uid": "u1"}, "status": {"allocation": {"devices": {}}}}


def new_slice(devices: int = 1) -> dict[str, Any]:
    """A small valid slice."""
    return {
        "metadata": {"generateName": "00000-gpu.hami.io-n1-"},
        "spec": {
            "driver": "gpu.hami.io",
            "nodeName": "n1",
            "pool": {"name": "n1", "generation": 1, "resourceSliceCount": 1},
            "devices": [
                {
                    "name": f"gpu-{i}",
                    "attributes": {"productName": {"string": "x" * 64}},
                    "capacity": {"memory": {"value": "40Gi"}},
                    "allowMultipleAllocations": True,
                }
                for i in range(devices)
            ],
        },
    }
