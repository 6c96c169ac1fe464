"""`kubectl hami doctor` as people type it, against an API server, and what is in its bundle."""

import json
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from hami_kubeletplugin.fake.api_kinds import RESOURCES
from hami_kubeletplugin.fake.api_server import ApiServer
from tests.unit.kube.test_people import config, written
from tests.unit.kubectl.test_commands import call
from tests.unit.webhook.doctor.sound import world

SECRET = "hunter2"


@pytest.fixture
async def api() -> AsyncIterator[ApiServer]:
    """A sound installation, but that this server calls no webhook."""
    async with ApiServer() as server:
        for resource, objects in world().objects.items():
            for each in objects if resource in RESOURCES else ():
                server.put(resource, each)
        server.put("namespaces", {"metadata": {"name": "default"}})
        yield server


async def test_what_it_says(api: ApiServer, tmp_path: Path) -> None:
    """What is wrong, why and what mends it; as JSON the same; 1 for errors, and nothing is written to the cluster."""
    path = written(tmp_path / "x", config(api.url))
    done = await call(path, "doctor")
    assert (done.returncode, done.stderr) == (1, "")
    assert "ERROR   conversion: a pod in default that names nvidia.com/gpu (dry run) is not converted" in done.stdout
    assert "        $ kubectl get namespace default --show-labels" in done.stdout
    assert done.stdout.splitlines()[-1] == "14 ok, 1 error"
    assert not [each for each in api.all("pods") if each["metadata"]["namespace"] == "default"]
    found = json.loads((await call(path, "doctor", "-o", "json")).stdout)
    assert [each["check"] for each in found if each["level"] == "error"] == ["conversion"]


async def test_exit_codes(api: ApiServer, tmp_path: Path) -> None:
    """3 where something can't be found out and nothing is wrong; warnings count with --strict; no server: one line, once."""
    path = written(tmp_path / "x", config(api.url))
    api.fail(403, verb="create", resource="pods", message='User "u" cannot create resource "pods"')
    unknown = await call(path, "doctor", "-o", "json")
    assert unknown.returncode == 3
    assert [each["check"] for each in json.loads(unknown.stdout) if each["level"] == "unknown"] == ["conversion"]
    api.mend()
    api.remove("nodes", "n2")
    warned = await call(path, "doctor", "--strict", "-o", "json")
    assert warned.returncode == 1
    assert {each["check"] for each in json.loads(warned.stdout) if each["level"] == "warning"} == {"slices"}
    api.latency = 60.0
    slow = await call(path, "doctor", "--timeout", "1")
    assert (slow.returncode, slow.stdout) == (1, "")
    assert "get version failed: no answer in 1 s" in slow.stderr
    await api.down()
    gone = await call(path, "doctor")
    assert (gone.returncode, gone.stdout, len(gone.stderr.splitlines())) == (1, "", 1)
    assert gone.stderr.startswith("kubectl-hami: get version failed:")


def plant(api: ApiServer) -> None:
    """Secrets in all places where people put them."""
    api.put("secrets", {"metadata": {"namespace": "hami-system", "name": "s"}, "data": {"p": SECRET}})
    for resource in ("daemonsets", "deployments", "pods"):
        for each in api.all(resource):
            if each["metadata"]["namespace"] != "hami-system":
                continue
            each["metadata"].setdefault("annotations", {})["kubectl.kubernetes.io/last-applied-configuration"] = SECRET
            each["metadata"]["managedFields"] = [{"manager": SECRET}]
            spec: dict[str, Any] = each["spec"] if resource == "pods" else each["spec"]["template"]["spec"]
            own = spec["containers"][0]
            own["env"].append({"name": "HTTPS_PROXY", "value": f"http://me:{SECRET}@proxy"})
            own["livenessProbe"] = {"httpGet": {"httpHeaders": [{"name": "Authorization", "value": SECRET}]}}
            beside = {
                "name": "beside",
                "image": "x",
                "env": [{"name": "P", "value": SECRET}],
                "args": [SECRET],
                "command": [SECRET],
            }
            spec["containers"] = [own, beside]
            spec["initContainers"] = [beside]
            api.put(resource, each)
    container = {"name": "main", "image": "app", "env": [{"name": "P", "value": SECRET}], "args": [SECRET]}
    theirs = {
        "metadata": {"namespace": "shop", "name": "waits", "annotations": {"a": SECRET}},
        "spec": {
            "containers": [container],
            "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "hami-gpu-x"}],
        },
        "status": {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False", "message": SECRET}]},
    }
    api.put("pods", theirs)


async def test_the_bundle_has_no_secrets(api: ApiServer, tmp_path: Path) -> None:
    """It has our objects, events, findings and who waits for GPUs, and nobody's secrets; it overwrites nothing."""
    plant(api)
    path, bundle = written(tmp_path / "x", config(api.url)), tmp_path / "report.tar.gz"
    event = {
        "metadata": {"namespace": "hami-system", "name": "e"},
        "reason": "BackOff",
        "message": f"Back-off; token={SECRET}",
    }
    api.put("events", event)
    done = await call(path, "doctor", "--support-bundle", str(bundle))
    assert (done.returncode, done.stderr) == (1, "")
    assert not api.requests["get", "secrets"] + api.requests["list", "secrets"]
    with tarfile.open(bundle) as archive:
        files = {}
        for member in archive:
            content = archive.extractfile(member)
            assert content is not None
            files[member.name.removeprefix("report/")] = content.read().decode()
    assert bundle.stat().st_mode & 0o777 == 0o600
    assert [name for name, text in files.items() if SECRET in text] == []
    assert "HTTPS_PROXY" in files["daemonsets.yaml"]
    assert "HAMI_HOST_DRIVER_ROOT" in files["daemonsets.yaml"]
    assert "caBundle" in files["mutating.yaml"]
    assert "hami-kubeletplugin-own-node" in files["policies.yaml"]
    assert "name: waits" in files["waiting.yaml"]
    assert "BackOff" in files["events.yaml"]
    assert any(each["check"] == "conversion" for each in json.loads(files["findings.json"]))
    assert "logs/hami-kubeletplugin-n1.hami-kubeletplugin.txt" in files
    assert not [name for name in files if "beside" in name]
    again = await call(path, "doctor", "--support-bundle", str(bundle))
    assert again.returncode == 1
    assert again.stdout == done.stdout, "what was found is said all the same"
    assert f"--support-bundle {bundle} can't be written: File exists; name a new file" in again.stderr


@pytest.mark.parametrize("resource", ["mutatingwebhookconfigurations", "daemonsets"])
async def test_a_bundle_of_who_may_not_read_everything(api: ApiServer, tmp_path: Path, resource: str) -> None:
    """What may not be read is a file that says so; the rest is there, and so is what was found."""
    path, bundle = written(tmp_path / "x", config(api.url)), tmp_path / "report.tar.gz"
    api.fail(403, verb="list", resource=resource, message=f"cannot list {resource}")
    done = await call(path, "doctor", "--support-bundle", str(bundle))
    assert done.stderr == ""
    assert f"cannot list {resource}" in " ".join(done.stdout.split())
    with tarfile.open(bundle) as archive:
        files = {name.removeprefix("report/") for name in archive.getnames()}
    assert {"slices.yaml", "deviceclasses.yaml", "events.yaml", "findings.json"} <= files
