"""The requests by which `status.devices` of claims is written."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from hami_kubeletplugin.kube.call import Call, Object
from hami_kubeletplugin.kube.resource_api import GROUP, KubeClient, segment

_API: Final = f"{GROUP}/v1"
"""Every Kubernetes that is supported serves it."""


class ClaimStatusApi:
    """Server-side apply: entries of others stay as they are.

    Args:
        client: The API server.
        manager: Whose the entries are.
    """

    def __init__(self, client: KubeClient, manager: str) -> None:
        self._client, self._manager = client, manager

    async def get_claim(self, namespace: str, name: str) -> Object:
        """A ResourceClaim.

        Raises:
            ApiNotFound: No such claim.
        """
        return await self._client.get_claim(namespace, name)

    async def apply_devices(self, namespace: str, name: str, uid: str, devices: Sequence[Mapping[str, Any]]) -> None:
        """Have these entries in a claim's `status.devices`, and no others of this manager.

        Raises:
            ApiNotFound: No such claim.
            ApiInvalid: It has another UID, or one of the devices isn't allocated to it.
        """
        call = Call(
            "patch",
            f"resourceclaims/status.{GROUP}",
            f"/apis/{_API}/namespaces/{segment(namespace)}/resourceclaims/{segment(name)}/status",
            f"{namespace}/{name}",
            {"fieldManager": self._manager, "force": "true"},
            content_type="application/apply-patch+yaml",
        )
        body = {
            "apiVersion": _API,
            "kind": "ResourceClaim",
            "metadata": {"namespace": namespace, "name": name, "uid": uid},
            "status": {"devices": list(devices)},
        }
        await self._client.ask(call, body)
