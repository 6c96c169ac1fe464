"""`kubectl-hami` as people type it, against an API server."""

import asyncio
import base64
import cProfile
import json
import pstats
import signal
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from hami_kubeletplugin.fake.api_server import ApiServer
from hami_kubeletplugin.kube.paged import PAGE
from hami_kubeletplugin.kube.people import PeoplesClient
from hami_kubeletplugin.kubectl import fits, fits_view, usage_view
from hami_kubeletplugin.kubectl.cluster import look
from hami_kubeletplugin.kubectl.inventory import inventory
from tests import CHECKOUT
from tests.unit.kube import test_people
from tests.unit.kube.test_people import config, written
from tests.unit.kubectl.objects import CLASS, DRIVER, Json, a100s, claim, exactly, pod, share, slice_
from tests.waiting import until

PROGRAM = Path(sys.executable).parent / "kubectl-hami"
POD = """\
apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  containers:
  - {name: m, resources: {limits: {nvidia.com/gpumem: 90000}}}
"""


@pytest.fixture
async def api() -> AsyncIterator[ApiServer]:
    """A cluster with two GPUs, of which one is in use, and a pod that waits."""
    async with ApiServer() as server:
        server.put("resourceslices", slice_("n1", *a100s(2)))
        server.put("deviceclasses", CLASS)
        server.put("nodes", {"metadata": {"name": "n1"}})
        server.put("resourceclaims", claim("used", on={"n1/hami-gpu-0": share("30Gi")}))
        server.put("resourceclaims", claim("wanted", exactly(memory="20Gi", count=2)))
        server.put("pods", pod("wanted"))
        event = {"metadata": {"namespace": "team", "name": "e"}, "involvedObject": {"uid": "u"}, "type": "Warning"}
        server.put("events", event | {"reason": "FailedScheduling", "message": "0/1 nodes", "reportingComponent": "s"})
        yield server


async def call(kubeconfig: str, *words: str, text: str = "") -> subprocess.CompletedProcess[str]:
    """Run it to its end."""
    env = {"PATH": "/usr/bin:/bin", "COLUMNS": "200", "KUBECONFIG": kubeconfig, "LC_ALL": "C", **CHECKOUT}

    def run() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [PROGRAM, *words], input=text, capture_output=True, text=True, timeout=60, env=env, check=False
        )

    return await asyncio.to_thread(run)


async def test_usage(api: ApiServer, tmp_path: Path) -> None:
    """Total, consumed and available by node and for all; two requests are enough, and one that may be refused."""
    path = written(tmp_path / "x", config(api.url))
    done = await call(path, "usage")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[1].split() == [
        *("n1", "2", "1", "80Gi", "30Gi", "50Gi", "200", "0", "200", "20000", "1000", "19000", "-")
    ]
    assert done.stdout.splitlines()[2].split()[0] == "all"
    lists = {what: count for what, count in api.requests.items() if what[0] == "list"}
    assert lists == {("list", "resourceslices"): 1, ("list", "resourceclaims"): 1, ("list", "devicetaintrules"): 1}
    api.fail(403, resource="devicetaintrules", message="no")
    fitting = await call(path, "usage", "--fits", "memory=20Gi")
    assert (fitting.returncode, fitting.stdout.splitlines()[1].split()[:3]) == (0, ["n1", "hami-gpu-1", "2"])
    assert (
        "taints that rules give to GPUs are not shown: list devicetaintrules.resource.k8s.io failed: no (403)"
        in fitting.stderr
    )
    assert "GPUs without room: 1; memory on 1" in fitting.stderr
    api.fail(403, resource="resourceclaims", message="no")
    refused = await call(path, "usage")
    assert (refused.returncode, refused.stdout) == (1, "")
    (line,) = refused.stderr.splitlines()
    assert line.startswith("kubectl-hami: list resourceclaims.resource.k8s.io failed: no (403); allow verb list on")
    assert api.writes == 0


async def test_interrupted(tmp_path: Path) -> None:
    """Ctrl-C ends it at once, whatever it waits for, and no key of the kubeconfig stays in a file."""
    pki = Path(test_people.__file__).parent / "pki"
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(pki / "server.crt", pki / "server.key")
    crt, key = (base64.b64encode((pki / f"server.{kind}").read_bytes()).decode() for kind in ("crt", "key"))
    user = {"client-certificate-data": crt, "client-key-data": key}
    (folder := tmp_path / "tmp").mkdir()
    env = {"PATH": "/usr/bin:/bin", "TMPDIR": str(folder), **CHECKOUT}
    async with ApiServer(tls=tls) as api:
        path = written(tmp_path / "x", config(api.url, user, {"insecure-skip-tls-verify": True}))
        api.latency = 60.0
        process = await asyncio.create_subprocess_exec(
            PROGRAM, "usage", "--kubeconfig", path, env=env, stderr=asyncio.subprocess.PIPE
        )
        await until(lambda: api.requests["list", "resourceclaims"])
        assert [*folder.iterdir()]
        process.send_signal(signal.SIGINT)
        _, told = await asyncio.wait_for(process.communicate(), 30)
        assert (process.returncode, told) == (130, b"")
        assert not [*folder.iterdir()]


async def test_why(api: ApiServer, tmp_path: Path) -> None:
    """What is missing for a pod of a namespace, as text and as JSON; a pod that isn't there is said to be none."""
    path = written(tmp_path / "x", config(api.url))
    done = await call(path, "why", "pod/p", "-n", "team")
    assert done.returncode == 0
    for line in (
        "pod team/p is not scheduled",
        "claim wanted is not allocated: gpu wants 2 GPUs, each with memory 20Gi",
        "s, FailedScheduling: 0/1 nodes",
        "request gpu wants 2 GPUs, 1 of 2 have room",
        "hami-gpu-0  memory: 20Gi wanted, 10Gi of 40Gi available",
    ):
        assert line in done.stdout
    found = json.loads((await call(path, "why", "p", "-n", "team", "-o", "json")).stdout)
    assert found["nodes"][0]["lacking"][0]["missing"] == [
        {"what": "memory", "text": "memory: 20Gi wanted, 10Gi of 40Gi available"}
    ]
    absent = await call(path, "why", "p")
    assert absent.returncode == 1
    assert 'get pods default/p failed: pods "p" not found (404) (context x, http://' in absent.stderr


async def test_convert(api: ApiServer, tmp_path: Path) -> None:
    """`convert` is the one of hami-webhook, and asks the cluster of the context."""
    path = written(tmp_path / "x", config(api.url))
    done = await call(path, "convert", "-f", "-", "--context", "x", text=POD)
    assert "kind: ResourceClaimTemplate" in done.stdout
    assert "no GPU that is published now has 90000 MiB, the most is 40960" in done.stderr
    other = await call(path, "convert", "-f", "-", "--context", "y", text=POD)
    assert "context 'y' is not among its contexts: there are x" in other.stderr


async def test_large_lists_come_in_pages(api: ApiServer, tmp_path: Path) -> None:
    """Of so many claims as two pages hold, two requests are made."""
    path = written(tmp_path / "x", config(api.url))
    for number in range(3):
        api.put("resourceclaims", claim(f"c{number}", on={"n1/hami-gpu-1": share("1Gi")}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hami_kubeletplugin.kube.paged.PAGE", 3)
        with PeoplesClient.of(path) as client:
            seen = await asyncio.to_thread(look, client, DRIVER)
    assert api.requests["list", "resourceclaims"] == 2
    assert seen.inventory.tenants["team"].claims == 4
    assert PAGE == 500


def _calls(nodes: int) -> int:
    """Calls of functions for `usage` and `--fits` of a cluster."""
    slices = [slice_(f"n{number}", *a100s(8)) for number in range(nodes)]
    claims: list[Json] = [
        claim(f"c{number}", namespace=f"team-{number % 20}", on={f"n{number % nodes}/hami-gpu-{number % 8}": share()})
        for number in range(nodes * 5)
    ]
    with cProfile.Profile() as profile:
        found = inventory(slices, claims, DRIVER)
        usage_view.tables(found, "gpu", wide=True)
        fits_view.text(fits_view.answer(found, fits.parse("memory=38Gi,cores=80")), wide=True)
    return int(pstats.Stats(profile).total_calls)  # type: ignore[attr-defined]


def test_costs_grow_as_the_cluster() -> None:
    """Four times the nodes and claims make no more than four times the work."""
    _calls(1)  # what is done once
    assert _calls(80) < 4.2 * _calls(20)
