"""A pod with a privileged container gets no limited GPU: the container would see all of the node's, whatever is injected."""

from typing import Any

import pytest

from hami_kubeletplugin.api.errors import AdmissionError, ClaimError
from hami_kubeletplugin.api.webhook_settings import Conversion
from hami_kubeletplugin.webhook.conversion.convert import convert
from tests.unit.claims.node import Node
from tests.unit.claims.objects import Json, claim, container, pod, result
from tests.unit.claims.test_plan import planned

PRIVILEGED: dict[str, Any] = {"securityContext": {"privileged": True}}
SIDECAR = {"restartPolicy": "Always"}
WORDS = "securityContext.privileged: a privileged container sees every GPU of its node, so no limit would hold"
USES, BESIDE = container("main", "c"), container("root", **PRIVILEGED)
PODS = {
    "uses the claim": pod("p", container("root", "c", **PRIVILEGED)),
    "one request of it": pod("p", container("main", "c/gpu"), container("root", "c/other", **PRIVILEGED)),
    "beside": pod("p", USES, BESIDE),
    "init": pod("p", USES, init=[BESIDE]),
    "sidecar": pod("p", USES, init=[BESIDE | SIDECAR]),
}
LIMITED = claim("c", [result(0), result(1, request="other")])
ADMIN = [result(number, share=None, request=f"r{number}", adminAccess=True) for number in (0, 1)]


@pytest.mark.parametrize("obj", PODS.values(), ids=list(PODS))
def test_any_privileged_container_of_the_pod(obj: Json) -> None:
    """Whether it uses the claim or not, and whatever its kind; the message names pod, container, field and claim."""
    with pytest.raises(ClaimError) as refused:
        planned(LIMITED, [obj])
    assert str(refused.value).startswith(f"pod default/p, container root: {WORDS}; ")
    assert "claim default/c" in str(refused.value)
    assert "adminAccess" in str(refused.value)


@pytest.mark.parametrize("context", [None, {}, {"privileged": False}, {"runAsUser": 0}])
def test_other_security_contexts(context: Json | None) -> None:
    """Only what is privileged is refused: root alone, or nothing said, is not."""
    assert planned(LIMITED, [pod("p", container("root", "c", securityContext=context))]).uses


def test_a_whole_gpu_is_no_exception() -> None:
    """A privileged container with a whole GPU still has somebody else's as its GPU 0."""
    whole = claim("c", [result(0, "81920Mi", "100")])
    with pytest.raises(ClaimError, match="sees every GPU"):
        planned(whole, [pod("p", container("root", "c", **PRIVILEGED))])


def test_another_pod_of_the_claim() -> None:
    """Of several pods that share a claim, one with a privileged container is enough."""
    with pytest.raises(ClaimError, match="pod default/q, container root"):
        planned(claim("c", [result(0)], pods=["p", "q"]), [pod("p", USES), pod("q", USES, BESIDE)])


def test_admin_access_alone() -> None:
    """With adminAccess nothing is limited, so privileged containers may have it, and be beside it."""
    (use,) = planned(claim("c", ADMIN), [pod("p", container("root", "c", **PRIVILEGED), BESIDE)]).uses
    assert (use.admin, use.enforced_by) == (True, "none")


def test_admin_access_beside_a_limit() -> None:
    """The limit of another request would not hold, so adminAccess for one of them is no way out."""
    mixed = claim("c", [ADMIN[0], result(1, request="limited")])
    with pytest.raises(ClaimError, match="sees every GPU"):
        planned(mixed, [pod("p", container("root", "c/r0", **PRIVILEGED), container("main", "c/limited"))])


def test_the_webhooks_words() -> None:
    """The webhook refuses the same pod, written as for HAMi, and gives the same reason."""
    asking = {"name": "main", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    spec = {"containers": [asking, {"name": "root", **PRIVILEGED}]}
    with pytest.raises(AdmissionError) as refused:
        convert({"metadata": {"name": "p"}, "spec": spec}, Conversion(), tuple)
    assert WORDS in str(refused.value)


async def test_nothing_is_left_on_the_node(node: Node) -> None:
    """The kubelet gets the refusal; neither record nor CDI spec is written. Without the container the next prepare works."""
    obj = claim("c", [result(0)])
    node.api.put(obj, pod("p", USES, BESIDE))
    before = node.snapshot()
    (refused,) = await node.prepare(obj)
    assert WORDS in str(refused)
    assert node.snapshot() == before
    node.api.put(pod("p", USES))
    (answer,) = await node.prepare(obj)
    assert not isinstance(answer, Exception)
