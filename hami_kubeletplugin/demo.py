"""The whole way without cluster and GPU, told step by step.

Real: this daemon, its sockets, gRPC, HTTP, files and CDI specs. Standing in: the API server, the kubelet, the scheduler, the
GPUs (`--simulate a100x8`) and the file libvgpu.so, for which some shared object of this machine is taken.
"""

import asyncio
import contextlib
import json
import math
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

from hami_kubeletplugin import daemon, show
from hami_kubeletplugin.api.claim import ClaimRef
from hami_kubeletplugin.api.errors import HamiError
from hami_kubeletplugin.api.settings import Settings
from hami_kubeletplugin.claims.records import Records
from hami_kubeletplugin.observe.log import configure
from hami_kubeletplugin.standin.api_server import ApiServer
from hami_kubeletplugin.standin.kubelet import Plugin, StandinKubelet
from hami_kubeletplugin.standin.scheduler import StandinScheduler

NODE = "demo-node"
PATIENCE = 20.0
"""Seconds for each step; all of them together take about one."""

Say = Callable[[str], None]


async def tell(say: Say) -> None:
    """Tell the story.

    Raises:
        HamiError: A step did not end as it must.
    """
    configure("console", "error")
    with tempfile.TemporaryDirectory(prefix="hami-") as folder:
        root = Path(folder)
        async with ApiServer() as api, StandinKubelet(root / "registry") as kubelet:
            settings = _settings(root, api.url)
            api.put("nodes", {"metadata": {"name": NODE}})
            async with _daemon(settings):
                plugin = await kubelet.plugin(settings.driver_name, PATIENCE)
                say(_title(1, "The daemon has registered with the kubelet"))
                say(f"driver {settings.driver_name} serves {', '.join(plugin.supported_versions)}")
                await _published(api)
                await _story(say, api, plugin, settings)


async def _story(say: Say, api: ApiServer, plugin: Plugin, settings: Settings) -> None:
    slices = api.all("resourceslices")
    devices = [device for s in slices for device in s["spec"]["devices"]]
    say(_title(2, f"{len(devices)} GPUs are published in {len(slices)} ResourceSlice"))
    say(show.devices_table(devices))

    scheduler = StandinScheduler(slices)
    say(_title(3, "Two pods ask for parts of a GPU; the scheduler puts both on the same one"))
    train = _pod_with_claim(api, scheduler, "train", memory="4000Mi", cores="30")
    infer = _pod_with_claim(api, scheduler, "infer", memory="8Gi", cores="0")
    for ref in (train, infer):
        result = _allocation(api, ref)["devices"]["results"][0]
        say(f"{ref}: {json.dumps(result['consumedCapacity'])} of {result['device']}")

    say(_title(4, "The kubelet asks to prepare them (NodePrepareResources)"))
    for ref, answer in zip((train, infer), (await plugin.prepare([train, infer])).values(), strict=True):
        if isinstance(answer, str):
            raise HamiError(answer)
        say(f"{ref}: inject {', '.join(answer[0].cdi_ids)}")

    say(_title(5, "What the containers get, from the CDI specs"))
    for ref in (train, infer):
        say(f"{ref}\n" + _edits(settings, ref))

    say(_title(6, "A claim whose GpuConfig has a typo is refused, and its pod's event says why"))
    typo = _pod_with_claim(api, scheduler, "typo", memory="1Gi", cores="0", config={"corePolicy": "forced"})
    say(str((await plugin.prepare([typo]))[typo.uid]))

    say(_title(7, "What is prepared on this node (hami-kubeletplugin claims)"))
    records = Records(settings.plugin_dir / "claims")
    say(show.claims_table(record for record in records.all() if not isinstance(record, Exception)))

    say(_title(8, "The pods are gone; the kubelet unprepares"))
    await plugin.unprepare([train, infer, typo])
    left = [*settings.cdi_dir.iterdir(), *records.uids(), *(settings.hami_dir / "cache").glob("*")]
    say("nothing is left" if not left else f"left over: {left}")
    if left:
        raise HamiError("the demo left something over")


def _settings(root: Path, url: str) -> Settings:
    kubeconfig = root / "kubeconfig"
    cluster = {"name": "demo", "cluster": {"server": url}}
    context = {"name": "demo", "context": {"cluster": "demo", "user": "demo"}}
    config = {"clusters": [cluster], "users": [{"name": "demo", "user": {}}], "contexts": [context]}
    kubeconfig.write_text(json.dumps({"apiVersion": "v1", "kind": "Config", "current-context": "demo", **config}))
    return Settings(
        node_name=NODE,
        kubeconfig=kubeconfig,
        registry_dir=root / "registry",
        plugin_dir=root / "plugin",
        cdi_dir=root / "cdi",
        hami_dir=root / "vgpu",
        hami_core=_some_shared_object(),
        glibc_floor="2.99",  # this machine's own, whatever it is
        simulate="a100x8",
        driver_edits="none",
    )


def _some_shared_object() -> Path:
    """A small shared object that surely is there: a module of the Python that runs this."""
    modules = (getattr(module, "__file__", None) or "" for module in [math, *list(sys.modules.values())])
    return min((Path(m) for m in modules if m.endswith(".so")), key=lambda path: path.stat().st_size)


@contextlib.asynccontextmanager
async def _daemon(settings: Settings) -> AsyncIterator[None]:
    """The daemon, as `run` runs it, less the signals' default."""
    task = asyncio.create_task(daemon.run(settings))
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def _published(api: ApiServer) -> None:
    async with asyncio.timeout(PATIENCE):
        while not api.all("resourceslices"):  # noqa: ASYNC110 - told by nobody
            await asyncio.sleep(0.02)


def _pod_with_claim(
    api: ApiServer,
    scheduler: StandinScheduler,
    name: str,
    *,
    memory: str,
    cores: str,
    config: Mapping[str, Any] | None = None,
) -> ClaimRef:
    """Create a pod with one claim, allocated and reserved as the control plane would leave it."""
    pod = api.put(
        "pods",
        {
            "metadata": {"namespace": "default", "name": name},
            "spec": {
                "resourceClaims": [{"name": "gpu", "resourceClaimName": name}],
                "containers": [{"name": "main", "resources": {"claims": [{"name": "gpu"}]}}],
            },
        },
    )
    request = {
        "deviceClassName": "gpu.hami.io",
        "capacity": {"requests": {"memory": memory, "cores": cores, "shares": "1000"}},
    }
    devices: dict[str, Any] = {"requests": [{"name": "gpu", "exactly": request}]}
    if config is not None:
        parameters = {"apiVersion": "gpu.hami.io/v1alpha1", "kind": "GpuConfig", **config}
        devices["config"] = [{"opaque": {"driver": "gpu.hami.io", "parameters": parameters}}]
    claim = {"metadata": {"namespace": "default", "name": name}, "spec": {"devices": devices}}
    stored = api.put("resourceclaims", dict(scheduler.allocate(claim, pod)))
    return ClaimRef("default", name, stored["metadata"]["uid"])


def _allocation(api: ApiServer, ref: ClaimRef) -> Any:
    return next(c for c in api.all("resourceclaims") if c["metadata"]["uid"] == ref.uid)["status"]["allocation"]


def _edits(settings: Settings, ref: ClaimRef) -> str:
    (path,) = settings.cdi_dir.glob(f"*{ref.uid}*")
    edits = json.loads(path.read_text())["devices"][0]["containerEdits"]
    lines = [f"  {variable}" for variable in edits["env"]]
    lines += [
        f"  {mount['containerPath']} <- {mount['hostPath']} ({','.join(mount['options'])})" for mount in edits["mounts"]
    ]
    return "\n".join(lines)


def _title(number: int, text: str) -> str:
    return f"\n{number}. {text}"
