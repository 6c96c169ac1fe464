"""daemonset.yaml and webhook.yaml in the cluster, but for what needs an image: our processes stand for those pods."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from bench.objects import delete
from hami_kubeletplugin.api.errors import ApiConflict
from hami_kubeletplugin.kube.call import Call
from hami_kubeletplugin.kube.client import Client

NAMESPACE: Final = "hami-system"
_REPOSITORY: Final = Path(__file__).parents[1]
_LEFT_OUT: Final = frozenset({"DaemonSet", "Deployment", "Service", "PodDisruptionBudget"})

Json = Mapping[str, Any]


@contextlib.asynccontextmanager
async def installed(api: Client, webhook: str) -> AsyncIterator[None]:
    """Both manifests, removed at the end.

    Args:
        api: An administrator's.
        webhook: Base URL of the webhook, instead of its Service.

    Raises:
        RuntimeError: The cluster has them already.
    """
    objects = [each for name in ("daemonset.yaml", "webhook.yaml") for each in _objects(name)]
    for hook in (hook for each in objects for hook in each.get("webhooks", ())):
        hook["clientConfig"]["url"] = webhook + hook["clientConfig"].pop("service")["path"]
    async with contextlib.AsyncExitStack() as made:
        for each in objects:
            try:
                await api.ask(Call("create", each["kind"], _path(each)), each)
            except ApiConflict:
                raise RuntimeError(f"this cluster has a {each['kind']} {each['metadata']['name']} already") from None
            made.push_async_callback(delete, api, f"{_path(each)}/{each['metadata']['name']}")
        yield


async def kubeconfig_of(api: Client, account: str, admin: Path, file: Path, bound_to: Json | None = None) -> Path:
    """Write a kubeconfig with a service account's token, as its pod would have one.

    Args:
        api: An administrator's.
        account: Of our namespace.
        admin: The administrator's kubeconfig.
        file: What to write.
        bound_to: The node that the token is for, if it is for one.
    """
    await asyncio.to_thread(_write, admin, await token_of(api, account, bound_to), file)
    return file


async def token_of(api: Client, account: str, bound_to: Json | None = None) -> str:
    """That token."""
    spec: dict[str, Any] = {"expirationSeconds": 24 * 3600}
    if bound_to is not None:
        names = {field: bound_to["metadata"][field] for field in ("name", "uid")}
        spec["boundObjectRef"] = {"kind": "Node", "apiVersion": "v1", **names}
    path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{account}/token"
    asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
    answer = await api.ask(Call("create", "serviceaccounts/token", path, account), asked)
    return str(answer["status"]["token"])


def _write(admin: Path, token: str, file: Path) -> None:
    config = yaml.safe_load(admin.read_text())
    for cluster in config["clusters"]:
        authority = cluster["cluster"].get("certificate-authority")
        if authority is not None:
            cluster["cluster"]["certificate-authority"] = str(admin.parent.absolute() / authority)
    for user in config["users"]:
        user["user"] = {"token": token}
    file.touch(0o600)
    file.write_text(yaml.safe_dump(config))


def _objects(name: str) -> Sequence[dict[str, Any]]:
    found = yaml.safe_load_all((_REPOSITORY / name).read_text())
    return [each for each in found if each["kind"] not in _LEFT_OUT]


def _path(obj: Json) -> str:
    """Of all objects of its kind, in its namespace."""
    version, namespace, kind = obj["apiVersion"], obj["metadata"].get("namespace"), obj["kind"].lower()
    root = f"/apis/{version}" if "/" in version else f"/api/{version}"
    plural = f"{kind}es" if kind.endswith("s") else f"{kind[:-1]}ies" if kind.endswith("y") else f"{kind}s"
    return f"{root}/namespaces/{namespace}/{plural}" if namespace else f"{root}/{plural}"
