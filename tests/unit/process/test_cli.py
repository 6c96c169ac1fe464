"""The commands as people type them."""

import json
import subprocess
from pathlib import Path

import pytest

from hami_kubeletplugin import __version__
from hami_kubeletplugin.api.settings import Settings
from hami_kubeletplugin.fake.api_server import ApiServer
from hami_kubeletplugin.fake.kubelet import FakeKubelet
from tests import CHECKOUT
from tests.unit.process.daemon import PROGRAM, Process, allocated
from tests.waiting import until


def call(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    env = {"PATH": "/usr/bin:/bin", "COLUMNS": "200", **CHECKOUT, **environment}
    return subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, timeout=30, env=env, check=False)


def test_help_documents_every_option() -> None:
    """`run --help` names every setting as an option and as an environment variable."""
    shown = " ".join(call("run", "--help").stdout.split())
    for name in Settings.model_fields:
        assert f"--{name.replace('_', '-')} " in shown
    assert "PydanticUndefined" not in shown
    assert "One of json, console. (default: json)" in shown
    for variable in ("NODE_NAME", "KUBECONFIG", "HAMI_DIR", "HAMI_DEVICE_SPLIT_COUNT", "HAMI_CORE"):
        assert f"[env var: {variable}]" in shown


def test_devices_as_table_and_json() -> None:
    """`devices` shows what would be published, for people and for programs, with options from the environment too."""
    table = call("devices", "--simulate", "mixed")
    assert table.stdout.splitlines()[0].split() == [
        "NAME",
        "UUID",
        "MODEL",
        "MEMORY",
        "CORES",
        "SHARERS",
        "PCIE",
        "ROOT",
        "NUMA",
        "CONDITION",
    ]
    found = json.loads(call("devices", "-o", "json", HAMI_SIMULATE="a100x8", HAMI_DEVICE_SPLIT_COUNT="4").stdout)
    assert len(found) == 8
    assert found[0]["capacity"]["shares"]["requestPolicy"]["default"] == "2500"


def test_top_once_where_there_is_no_terminal(tmp_path: Path) -> None:
    """`top` ends by itself then, for people and for programs."""
    where = ("--simulate", "t4x4", "--plugin-dir", str(tmp_path), "--hami-dir", str(tmp_path))
    shown = call("top", *where)
    assert (shown.returncode, shown.stderr, len(shown.stdout.splitlines())) == (0, "", 9)
    assert "Tesla T4" in shown.stdout
    assert [gpu["memory_used"] for gpu in json.loads(call("top", "-o", "json", *where).stdout)["gpus"]] == [0] * 4


def test_wrong_options_are_named() -> None:
    """A wrong option ends in exit code 1 and one line that names it, without a traceback."""
    wrong = call("devices", "--simulate", "mixed", "--device-split-count", "0")
    assert wrong.returncode == 1
    assert wrong.stderr.startswith("hami-kubeletplugin: --device-split-count: ")
    assert len(wrong.stderr.splitlines()) == 1


def test_node_name_missing() -> None:
    """Without a node name `run` says which variable to set, and how."""
    missing = call("run")
    assert missing.returncode == 1
    assert "NODE_NAME" in missing.stderr


def test_version() -> None:
    """`--version` shows the version and nothing else."""
    shown = call("--version")
    assert (shown.returncode, shown.stdout, shown.stderr) == (0, f"{__version__}\n", "")


def test_an_empty_variable_says_nothing() -> None:
    """An environment variable set to the empty string is as one that is not set."""
    assert call("devices", HAMI_SIMULATE="t4x4", HAMI_DEVICE_SPLIT_COUNT="").returncode == 0


@pytest.mark.parametrize("kept", ["variables", "region"])
async def test_claims_beside_a_running_daemon(process: Process, api: ApiServer, native: Path, kept: str) -> None:
    """`claims` shows what is prepared, for which container, which limits and where they are, and names damaged records."""
    known = ("--hami-core", native / "libvgpu.so", "--region-hook", native / "hami-region-hook")
    async with FakeKubelet(process.registry) as kubelet:
        await process.start(*(map(str, known) if kept == "region" else ()))
        await until(lambda: api.all("resourceslices"))
        plugin = await kubelet.plugin("gpu.hami.io")
        ref = allocated(api, "train", memory="4000Mi", cores="30")
        await plugin.prepare([ref])
        shown = call("claims", "--plugin-dir", process.plugin_dir)
        assert shown.stdout.splitlines()[1].split() == [
            "default/train",
            "gpu",
            "hami-gpu-0",
            "4000Mi",
            "30%",
            kept,
            "-",
            "train/main",
        ]
        use = json.loads(call("claims", "--plugin-dir", process.plugin_dir, "-o", "json").stdout)[0]["uses"][0]
        assert (use["containers"], use["processes"], use["loaded"]) == (["train/main"], None, None)
        (process.plugin_dir / "claims" / f"{ref.uid}.json").write_bytes(b"{}")
        assert "damaged" in call("claims", "--plugin-dir", process.plugin_dir).stderr


def test_demo_goes_all_the_way() -> None:
    """`demo` goes from a pod as for HAMi to its limits without cluster and GPU, shows refusals, and leaves nothing."""
    told = call("demo")
    assert told.returncode == 0, told.stderr
    *_, written, admitted, allocated_, _, inside, refused, _, last = told.stdout.split("\n\n")
    assert "nvidia.com/gpumem: 4000, nvidia.com/gpucores: 30" in written
    assert "nvidia.com" not in admitted
    assert "limits: {cpu: '2'}" in admitted
    assert "resourceClaimTemplateName: hami-gpu-" in admitted
    assert allocated_.count("of hami-gpu-0") == 2
    for limit in ("CUDA_DEVICE_MEMORY_LIMIT_0=4000m", "CUDA_DEVICE_SM_LIMIT_0=30", "CUDA_DEVICE_MEMORY_LIMIT_0=8192m"):
        assert limit in inside
    assert "for 4Gi write 4096" in refused
    assert "corePolicy" in refused
    assert last.rstrip().endswith("nothing is left on the node")
