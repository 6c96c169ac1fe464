"""`hami-webhook convert` as people type it."""

import asyncio
import json
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import yaml

from hami_kubeletplugin.api.webhook_settings import Conversion
from hami_kubeletplugin.fake.api_server import ApiServer
from tests import CHECKOUT, REPOSITORY

PROGRAM = Path(sys.executable).parent / "hami-webhook"
POD = """\
apiVersion: v1
kind: Pod
metadata: {name: one}
spec:
  containers:
  - {name: main, image: x, resources: {limits: {nvidia.com/gpumem-percentage: 50}}}
"""
MIB = POD.replace("gpumem-percentage: 50", "gpumem: 4000")


def call(*arguments: str | Path, text: str = "", **environment: str) -> subprocess.CompletedProcess[bytes]:
    """Run the command to its end."""
    env = {"PATH": "/usr/bin:/bin", "COLUMNS": "200", **CHECKOUT, **environment}
    return subprocess.run(
        [PROGRAM, "convert", *arguments], input=text.encode(), capture_output=True, timeout=30, env=env, check=False
    )


def test_help_documents_everything() -> None:
    """Every option, with its variable."""
    shown = " ".join(call("--help").stdout.decode().split())
    for option in ("--filename", "-f", "--gpu-memory", "--kubeconfig", "--leave", "--explain"):
        assert f"{option} " in shown or f"{option}," in shown
    for name in Conversion.model_fields:
        assert f"--{name.replace('_', '-')} " in shown
    assert "[env var: HAMI_DEFAULT_MEMORY]" in shown


def test_files_and_standard_input(tmp_path: Path) -> None:
    """Files and `-` are converted together, in order; what is printed can be applied."""
    file = tmp_path / "a.yaml"
    file.write_bytes(b"# kept\r\napiVersion: v1\r\nkind: ConfigMap\r\n")
    done = call("-f", file, "-f", "-", text=MIB)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.startswith(file.read_bytes() + b"---\napiVersion: resource.k8s.io/v1\n")
    assert [one["kind"] for one in yaml.safe_load_all(done.stdout)] == ["ConfigMap", "ResourceClaimTemplate", "Pod"]


def test_kinds_to_leave() -> None:
    """--leave may be repeated; what it names comes out as it is, with a warning."""
    text = (
        MIB.replace("v1\nkind: Pod", "example.com/v1\nkind: Odd")
        .replace("spec:", "spec: {template: {spec:")
        .replace("  containers:\n  - {", "  {containers: [{")
    )
    text = text.rstrip("\n") + "]}}}\n"
    assert b"resourceClaims" in call("-f", "-", text=text).stdout
    done = call("-f", "-", "--leave", "other/*", "--leave", "example.com/Odd", text=text)
    assert done.stdout.decode() == text
    assert "is left as it is, since --leave says so: the webhook converts its pods" in done.stderr.decode()
    assert "--leave: must be GROUP/KIND" in call("-f", "-", "--leave", "Odd", text=text).stderr.decode()


def test_the_standard_input_named_twice() -> None:
    """It is read once: nothing of it is lost."""
    assert call("-f", "-", "-f", "-", text=MIB).stdout == call("-f", "-", text=MIB).stdout != b""


def test_explain_and_warnings() -> None:
    """Words go to stderr; without --explain only what people must know."""
    text = MIB.replace("{name: one}", "{name: one, annotations: {hami.io/gpu-scheduler-policy: spread}}")
    plain, explained = call("-f", "-", text=text), call("-f", "-", "--explain", text=text)
    assert plain.stdout == explained.stdout
    (warning,) = plain.stderr.decode().splitlines()
    assert warning.startswith(
        "warning: standard input, document 1 (Pod one): metadata.annotations[hami.io/gpu-scheduler-policy]"
    )
    assert "    nvidia.com/gpumem: 4000 -> 4000 MiB of each GPU\n" in explained.stderr.decode()
    assert "  warning: metadata.annotations[hami.io/gpu-scheduler-policy]: 'spread'" in explained.stderr.decode()


def test_percentages_with_named_sizes() -> None:
    """--gpu-memory serves percentages, and its variable too."""
    for done in (
        call("-f", "-", "--gpu-memory", "40960, 81920", text=POD),
        call("-f", "-", text=POD, HAMI_GPU_MEMORY="40960,81920"),
    ):
        template, _ = yaml.safe_load_all(done.stdout)
        alternatives = template["spec"]["spec"]["devices"]["requests"][0]["firstAvailable"]
        assert [one["name"] for one in alternatives] == ["of-40960", "of-81920"]


async def test_percentages_from_the_cluster(tmp_path: Path) -> None:
    """--kubeconfig asks the cluster what its GPUs have, once, and only if pods ask for GPUs."""
    device = {
        "name": "hami-gpu-0",
        "allowMultipleAllocations": True,
        "attributes": {"productName": {"string": "NVIDIA A100"}},
        "capacity": {"memory": {"value": "40Gi"}},
    }
    async with ApiServer() as server:
        pool = {"name": "n", "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": "gpu.hami.io", "nodeName": "n", "pool": pool, "devices": [device]}
        server.put("resourceslices", {"metadata": {"name": "s"}, "spec": spec})
        config = tmp_path / "kubeconfig"
        config.write_text(
            json.dumps(
                {
                    "clusters": [{"name": "c", "cluster": {"server": server.url}}],
                    "users": [{"name": "u", "user": {}}],
                    "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
                    "current-context": "x",
                }
            )
        )
        none = MIB.replace("nvidia.com/gpumem: 4000", "cpu: 1")
        assert (await asyncio.to_thread(call, "-f", "-", "--kubeconfig", config, text=none)).returncode == 0
        assert not server.requests
        large = await asyncio.to_thread(call, "-f", "-", "--kubeconfig", config, text=MIB.replace("4000", "50000"))
        assert large.returncode == 0
        assert b"no GPU that is published now has 50000 MiB, the most is 40960" in large.stderr
        server.requests.clear()
        done = await asyncio.to_thread(
            call, "-f", "-", text=POD + "---\n" + POD.replace("50", "25"), KUBECONFIG=str(config)
        )
        assert server.requests["list", "resourceslices"] == 1
    found = [one for one in yaml.safe_load_all(done.stdout) if one["kind"] == "ResourceClaimTemplate"]
    requests = [
        one["spec"]["spec"]["devices"]["requests"][0]["firstAvailable"][0]["capacity"]["requests"] for one in found
    ]
    assert [amounts["memory"] for amounts in requests] == ["20Gi", "10Gi"]


def test_amounts_beyond_named_sizes() -> None:
    """--gpu-memory tells what GPUs have, so that more is warned about without a cluster."""
    done = call("-f", "-", "--gpu-memory", "40960,81920", text=MIB.replace("4000", "500000"))
    assert done.returncode == 0
    (line,) = done.stderr.decode().splitlines()
    assert line.startswith(
        "warning: standard input, document 1 (Pod one): spec.containers[0]: nvidia.com/gpumem: no GPU"
    )
    assert "has 500000 MiB, the most is 81920" in line


def test_a_cluster_that_can_not_be_asked(tmp_path: Path) -> None:
    """Where no percentage needs it, the pods are converted all the same, and one line says what was not looked at."""
    done = call("-f", "-", text=MIB + "---\n" + MIB, KUBECONFIG=str(tmp_path / "none"))
    assert (done.returncode, done.stdout) == (0, call("-f", "-", text=MIB + "---\n" + MIB).stdout)
    (line,) = done.stderr.decode().splitlines()
    assert line.startswith("warning: --kubeconfig: amounts were not held against the cluster's GPUs: ")
    assert str(tmp_path / "none") in line


@pytest.mark.parametrize(
    ("arguments", "text", "message"),
    [
        (
            ["-f", "-"],
            POD,
            "standard input, document 1 (Pod one): spec.containers[0]: nvidia.com/gpumem-percentage needs the memory sizes of ",
        ),
        (
            ["-f", "-", "--gpu-memory", "40Gi"],
            POD,
            "--gpu-memory: must be MiB, separated by commas, such as 40960,81920; got '40Gi'",
        ),
        (["-f", "-", "--gpu-memory", "0"], POD, "--gpu-memory: must be MiB"),
        (["-f", "-", "--gpu-memory", "1" * 5000], POD, "--gpu-memory: must be MiB"),
        (["-f", "no/such"], "", "-f no/such can't be read: No such file or directory"),
        (["-f", "-"], MIB + "---\na: b: c\n", "standard input, document 2, line 8: is not YAML: mapping values"),
        (
            ["-f", "-"],
            MIB + "---\n" + MIB.replace("4000", "-1"),
            "standard input, document 2 (Pod one): spec.containers[0].",
        ),
        (["-f", "-", "--default-cores", "200"], MIB, "--default-cores: "),
    ],
)
def test_nothing_is_printed_if_anything_is_wrong(arguments: list[str], text: str, message: str) -> None:
    """Exit 1, one line that says what and where, and nothing for kubectl to apply."""
    done = call(*arguments, text=text)
    assert (done.returncode, done.stdout) == (1, b"")
    (line,) = done.stderr.decode().splitlines()
    assert line.startswith(f"hami-webhook: {message}")


def test_both_ways_to_the_sizes_are_named() -> None:
    """Someone whose percentages can't be converted reads what to add."""
    told = call("-f", "-", text=POD).stderr.decode()
    assert "with --gpu-memory 40960,81920, or the cluster with --kubeconfig FILE" in told


def test_the_example_of_the_docs() -> None:
    """docs/migrating-from-hami.md shows just what the command prints."""
    page = (REPOSITORY / "docs/migrating-from-hami.md").read_text().partition("## Converting manifests")[2]
    _, given, _, printed, _ = re.split(r"```(?:yaml)?\n", page)
    done = call("-f", "-", "--explain", text=given)
    assert done.stdout.decode().endswith(f"---\n{printed}")
    told = done.stderr.decode().replace("standard input", "pod.yaml")
    assert textwrap.indent(told, "    ") in page


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    """A binary file is refused by name."""
    file = tmp_path / "b"
    file.write_bytes(b"a: \xff")
    assert call("-f", file).stderr.decode() == f"hami-webhook: {file} is not UTF-8: byte 3 is 0xff\n"


@pytest.mark.parametrize(
    ("file", "told"),
    [
        ("Chart.yaml", "render it first, helm template {} | hami-webhook convert -f -"),
        ("kustomization.yaml", "render it first, kubectl kustomize {} | hami-webhook convert -f -"),
        ("pod.yaml", "name its files, each with -f"),
    ],
)
def test_a_folder(tmp_path: Path, file: str, told: str) -> None:
    """It says how to make one file of it."""
    (tmp_path / file).touch()
    done = call("-f", tmp_path)
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr.decode().endswith(f"-f {tmp_path} is a folder: {told.format(tmp_path)}\n")
