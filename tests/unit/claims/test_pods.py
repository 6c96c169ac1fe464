"""read_pod: which container sees which request of which claim, as the kubelet injects them."""

import pytest

from hami_kubeletplugin.claims.pods import Container, Kind, read_pod
from tests.unit.claims.objects import Json, container, pod


def uses(obj: Json) -> dict[str, tuple[tuple[str, str | None], ...]]:
    """Claims by container."""
    return {c.name: c.claims for c in read_pod(obj).containers}


def test_names_and_requests() -> None:
    """A container's entry names one request or, without, the whole claim; several entries add up."""
    made = uses(pod("p", container("x", "a", "b/small"), container("y")))
    assert made == {"x": (("a", None), ("b", "small")), "y": ()}


def test_claims_made_from_a_template() -> None:
    """A template's claim has its name in the status; one that was not needed (null) is no claim."""
    obj = pod("p", container("x", "gpu"), container("y", "spare"))
    obj["spec"]["resourceClaims"] = [
        {"name": "gpu", "resourceClaimTemplateName": "t"},
        {"name": "spare", "resourceClaimTemplateName": "t"},
    ]
    obj["status"]["resourceClaimStatuses"] = [
        {"name": "gpu", "resourceClaimName": "p-gpu-x7k2f"},
        {"name": "spare", "resourceClaimName": None},
    ]
    assert uses(obj) == {"x": (("p-gpu-x7k2f", None),), "y": ()}
    assert read_pod(obj).claim_names == {"p-gpu-x7k2f"}


def test_one_claim_under_two_names() -> None:
    """A pod may name one ResourceClaim twice; both entries mean the same claim."""
    obj = pod("p", container("x", "one", "two/r"))
    obj["spec"]["resourceClaims"] = [{"name": n, "resourceClaimName": "c"} for n in ("one", "two")]
    assert uses(obj) == {"x": (("c", None), ("c", "r"))}


def test_extended_resources() -> None:
    """KEP-5004: the scheduler made the claim, and the status says which container gets which request of it."""
    mappings = [
        {"containerName": "x", "resourceName": "nvidia.com/gpu", "requestName": "container-0-request-0"},
        {"containerName": "i", "resourceName": "nvidia.com/gpu", "requestName": "container-1-request-0"},
    ]
    extended = {"resourceClaimName": "p-extended", "requestMappings": mappings}
    obj = pod("p", container("x"), container("y"), init=[container("i")], extendedResourceClaimStatus=extended)
    assert uses(obj) == {
        "i": (("p-extended", "container-1-request-0"),),
        "x": (("p-extended", "container-0-request-0"),),
        "y": (),
    }
    assert read_pod(obj).claim_names == {"p-extended"}


def test_a_claim_that_no_container_uses_is_still_the_pods() -> None:
    """Pods may name claims that no container asks for."""
    obj = pod("p", container("x"))
    obj["spec"]["resourceClaims"] = [{"name": "n", "resourceClaimName": "c"}]
    assert read_pod(obj).claim_names == {"c"}


@pytest.mark.parametrize(
    ("phase", "finished"), [("Pending", False), ("Running", False), ("Succeeded", True), ("Failed", True)]
)
def test_finished(phase: str, finished: bool) -> None:
    """Only pods that ended for good have finished."""
    assert read_pod(pod("p", container("x"), phase=phase)).finished is finished


def test_a_bare_pod() -> None:
    """Fields that the API server leaves out are nothing."""
    made = read_pod({"metadata": {"namespace": "n", "name": "p", "uid": "u"}, "spec": {"containers": [{"name": "x"}]}})
    assert made.containers == (Container("x", "app", 0, ()),)
    assert not made.finished


OVERLAPS: list[tuple[tuple[Kind, int], tuple[Kind, int], bool]] = [
    (("app", 2), ("app", 2), True),
    (("init", 0), ("app", 2), False),
    (("init", 0), ("init", 1), False),
    (("sidecar", 0), ("app", 2), True),
    (("sidecar", 0), ("init", 1), True),
    (("sidecar", 0), ("sidecar", 1), True),
    (("init", 0), ("sidecar", 1), False),
]


@pytest.mark.parametrize(("one", "other", "overlap"), OVERLAPS)
def test_who_can_run_at_the_same_time(one: tuple[Kind, int], other: tuple[Kind, int], overlap: bool) -> None:
    """A plain init container ends before all that come later; a sidecar goes on beside them."""
    a, b = (Container(f"{kind}-{order}", kind, order, ()) for kind, order in (one, other))
    assert a.overlaps(b) is overlap
    assert b.overlaps(a) is overlap


def test_kinds_come_from_the_restart_policy() -> None:
    """An init container with restartPolicy Always is a sidecar; order follows the list."""
    obj = pod("p", container("app"), init=[container("i"), container("s", restartPolicy="Always")])
    assert [(c.name, c.kind, c.order) for c in read_pod(obj).containers] == [
        ("i", "init", 0),
        ("s", "sidecar", 1),
        ("app", "app", 2),
    ]
