"""What a program in a container can read of its devices: which GPU it is, and how much of it is its own. Pure.

Contract: KEP-5304; k8s.io/dynamic-resource-allocation v0.37 api/metadata (paths in the container, content) and
kubeletplugin/metadata.go. There is one file for each request of a claim, which whoever uses the request sees.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from hami_kubeletplugin.api import names
from hami_kubeletplugin.api.claim import LABEL
from hami_kubeletplugin.api.errors import ClaimError
from hami_kubeletplugin.api.settings import DNS_SUBDOMAIN
from hami_kubeletplugin.claims.prepared import Prepared, PreparedShare
from hami_kubeletplugin.gpu.attributes import Attribute

FOLDER: Final = "/var/run/kubernetes.io/dra-device-attributes"
_VERSIONS: Final = ("v1beta1", "v1alpha1")
"""Newest first: a reader takes the first that it knows (devicemetadata/decode.go)."""


def container_path(claim: Prepared, request: str) -> str:
    """Where containers find the file of a request.

    By names that stand in the pod's manifest: of a claim made from a template that is its name in the pod.

    Raises:
        ClaimError: A name that could lead out of the folder. The API server lets nobody have one.
    """
    kind, name = ("resourceclaimtemplates", claim.in_pod) if claim.in_pod else ("resourceclaims", claim.ref.name)
    if not LABEL.fullmatch(request) or not re.fullmatch(DNS_SUBDOMAIN, name):
        raise ClaimError(f"{claim.ref}: request {request!r} or the claim has a name that no object can have")
    return f"{FOLDER}/{kind}/{name}/{request}/{claim.driver}-metadata.json"


def documents(claim: Prepared, attributes: Mapping[str, Mapping[str, Attribute]]) -> Mapping[str, bytes]:
    """The content of each request's file: the same for each version, one after the other.

    Args:
        claim: The claim.
        attributes: Those of the node's GPUs, by UUID.

    Raises:
        ClaimError: A GPU is gone.
    """
    requests: dict[str, Any] = {}
    for share in claim.shares:
        if share.uuid not in attributes:
            raise ClaimError(f"{claim.ref}: GPU {share.uuid} is not on this node now")
        name = f"{share.request}/{share.subrequest}" if share.subrequest else share.request
        device = {
            "driver": claim.driver,
            "pool": share.pool,
            "name": share.device,
            "attributes": {**attributes[share.uuid], **_of_share(share)},
        }
        requests.setdefault(share.request, {"name": name, "devices": []})["devices"].append(device)
    return {name: _document(claim, request) for name, request in requests.items()}


def _of_share(share: PreparedShare) -> Mapping[str, Attribute]:
    """What the claim has of the GPU. No limits with admin access, and no `coresPercent` where compute isn't limited."""
    own: dict[str, Attribute] = {}
    if share.share_id:
        own[names.SHARE_ID] = {"string": share.share_id}
    if share.limit.memory_mib:
        own[names.MEMORY_LIMIT] = {"int": share.limit.memory_mib}
    if share.limit.cores:
        own[names.CORES_PERCENT] = {"int": share.limit.cores}
    return own


def _document(claim: Prepared, request: Mapping[str, Any]) -> bytes:
    ref = claim.ref
    content = {
        "metadata": {"name": ref.name, "namespace": ref.namespace, "uid": ref.uid, "generation": 1},
        **({"podClaimName": claim.in_pod} if claim.in_pod else {}),
        "requests": [request],
    }
    rest = json.dumps(content, separators=(",", ":"))[1:]
    return "".join(
        f'{{"kind":"DeviceMetadata","apiVersion":"metadata.resource.k8s.io/{version}",{rest}\n' for version in _VERSIONS
    ).encode()
