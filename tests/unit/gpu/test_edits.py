"""What the toolkit prints becomes edits that fit into our specs, or a refusal that names the field."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from hami_kubeletplugin.api.errors import HardwareError
from hami_kubeletplugin.gpu.edits import NoDriverEdits, RuntimeDriverEdits
from hami_kubeletplugin.gpu.toolkit_spec import decode

UUID = "GPU-00000000-0000-0000-0000-000000000000"


def printed(**changes: Any) -> dict[str, Any]:
    """The shape of nvidia-ctk 1.20.2's output for one GPU, shortened, with top-level changes."""
    spec = {
        "cdiVersion": "0.7.0",
        "kind": "nvidia.com/gpu",
        "devices": [
            {
                "name": UUID,
                "containerEdits": {
                    "deviceNodes": [
                        {"path": "/dev/nvidia0", "hostPath": "/drv/dev/nvidia0", "major": 195, "permissions": "rwm"},
                        {"path": "/dev/dri/card1", "major": 226, "minor": 1, "fileMode": 432, "gid": 44},
                    ],
                    "additionalGids": [44],
                },
            }
        ],
        "containerEdits": {
            "env": ["NVIDIA_CTK_LIBCUDA_DIR=/usr/lib", "NVIDIA_VISIBLE_DEVICES=void"],
            "deviceNodes": [{"path": "/dev/nvidiactl", "hostPath": "/drv/dev/nvidiactl", "major": 195, "minor": 255}],
            "mounts": [
                {
                    "hostPath": "/drv/usr/lib/libcuda.so.1.2",
                    "containerPath": "/usr/lib/libcuda.so.1.2",
                    "options": ["ro"],
                }
            ],
            "hooks": [
                {"hookName": "createContainer", "path": "/drv/bin/hook", "args": ["hook", "--folder", "/drv/lib"]},
                {"hookName": "createRuntime", "path": "/usr/bin/hook", "args": ["hook", "--driver-root", "/drv"]},
                {"hookName": "startContainer", "path": "/drv/bin/hook", "args": ["hook", "/drv/lib"]},
            ],
        },
    }
    return spec | changes


def test_common_and_gpu_edits_are_told_apart_and_cleaned() -> None:
    """Ours are without NVIDIA_VISIBLE_DEVICES, device numbers and additionalGids (CDI 0.7.0), and else as printed."""
    spec = decode(json.dumps(printed()).encode())
    assert spec.common["env"] == ["NVIDIA_CTK_LIBCUDA_DIR=/usr/lib"]
    assert spec.common["deviceNodes"] == [{"path": "/dev/nvidiactl", "hostPath": "/drv/dev/nvidiactl"}]
    assert spec.common["mounts"] == printed()["containerEdits"]["mounts"]
    assert spec.common["hooks"] == printed()["containerEdits"]["hooks"]
    assert spec.per_gpu == {
        UUID: {
            "deviceNodes": [
                {"path": "/dev/nvidia0", "hostPath": "/drv/dev/nvidia0", "permissions": "rwm"},
                {"path": "/dev/dri/card1", "fileMode": 432, "gid": 44},
            ]
        }
    }


def test_host_paths_follow_the_root_to_where_it_is_on_the_host() -> None:
    """Nodes, mounts, hook programs and host-side arguments move; container paths and other roots stay."""
    spec = decode(json.dumps(printed()).encode())
    moved = spec.moved("/drv", "/")
    assert moved.common["deviceNodes"] == [{"path": "/dev/nvidiactl"}]
    assert moved.common["mounts"][0]["hostPath"] == "/usr/lib/libcuda.so.1.2"
    assert [(hook["path"], hook["args"][-1]) for hook in moved.common["hooks"]] == [
        ("/bin/hook", "/drv/lib"),
        ("/usr/bin/hook", "/"),
        ("/drv/bin/hook", "/drv/lib"),
    ]
    assert moved.per_gpu[UUID]["deviceNodes"][0] == {"path": "/dev/nvidia0", "permissions": "rwm"}
    assert spec.moved("/dr", "/x").common["mounts"] == spec.common["mounts"]
    assert spec.common["deviceNodes"][0]["hostPath"] == "/drv/dev/nvidiactl", "the original is untouched"


def bad(change: Callable[[dict[str, Any]], object]) -> bytes:
    """The output with one thing changed."""
    spec = printed()
    change(spec)
    return json.dumps(spec).encode()


@pytest.mark.parametrize(
    ("output", "field"),
    [
        (b"", "Invalid JSON"),
        (b"# not json", "Invalid JSON"),
        (b"[]", "output"),
        (b"{}", "cdiVersion"),
        (bad(lambda spec: spec.pop("devices")), "devices"),
        (bad(lambda spec: spec.update(intelRdt={})), "intelRdt"),
        (bad(lambda spec: spec["containerEdits"].update(netDevices=[])), r"containerEdits\.netDevices"),
        (bad(lambda spec: spec["containerEdits"].update(env="A=1")), r"containerEdits\.env"),
        (bad(lambda spec: spec["devices"][0].pop("name")), r"devices\.0\.name"),
    ],
)
def test_output_that_can_not_be_passed_on_safely_is_refused(output: bytes, field: str) -> None:
    """An unknown or broken field is named together with the way out, instead of being dropped or passed on blindly."""
    with pytest.raises(HardwareError, match=f"{field}.*--driver-edits=runtime"):
        decode(output)


async def test_mode_none_and_runtime_add_nothing() -> None:
    """Both leave the driver to others; runtime asks the NVIDIA runtime for the GPUs by UUID."""
    none, runtime = await NoDriverEdits().edits([UUID]), await RuntimeDriverEdits().edits([UUID])
    for edits in (none, runtime):
        assert (edits.common, edits.per_gpu, edits.libcuda) == ({}, {UUID: {}}, True)
    assert (none.visible, runtime.visible) == ("void", "uuids")
