"""The whole way without cluster and GPU, told step by step: from a pod as HAMi's users write it to limits in its container.

Real: the webhook and the node daemon with their sockets, TLS, gRPC, HTTP, files and CDI specs. Standing in: the API server, the
controller of claims, the scheduler, the kubelet, the GPUs (`--simulate a100x8`) and the files libvgpu.so and
hami-region-hook, for which some shared object and some program of this machine are taken.
"""

import asyncio
import contextlib
import hashlib
import json
import math
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

import yaml

from hami_kubeletplugin import show
from hami_kubeletplugin.api.claim import ClaimRef
from hami_kubeletplugin.api.errors import AdmissionError, HamiError
from hami_kubeletplugin.api.settings import Settings
from hami_kubeletplugin.api.webhook_settings import WebhookSettings
from hami_kubeletplugin.claims.records import Records
from hami_kubeletplugin.daemon.service import run as run_daemon
from hami_kubeletplugin.fake.api_server import ApiServer
from hami_kubeletplugin.fake.control_plane import create_claims, create_pod
from hami_kubeletplugin.fake.kubelet import FakeKubelet, Plugin
from hami_kubeletplugin.fake.scheduler import FakeScheduler
from hami_kubeletplugin.hamicore.versions import VERSIONS_FILE
from hami_kubeletplugin.observe.log import configure
from hami_kubeletplugin.webhook import service

NODE = "demo-node"
ADDRESS = "127.0.0.1"
CONFIGURATION = "mutatingwebhookconfigurations"
PATIENCE = 20.0
"""Seconds for each step; all of them together take about two."""

POD = """\
apiVersion: v1
kind: Pod
metadata: {name: NAME, namespace: default}
spec:
  containers:
  - name: main
    image: my/cuda-program
    resources:
      limits: LIMITS
"""
TRAIN = "{cpu: '2', nvidia.com/gpu: 1, nvidia.com/gpumem: 4000, nvidia.com/gpucores: 30}"
INFER = "{nvidia.com/gpu: 1, nvidia.com/gpumem: 8192}"
MISTAKE = "{nvidia.com/gpu: 1, nvidia.com/gpumem: 4Gi}"

Say = Callable[[str], None]


async def tell(say: Say) -> None:
    """Tell the story.

    Raises:
        HamiError: A step did not end as it must.
    """
    configure("console", "error")
    with tempfile.TemporaryDirectory(prefix="hami-") as folder:
        root = Path(folder)
        async with ApiServer() as api, FakeKubelet(root / "registry") as kubelet:
            settings = _settings(root, api.url)
            api.put("nodes", {"metadata": {"name": NODE}})
            async with _running(run_daemon(settings)), _webhook(api, settings.kubeconfig):
                plugin = await kubelet.plugin(settings.driver_name, PATIENCE)
                say(_title(1, "The daemon has registered with the kubelet, the webhook listens"))
                say(f"driver {settings.driver_name} serves {', '.join(plugin.supported_versions)}")
                say("the webhook has made a certificate, and put it into its configuration's caBundle")
                await _published(api)
                await _story(say, api, plugin, settings)


async def _story(say: Say, api: ApiServer, plugin: Plugin, settings: Settings) -> None:
    slices = api.all("resourceslices")
    devices = [device for s in slices for device in s["spec"]["devices"]]
    say(_title(2, f"{len(devices)} GPUs are published in {len(slices)} ResourceSlice"))
    say(show.devices_table(devices))

    say(_title(3, "Somebody applies a pod as for HAMi"))
    say(_manifest("train", TRAIN).rstrip())
    pod = await create_pod(api, yaml.safe_load(_manifest("train", TRAIN)))
    say(_title(4, "The API server asks the webhook, and the pod becomes"))
    say(_yaml({"spec": pod["spec"]}))
    (template,) = api.all("resourceclaimtemplates")
    say(
        f"with a ResourceClaimTemplate, named by its content, for all pods that need the same:\n{_yaml(template['spec'])}"
    )

    say(_title(5, "Another one comes. Each gets a claim of its own; the scheduler puts both on the same GPU"))
    scheduler = FakeScheduler(slices)
    train = _allocated(api, scheduler, pod)
    infer = _allocated(api, scheduler, await create_pod(api, yaml.safe_load(_manifest("infer", INFER))))
    for ref in (train, infer):
        result = _allocation(api, ref)["devices"]["results"][0]
        say(f"{ref}: {json.dumps(result['consumedCapacity'])} of {result['device']}")

    say(_title(6, "The kubelet asks to prepare them (NodePrepareResources)"))
    answers = await plugin.prepare([train, infer])
    for ref in (train, infer):
        answer = answers[ref.uid]
        if isinstance(answer, str):
            raise HamiError(answer)
        say(f"{ref}: inject {', '.join(answer[0].cdi_ids)}")

    say(_title(7, "What the containers get, from the CDI specs"))
    for ref in (train, infer):
        say(f"{ref}\n" + _edits(settings, ref))

    say(_title(8, "Mistakes are refused, and the message says what to mend"))
    say(await _refused(api, _manifest("mistake", MISTAKE)))
    typo = _claim_with_typo(api, scheduler)
    say(str((await plugin.prepare([typo]))[typo.uid]))

    say(_title(9, "What is prepared on this node (hami-kubeletplugin claims)"))
    records = Records(settings.plugin_dir / "claims")
    say(show.claims_table(records.usable()))

    say(_title(10, "The pods are gone; the kubelet unprepares"))
    await plugin.unprepare([train, infer, typo])
    left = [*settings.cdi_dir.iterdir(), *records.uids(), *(settings.hami_dir / "cache").glob("*")]
    say("nothing is left on the node" if not left else f"left over: {left}")
    if left:
        raise HamiError("the demo left something over")


def _settings(root: Path, url: str) -> Settings:
    kubeconfig = root / "kubeconfig"
    cluster = {"name": "demo", "cluster": {"server": url}}
    context = {"name": "demo", "context": {"cluster": "demo", "user": "demo"}}
    config = {"clusters": [cluster], "users": [{"name": "demo", "user": {}}], "contexts": [context]}
    kubeconfig.write_text(json.dumps({"apiVersion": "v1", "kind": "Config", "current-context": "demo", **config}))
    library = _some_shared_object()
    hami_core = root / "hami-core"
    hami_core.mkdir()
    (hami_core / "libvgpu.so").write_bytes(library)
    # No container will run, so it may pass for a release whose regions we can make, and any program for the hook.
    known = [{"sha256": hashlib.sha256(library).hexdigest(), "version": "demo", "layout": "1.2"}]
    (hami_core / VERSIONS_FILE).write_text(json.dumps(known))
    return Settings(
        node_name=NODE,
        kubeconfig=kubeconfig,
        registry_dir=root / "registry",
        plugin_dir=root / "plugin",
        cdi_dir=root / "cdi",
        hami_dir=root / "vgpu",
        claim_files="disk",  # nobody has to be root for a demo
        hami_core=hami_core,
        region_hook=Path(sys.executable),
        glibc_floor="2.99",  # this machine's own, whatever it is
        simulate="a100x8",
        driver_edits="none",
    )


def _some_shared_object() -> bytes:
    """A small shared object that surely is there: a module of the Python that runs this."""
    modules = (getattr(module, "__file__", None) or "" for module in [math, *list(sys.modules.values())])
    return min((Path(m) for m in modules if m.endswith(".so")), key=lambda path: path.stat().st_size).read_bytes()


@contextlib.asynccontextmanager
async def _running(program: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """One of our programs, as its `run` runs it, less the signals' default."""
    task = asyncio.create_task(program)
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@contextlib.asynccontextmanager
async def _webhook(api: ApiServer, kubeconfig: Path | None) -> AsyncIterator[None]:
    """The webhook, and the configuration by which the API server calls it."""
    settings = WebhookSettings(kubeconfig=kubeconfig, listen=ADDRESS, port=0, tls_hosts=ADDRESS)
    about = {"metadata": {"name": settings.configuration}}
    api.put(CONFIGURATION, {**about, "webhooks": [{"name": "pods.hami.io", "clientConfig": {}}]})
    port: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    async with _running(service.run(settings, started=port.set_result)):
        url = f"https://{ADDRESS}:{await asyncio.wait_for(port, PATIENCE)}/mutate"
        (configuration,) = api.all(CONFIGURATION)
        (webhook,) = configuration["webhooks"]
        api.put(
            CONFIGURATION, {**about, "webhooks": [{**webhook, "clientConfig": {**webhook["clientConfig"], "url": url}}]}
        )
        yield


async def _published(api: ApiServer) -> None:
    async with asyncio.timeout(PATIENCE):
        while not api.all("resourceslices"):  # noqa: ASYNC110 - told by nobody
            await asyncio.sleep(0.02)


def _manifest(name: str, limits: str) -> str:
    return POD.replace("NAME", name).replace("LIMITS", limits)


async def _refused(api: ApiServer, manifest: str) -> str:
    try:
        await create_pod(api, yaml.safe_load(manifest))
    except AdmissionError as error:
        return str(error)
    raise HamiError("a pod with a mistake was created")


def _allocated(api: ApiServer, scheduler: FakeScheduler, pod: Mapping[str, Any]) -> ClaimRef:
    """Give a pod its claim, allocated and reserved as the control plane would leave it."""
    (claim,) = create_claims(api, pod)
    return _stored(api, scheduler.allocate(claim, pod))


def _claim_with_typo(api: ApiServer, scheduler: FakeScheduler) -> ClaimRef:
    """A claim that somebody wrote by hand, and that the webhook never saw."""
    about = {"namespace": "default", "name": "typo"}
    pod = api.put("pods", {"metadata": about, "spec": {"containers": []}})
    parameters = {"apiVersion": "gpu.hami.io/v1alpha1", "kind": "GpuConfig", "corePolicy": "forced"}
    request = {"deviceClassName": "gpu.hami.io", "capacity": {"requests": {"memory": "1Gi"}}}
    devices = {
        "requests": [{"name": "gpu", "exactly": request}],
        "config": [{"opaque": {"driver": "gpu.hami.io", "parameters": parameters}}],
    }
    return _stored(api, scheduler.allocate({"metadata": about, "spec": {"devices": devices}}, pod))


def _stored(api: ApiServer, claim: Mapping[str, Any]) -> ClaimRef:
    metadata = api.put("resourceclaims", dict(claim))["metadata"]
    return ClaimRef(metadata["namespace"], metadata["name"], metadata["uid"])


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


def _yaml(value: object) -> str:
    return yaml.safe_dump(value, sort_keys=False, default_flow_style=None, width=120).rstrip()


def _title(number: int, text: str) -> str:
    return f"\n{number}. {text}"
