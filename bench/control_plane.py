"""A Kubernetes without nodes of flesh: etcd, API server, controllers and scheduler as processes, gone at the end.

Its nodes are objects; nothing runs what the scheduler binds to them.
"""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.process import Process, program, until
from hami_kubeletplugin.api.errors import HamiError
from hami_kubeletplugin.kube.config import from_kubeconfig
from hami_kubeletplugin.kube.resource_api import KubeClient

_ETCD: Final = 23379
_PEER: Final = 23380
_API: Final = 27443
"""Ports of its own, beside any cluster that may run."""
_OURS: Final = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
_USERS: Final = {
    "kubeconfig": "admin",
    # By these names the webhook's configuration tells claims that people write from those that are made from templates.
    "manager.kubeconfig": "system:kube-controller-manager",
    "scheduler.kubeconfig": "system:kube-scheduler",
}
"""Who may do anything, by the file with their token."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Requests per second that Kubernetes' own parts allow themselves; the bursts are twice as many.

    Attributes:
        manager: Each controller; Kubernetes' default is 20, with a burst of 30.
        scheduler: Kubernetes' default is 50, with a burst of 100.
    """

    manager: int
    scheduler: int


@dataclass(frozen=True, slots=True)
class ControlPlane:
    """One that runs.

    Attributes:
        kubeconfig: An administrator's.
        processes: By program.
        start: Starts one again that has ended, and waits until the API server answers, if it is that one.
    """

    kubeconfig: Path
    processes: dict[str, Process]
    start: Callable[[str], Awaitable[None]]


@contextlib.asynccontextmanager
async def control_plane(programs: Path, work: Path, rates: Rates | None = None) -> AsyncIterator[ControlPlane]:
    """Start one and wait until it answers.

    Args:
        programs: Folder of hack/cluster/build, as an absolute path.
        work: An empty folder.
        rates: None as Kubernetes has it.
    """
    tokens = {file: secrets.token_hex(16) for file in _USERS}
    lines = (f"{tokens[file]},{user},{user},system:masters\n" for file, user in _USERS.items())
    (work / "tokens.csv").write_text("".join(lines))
    await _key(work / "sa.key")
    for file, token in tokens.items():
        (work / file).write_text(_KUBECONFIG.format(port=_API, token=token))
    (work / "scheduler.yaml").write_text(_SCHEDULER.format(work=work, client=_client(rates)))
    kubeconfig = work / "kubeconfig"
    options = _options(work, rates)
    processes: dict[str, Process] = {}
    async with contextlib.AsyncExitStack() as stack:

        async def start(name: str) -> None:
            log = stack.enter_context((work / f"{name}.log").open("ab"))
            processes[name] = await stack.enter_async_context(program(programs / name, *options[name], log=log))
            if name == "kube-apiserver":
                await until(lambda: _answers(kubeconfig), f"the API server (log: {work})")

        for name in _OURS:
            await start(name)
        try:
            yield ControlPlane(kubeconfig, processes, start)
        finally:
            # Not gently: there is nothing to keep, and an API server would wait for whoever still watches.
            for process in processes.values():
                with contextlib.suppress(ProcessLookupError):
                    process.kill()


async def _answers(kubeconfig: Path) -> bool:
    try:
        async with KubeClient(from_kubeconfig(kubeconfig), timeout=2) as api:
            await api.list_slices("none", "none")
    except (HamiError, OSError):  # not up yet, or its certificate isn't made
        return False
    return True


async def _key(path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        "openssl", "genrsa", "-out", path, "2048", stderr=asyncio.subprocess.DEVNULL
    )
    if await process.wait():
        raise RuntimeError("openssl genrsa failed")


def _options(work: Path, rates: Rates | None) -> dict[str, list[str]]:
    manager = [f"--kube-api-qps={rates.manager}", f"--kube-api-burst={2 * rates.manager}"] if rates else []
    key, certificates = f"{work}/sa.key", f"{work}/certificates"
    return {
        # Not synced: what the API server keeps is gone with the bench.
        "etcd": [
            f"--data-dir={work}/etcd",
            "--unsafe-no-fsync",
            f"--listen-peer-urls=http://127.0.0.1:{_PEER}",
            f"--listen-client-urls=http://127.0.0.1:{_ETCD}",
            f"--advertise-client-urls=http://127.0.0.1:{_ETCD}",
        ],
        "kube-apiserver": [
            f"--etcd-servers=http://127.0.0.1:{_ETCD}",
            "--bind-address=127.0.0.1",
            f"--secure-port={_API}",
            f"--cert-dir={certificates}",
            f"--token-auth-file={work}/tokens.csv",
            "--authorization-mode=RBAC",
            # It marks new nodes as not ready, until a controller says otherwise that we don't run.
            "--disable-admission-plugins=TaintNodesByCondition",
            "--endpoint-reconciler-type=none",
            f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}",
            "--service-account-issuer=https://bench",
            "--service-cluster-ip-range=10.96.0.0/16",
        ],
        "kube-controller-manager": [
            f"--kubeconfig={work}/manager.kubeconfig",
            f"--service-account-private-key-file={key}",
            "--use-service-account-credentials=false",
            "--leader-elect=false",
            "--secure-port=0",
            # Nobody sends heartbeats for nodes that are only objects.
            "--controllers=*,-node-lifecycle-controller",
            *manager,
        ],
        "kube-scheduler": [f"--config={work}/scheduler.yaml", "--secure-port=0"],
    }


def _client(rates: Rates | None) -> str:
    return f", qps: {rates.scheduler}, burst: {2 * rates.scheduler}" if rates else ""


_KUBECONFIG: Final = """\
apiVersion: v1
kind: Config
clusters: [{{name: bench, cluster: {{server: "https://127.0.0.1:{port}", certificate-authority: certificates/apiserver.crt}}}}]
users: [{{name: admin, user: {{token: {token}}}}}]
contexts: [{{name: bench, context: {{cluster: bench, user: admin}}}}]
current-context: bench
"""
_SCHEDULER: Final = """\
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
leaderElection: {{leaderElect: false}}
clientConnection: {{kubeconfig: {work}/scheduler.kubeconfig{client}}}
"""
