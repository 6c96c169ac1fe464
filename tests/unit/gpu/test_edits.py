"""What the toolkit prints becomes edits that fit into our specs, or a refusal that names the field."""

import json
import platform
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hami_kubeletplugin.api.errors import HardwareError
from hami_kubeletplugin.gpu.edits import NoDriverEdits, RuntimeDriverEdits
from hami_kubeletplugin.gpu.libcuda import find_libcuda
from hami_kubeletplugin.gpu.toolkit_spec import decode
from tests.unit.gpu.edits import edits_of

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


async def test_mode_none_and_runtime_add_nothing(tmp_path: Path) -> None:
    """Both leave the driver to others; runtime asks the NVIDIA runtime for the GPUs by UUID."""
    none, runtime = (
        await edits_of(NoDriverEdits(), [UUID]),
        await edits_of(RuntimeDriverEdits(lambda: tmp_path), [UUID]),
    )
    for edits in (none, runtime):
        assert (edits.common, edits.per_gpu, edits.no_libcuda) == ({}, {UUID: {}}, None)
    assert (none.visible, runtime.visible) == ("void", "uuids")


async def test_mode_runtime_needs_libcuda_in_the_daemons_own_container(tmp_path: Path) -> None:
    """Without it the edits say what the DaemonSet lacks; it is looked for each time until it is there, and then believed."""
    source = RuntimeDriverEdits(lambda: find_libcuda(tmp_path))
    missing = (await edits_of(source, [UUID])).no_libcuda or ""
    assert all(word in missing for word in ("libcuda.so.1", "runtimeClassName nvidia", "NVIDIA_VISIBLE_DEVICES=all"))
    folder = tmp_path / "usr/lib64"
    folder.mkdir(parents=True)
    library = folder / "libcuda.so.1"
    library.write_bytes(b"")
    assert (await edits_of(source, [UUID])).no_libcuda, "an empty file is what a library was once mounted onto"
    library.write_bytes(b"\x7fELF...")
    assert (await edits_of(source, [UUID])).no_libcuda is None
    library.unlink()
    assert (await edits_of(source, [UUID])).no_libcuda is None


def test_libcuda_is_found_as_the_loader_finds_it(tmp_path: Path) -> None:
    """In the loader's directories, links followed, or where ld.so.cache says; not where the cache names what is gone."""
    assert find_libcuda(tmp_path) is None
    elsewhere = tmp_path / "opt/driver"
    elsewhere.mkdir(parents=True)
    (elsewhere / "libcuda.so.550.54").write_bytes(b"\x7fELF...")
    (tmp_path / "etc").mkdir()
    names = b"libcuda.so.1\0/gone/libcuda.so.1\0/opt/driver/libcuda.so.1\0/opt/driver/libcuda.so.1.old\0"
    (tmp_path / "etc/ld.so.cache").write_bytes(b"glibc-ld.so.cache1.1\x03\0\0\0" + names)
    assert find_libcuda(tmp_path) is None
    (elsewhere / "libcuda.so.1").symlink_to("libcuda.so.550.54")
    assert find_libcuda(tmp_path) == elsewhere / "libcuda.so.1"
    triplet = tmp_path / f"lib/{platform.machine()}-linux-gnu"
    triplet.mkdir(parents=True)
    (triplet / "libcuda.so.1").write_bytes(b"\x7fELF...")
    assert find_libcuda(tmp_path) == triplet / "libcuda.so.1"


def test_a_real_cache_of_the_loader_is_understood(tmp_path: Path) -> None:
    """The one that ldconfig writes names a libcuda.so.1 in a directory of ld.so.conf."""
    folder = tmp_path / "opt/driver"
    folder.mkdir(parents=True)
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/ld.so.conf").write_text("/opt/driver\n")
    (tmp_path / "v.c").write_text("int cuInit(unsigned flags) { return (int)flags; }\n")
    compiled = ["gcc", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", "opt/driver/libcuda.so.550.54", "v.c"]
    for command in (compiled, ["/sbin/ldconfig", "-r", "."]):
        subprocess.run(command, cwd=tmp_path, check=True, timeout=60)
    assert (folder / "libcuda.so.1").is_symlink()
    assert find_libcuda(tmp_path) == folder / "libcuda.so.1"
