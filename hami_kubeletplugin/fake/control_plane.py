"""Fakes of what comes between a pod and its claims: the API server's call to the webhook, and the controller of claims.

Just enough of both for the demo: one mutating webhook that is called by URL, and one claim for each template that a pod names.
Contract: kubernetes.io/docs/reference/access-authn-authz/extensible-admission-controllers; kubernetes
pkg/controller/resourceclaim/controller.go.
"""

import base64
import json
import ssl
import uuid
from collections.abc import Mapping
from typing import Any, Final

import aiohttp

from hami_kubeletplugin.api.errors import AdmissionError
from hami_kubeletplugin.fake.api_server import ApiServer
from hami_kubeletplugin.fake.json_patch import patched
from hami_kubeletplugin.kube.template_api import key_of

Json = dict[str, Any]

TIMEOUT: Final = aiohttp.ClientTimeout(total=10)
"""The default of timeoutSeconds."""
PATCHED: Final = "JSONPatch"


async def create_pod(api: ApiServer, pod: Mapping[str, Any]) -> Json:
    """Create a pod as the webhook answers it shall be, and return it.

    Raises:
        AdmissionError: The webhook refuses the pod; its words.
    """
    webhook = api.all("mutatingwebhookconfigurations")[0]["webhooks"][0]
    trusted = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusted.load_verify_locations(cadata=base64.b64decode(webhook["clientConfig"]["caBundle"]).decode())
    async with (
        aiohttp.ClientSession(timeout=TIMEOUT) as session,
        session.post(webhook["clientConfig"]["url"], json=_review(pod), ssl=trusted) as reply,
    ):
        reply.raise_for_status()
        answer = (await reply.json())["response"]
    if not answer["allowed"]:
        message = answer["status"]["message"]
        raise AdmissionError(f'admission webhook "{webhook["name"]}" denied the request: {message}')
    operations = json.loads(base64.b64decode(answer["patch"])) if answer.get("patchType") == PATCHED else []
    return api.put("pods", patched(dict(pod), operations))


def create_claims(api: ApiServer, pod: Mapping[str, Any]) -> list[Json]:
    """Create the claims of a pod from the templates that it names, and say in its status which they are."""
    metadata, claims, statuses = pod["metadata"], [], []
    templates = {key_of(template): template for template in api.all("resourceclaimtemplates")}
    for entry in pod["spec"].get("resourceClaims", ()):
        template = templates[metadata["namespace"], entry["resourceClaimTemplateName"]]
        name = f"{metadata['name']}-{entry['name']}-{uuid.uuid4().hex[:5]}"
        owner = {"apiVersion": "v1", "kind": "Pod", "name": metadata["name"], "uid": metadata["uid"]}
        about = {"namespace": metadata["namespace"], "name": name, "ownerReferences": [{**owner, "controller": True}]}
        claims.append(api.put("resourceclaims", {"metadata": about, "spec": template["spec"]["spec"]}))
        statuses.append({"name": entry["name"], "resourceClaimName": name})
    api.put("pods", {**pod, "status": {"resourceClaimStatuses": statuses}})
    return claims


def _review(pod: Mapping[str, Any]) -> Json:
    request = {
        "uid": str(uuid.uuid4()),
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "namespace": pod["metadata"]["namespace"],
        "operation": "CREATE",
        "dryRun": False,
        "object": pod,
    }
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
