"""What is answered to reviews; the cluster behind it is played by fakes."""

import base64
import json
from typing import Any

import pytest

from hami_kubeletplugin.api.errors import (
    AdmissionError,
    ApiConflict,
    ApiDenied,
    ApiError,
    ApiForbidden,
    ApiUnavailable,
    TooMany,
    TooSoon,
)
from tests.unit.webhook.admission.https import CLAIMS, gpu_pod, review
from tests.unit.webhook.server import Both

CLAIM = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceClaim",
    "metadata": {"name": "c", "namespace": "team"},
    "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.hami.io"}}]}},
}


def config(**parameters: Any) -> dict[str, Any]:
    """The claim with an opaque GpuConfig."""
    whole = {"apiVersion": "gpu.hami.io/v1alpha1", "kind": "GpuConfig"} | parameters
    opaque = {"opaque": {"driver": "gpu.hami.io", "parameters": whole}}
    return CLAIM | {"spec": {"devices": CLAIM["spec"]["devices"] | {"config": [opaque]}}}  # type: ignore[index]


async def test_a_gpu_pod_is_converted(both: Both) -> None:
    """The answer's patch replaces the resources by a claim, and its template was made in the request's namespace."""
    webhook, api_server = both
    response = (await api_server.ask("/mutate?timeout=10s", review(gpu_pod(gpumem="4000")))).response
    assert (response["uid"], response["allowed"], response["patchType"]) == ("705ab4f5", True, "JSONPatch")
    patch = {operation["path"]: operation["value"] for operation in json.loads(base64.b64decode(response["patch"]))}
    assert patch["/spec/containers/0/resources"] == {"claims": [{"name": "gpu-main"}]}
    (claim,) = patch["/spec/resourceClaims"]
    assert webhook.templates.made == [("team", claim["resourceClaimTemplateName"])]
    assert webhook.counted("converted") == 1


async def test_a_dry_run_makes_the_same_patch_and_nothing_else(both: Both) -> None:
    """A dry run's answer is the same as the real one's, and it says that nothing may be written."""
    webhook, api_server = both
    dry = await api_server.ask("/mutate", review(gpu_pod(), dryRun=True))
    assert webhook.templates.made == []
    assert webhook.templates.asked == 1
    assert dry.response == (await api_server.ask("/mutate", review(gpu_pod()))).response


async def test_what_no_gpu_of_the_cluster_has(both: Both) -> None:
    """It is converted, with a warning, as such a GPU may come; before the GPUs are known nothing is said of them."""
    webhook, api_server = both
    large = review(gpu_pod(gpumem="50000"))
    response = (await api_server.ask("/mutate", large)).response
    assert response["allowed"]
    assert "no GPU that is published now has 50000 MiB, the most is 40960" in response["warnings"][0]
    webhook.sizes.synced = False
    assert "warnings" not in (await api_server.ask("/mutate", large)).response


async def test_a_pod_that_names_nothing_of_ours(both: Both) -> None:
    """It comes here because its resource looks like ours: it stays as it is, with a warning, and nothing is made for it."""
    webhook, api_server = both
    pod = gpu_pod()
    pod["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/vgpu": "1"}}
    response = (await api_server.ask("/mutate", review(pod))).response
    assert (response["allowed"], "patch" in response, webhook.templates.asked) == (True, False, 0)
    assert "--resource-count-name" in response["warnings"][0]


async def test_warnings_and_denials(both: Both) -> None:
    """What the conversion remarks is a warning; what it refuses is a denial with the field path."""
    _, api_server = both
    both_kinds = (await api_server.ask("/mutate", review(gpu_pod(gpumem="10", gpumem_percentage="20")))).response
    assert both_kinds["warnings"][0].startswith("spec.containers[0]: ")
    wrong = (await api_server.ask("/mutate", review(gpu_pod(gpucores="-1")))).response
    assert (wrong["allowed"], wrong["status"]["code"], wrong["status"]["reason"]) == (False, 403, "Forbidden")
    assert wrong["status"]["message"].startswith("spec.containers[0].resources.limits[nvidia.com/gpucores]: ")


@pytest.mark.parametrize(
    "changes",
    [
        {"operation": "UPDATE", "oldObject": gpu_pod()},
        {"operation": "UPDATE", "subResource": "ephemeralcontainers"},
        {"operation": "UPDATE", "subResource": "resize"},
        {"operation": "CREATE", "subResource": "eviction"},
    ],
)
async def test_changes_of_a_pod_pass(both: Both, changes: dict[str, Any]) -> None:
    """Only the creation of a pod is converted; all else about pods passes as it is, without remarks."""
    _, api_server = both
    assert (await api_server.ask("/mutate", review(gpu_pod(), **changes))).response == {
        "uid": "705ab4f5",
        "allowed": True,
    }


@pytest.mark.parametrize("operation", ["DELETE", "CONNECT"])
@pytest.mark.parametrize(
    ("path", "kind"), [("/mutate", "MutatingWebhookConfiguration"), ("/validate", "ValidatingWebhookConfiguration")]
)
async def test_what_brings_no_object_passes_with_a_warning(both: Both, operation: str, path: str, kind: str) -> None:
    """No pod slips through by a deletion, so a wrong rule must not stop it; the warning names what to mend."""
    _, api_server = both
    response = (await api_server.ask(path, review(None, operation=operation))).response
    assert response["allowed"]
    assert operation in response["warnings"][0]
    assert f"{kind} hami-webhook" in response["warnings"][0]


DEPLOYMENTS = {"group": "apps", "version": "v1", "resource": "deployments"}


@pytest.mark.parametrize(
    ("path", "changes", "says"),
    [
        ("/mutate", {"resource": DEPLOYMENTS}, "MutatingWebhookConfiguration hami-webhook"),
        ("/mutate", {"resource": CLAIMS}, "resourceclaims of resource.k8s.io/v1 came"),
        ("/mutate", {"resource": {"version": "v2", "resource": "pods"}}, "pods of v2 came"),
        ("/mutate", {"resource": None}, "MutatingWebhookConfiguration hami-webhook"),
        ("/validate", {}, "ValidatingWebhookConfiguration hami-webhook"),
        ("/mutate", {"object": None}, "request.object"),
        ("/mutate", {"operation": "PATCH"}, "request.operation"),
        ("/mutate", {"namespace": None}, "request.namespace"),
    ],
)
async def test_what_an_endpoint_is_not_for(both: Both, path: str, changes: dict[str, Any], says: str) -> None:
    """A wrong rule can't let anything through unseen: it is denied, and the message names what to mend."""
    webhook, api_server = both
    response = (await api_server.ask(path, review(gpu_pod(), **changes))).response
    assert (response["allowed"], response["status"]["code"]) == (False, 400)
    assert says in response["status"]["message"]
    assert webhook.templates.made == []


async def test_claims_are_validated(both: Both) -> None:
    """A claim's GpuConfig is held against its schema; what is wrong is a denial with the field path."""
    webhook, api_server = both
    fine = await api_server.ask("/validate", review(config(corePolicy="force"), resource=CLAIMS))
    assert fine.response["allowed"]
    wrong = (await api_server.ask("/validate", review(config(corePolicy="always"), resource=CLAIMS))).response
    assert wrong["status"]["code"] == 403
    assert "spec.devices.config[0].opaque.parameters.corePolicy" in wrong["status"]["message"]
    assert webhook.refused("/validate") == {"invalid": 1}


async def test_a_wrong_claim_that_exists_can_go(both: Both) -> None:
    """An update that leaves the spec alone, as when a finalizer goes, passes whatever the spec says."""
    _, api_server = both
    bad = config(corePolicy="always")
    update = review(bad | {"metadata": {}}, resource=CLAIMS, operation="UPDATE", oldObject=bad)
    assert (await api_server.ask("/validate", update)).response["allowed"]
    status = review(bad, resource=CLAIMS, operation="UPDATE", subResource="status")
    assert (await api_server.ask("/validate", status)).response["allowed"]
    changed = review(bad, resource=CLAIMS, operation="UPDATE", oldObject=CLAIM)
    assert not (await api_server.ask("/validate", changed)).response["allowed"]


@pytest.mark.parametrize(
    ("error", "code", "says", "after", "why"),
    [
        (
            ApiUnavailable("create failed: no answer", 2.5),
            503,
            "create failed: no answer; try again",
            3,
            "api_unavailable",
        ),
        (ApiConflict("changed by others"), 503, "changed by others; try again", 1, "api_conflict"),
        (ApiForbidden("allow verb create"), 500, "allow verb create", 0, "api_forbidden"),
        (ApiDenied("exceeded quota: templates"), 403, "exceeded quota: templates", 0, "api_denied"),
        (ApiError("refused"), 500, "refused", 0, "api"),
        (AdmissionError("has other content"), 403, "has other content", 0, "invalid"),
        (TooMany("there are 500"), 403, "there are 500", 0, "too_many_templates"),
        (TooSoon("too many were made a moment ago", 2.5), 429, "too many were made a moment ago", 3, "too_soon"),
    ],
)
async def test_trouble_with_the_api(both: Both, error: Exception, code: int, says: str, after: int, why: str) -> None:
    """What goes wrong while templates are made is a denial that says what to do, and counts for its reason."""
    webhook, api_server = both
    webhook.templates.error = error
    status = (await api_server.ask("/mutate", review(gpu_pod()))).response["status"]
    assert (status["code"], status["message"]) == (code, says)
    assert status.get("details") == ({"retryAfterSeconds": after} if after else None)
    assert webhook.refused() == {why: 1}


async def test_sizes_that_are_not_known_yet(both: Both) -> None:
    """Until the ResourceSlices are listed a percentage can't be converted: try again; a size in MiB can."""
    webhook, api_server = both
    webhook.sizes.synced = False
    status = (await api_server.ask("/mutate", review(gpu_pod(gpumem_percentage="50")))).response["status"]
    assert status["code"] == 503
    assert "try again" in status["message"]
    assert (await api_server.ask("/mutate", review(gpu_pod(gpumem="4000")))).response["allowed"]
