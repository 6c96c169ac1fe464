"""What the webhook's certificate needs of the API: one Secret, and the `caBundle` of the webhook configurations.

Contract: k8s.io/api admissionregistration/v1 types.go, where `webhooks` merges by `name` in a strategic merge patch.
"""

from collections.abc import Mapping
from typing import Any, Final

from hami_kubeletplugin.api import names
from hami_kubeletplugin.kube.call import Call, Object
from hami_kubeletplugin.kube.client import Client
from hami_kubeletplugin.kube.resource_api import segment

GROUP: Final = "admissionregistration.k8s.io"
CONFIGURATIONS: Final = ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")
_MANAGER: Final = {"fieldManager": names.WEBHOOK}
_STRATEGIC: Final = "application/strategic-merge-patch+json"


class CertificateClient(Client):
    """Secrets and webhook configurations, as JSON in dicts; all methods raise `ApiError`."""

    async def get_secret(self, namespace: str, name: str) -> Object:
        """A Secret.

        Raises:
            ApiNotFound: There is none.
        """
        return await self.ask(Call("get", "secrets", _secret(namespace, name), f"{namespace}/{name}"))

    async def create_secret(self, obj: Mapping[str, Any]) -> Object:
        """Create a Secret.

        Raises:
            ApiConflict: There is one.
        """
        namespace, name = obj["metadata"]["namespace"], obj["metadata"]["name"]
        return await self.ask(Call("create", "secrets", _secret(namespace), f"{namespace}/{name}", _MANAGER), obj)

    async def update_secret(self, obj: Mapping[str, Any]) -> Object:
        """Replace a Secret, if it still has the resource version of `obj`.

        Raises:
            ApiConflict: Somebody wrote in between.
            ApiNotFound: It is gone.
        """
        namespace, name = obj["metadata"]["namespace"], obj["metadata"]["name"]
        call = Call("update", "secrets", _secret(namespace, name), f"{namespace}/{name}", _MANAGER)
        return await self.ask(call, obj)

    async def get_configuration(self, resource: str, name: str) -> Object:
        """A webhook configuration; `resource` is one of `CONFIGURATIONS`.

        Raises:
            ApiNotFound: There is none.
        """
        return await self.ask(Call("get", f"{resource}.{GROUP}", _configuration(resource, name), name))

    async def set_ca_bundles(self, resource: str, name: str, version: str, bundles: Mapping[str, str]) -> Object:
        """Set the `caBundle` of some webhooks of a configuration, and nothing else.

        Args:
            resource: One of `CONFIGURATIONS`.
            name: Its name.
            version: The resource version that it must still have.
            bundles: Webhook name -> caBundle, base64.

        Raises:
            ApiConflict: Somebody wrote in between.
            ApiNotFound: It is gone.
        """
        patch = {
            # Also keeps a webhook that was removed meanwhile from coming back as a stump.
            "metadata": {"resourceVersion": version},
            "webhooks": [{"name": webhook, "clientConfig": {"caBundle": text}} for webhook, text in bundles.items()],
        }
        call = Call("patch", f"{resource}.{GROUP}", _configuration(resource, name), name, _MANAGER, _STRATEGIC)
        return await self.ask(call, patch)


def _secret(namespace: str, name: str = "") -> str:
    path = f"/api/v1/namespaces/{segment(namespace)}/secrets"
    return f"{path}/{segment(name)}" if name else path


def _configuration(resource: str, name: str) -> str:
    return f"/apis/{GROUP}/v1/{resource}/{segment(name)}"
