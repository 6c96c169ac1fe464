"""plan: limits for each set of GPUs that a container sees, or a refusal that names the containers."""

from collections.abc import Sequence
from typing import Any

import pytest

from hami_kubeletplugin.api.errors import ClaimError
from hami_kubeletplugin.api.names import DRIVER
from hami_kubeletplugin.claims.allocation import read_claim
from hami_kubeletplugin.claims.plan import plan
from hami_kubeletplugin.claims.pods import read_pod
from hami_kubeletplugin.claims.prepared import Prepared, Use
from hami_kubeletplugin.gpu.model import Inventory
from hami_kubeletplugin.hamicore.storage import stored
from tests.unit.claims.objects import GPUS, NODE, UUID, Json, claim, config, container, gpu, inventory, pod, ref, result


def planned(obj: Json, pods: Sequence[Json], *beside: Json, gpus: Inventory = GPUS) -> Prepared:
    """Plan a claim for pods, with other claims beside it."""
    read = [read_claim(c, ref(c), driver=DRIVER, node=NODE) for c in (obj, *beside)]
    return plan(
        read[0],
        pods=[read_pod(p) for p in pods],
        neighbours=read[1:],
        gpus=gpus.by_device_name(),
        boot_id="boot",
        driver=DRIVER,
    )


def limits(use: Use) -> dict[str, tuple[int, int]]:
    """By UUID."""
    return {uuid: (limit.memory_mib, limit.cores) for uuid, limit in use.gpus.items()}


ALLOW = config(allowSharedContainers=True)
TWO = [result(0, "1000Mi", "10", request="a"), result(1, "2000Mi", "20", request="b")]


def test_one_container_one_claim() -> None:
    """All GPUs of the claim are one use, with one cache directory."""
    made = planned(claim("c", TWO), [pod("p", container("x", "c"))])
    (use,) = made.uses
    assert limits(use) == {UUID[0]: (1000, 10), UUID[1]: (2000, 20)}
    assert (use.containers, use.one_at_a_time, list(stored(made, "directory"))) == (("p/x",), True, ["use-0"])
    assert [share.use for share in made.shares] == [0, 0]


def test_two_containers_with_a_request_each() -> None:
    """Each container is numbered over exactly what it sees, with a cache of its own."""
    made = planned(claim("c", TWO), [pod("p", container("x", "c/a"), container("y", "c/b"))])
    assert [(use.containers, limits(use)) for use in made.uses] == [
        (("p/x",), {UUID[0]: (1000, 10)}),
        (("p/y",), {UUID[1]: (2000, 20)}),
    ]
    assert list(stored(made, "directory")) == ["use-0", "use-1"]


def test_two_claims_in_one_container() -> None:
    """Both claims get the same use, over the GPUs of both; one of them carries the cache."""
    one, two = claim("one", [result(0, "1000Mi", "10")]), claim("two", [result(1, "2000Mi", "0")])
    pods = [pod("p", container("x", "one", "two"))]
    first, second = planned(one, pods, two), planned(two, pods, one)
    assert first.uses == second.uses
    assert limits(first.uses[0]) == {UUID[0]: (1000, 10), UUID[1]: (2000, 0)}
    assert sorted([*stored(first, "directory"), *stored(second, "directory")]) == ["use-0"]


def test_shares_of_one_gpu_are_added_up() -> None:
    """Several shares of one GPU in a container are one limit."""
    results = [result(0, "1000Mi", "10", request="a"), result(0, "500Mi", "0", request="b"), result(0, "24Mi", "5")]
    made = planned(claim("c", results), [pod("p", container("x", "c"))])
    assert limits(made.uses[0]) == {UUID[0]: (1524, 15)}


def test_shares_of_one_request_on_one_gpu() -> None:
    """Kubernetes 1.35 may put a request with count 2 on one GPU twice; share IDs tell them apart."""
    results = [result(0, "1000Mi", "10", share="s1"), result(0, "1000Mi", "10", share="s2")]
    made = planned(claim("c", results), [pod("p", container("x", "c"))])
    assert limits(made.uses[0]) == {UUID[0]: (2000, 20)}
    assert len({made.cdi_device(share) for share in made.shares}) == 2


def test_no_two_results_have_one_cdi_device() -> None:
    """Alternatives, shares and devices of one request, each of which differs from the first in nothing else."""
    results = [
        result(0, request="gpu/big", shareID="one"),
        result(0, request="gpu/small", shareID="one"),
        result(0, request="gpu/big", shareID="two"),
        result(1, request="gpu/big", shareID="one"),
        result(0, request="gpu", shareID="one"),
    ]
    made = planned(claim("c", results), [pod("p", container("x", "c"))])
    assert len({made.cdi_device(share) for share in made.shares}) == len(results)


def test_a_share_in_two_running_containers_is_refused() -> None:
    """Both would get the whole limit."""
    with pytest.raises(
        ClaimError, match=r"p/x and p/y would both get the whole limit of request a, b.*allowSharedContainers"
    ):
        planned(claim("c", TWO), [pod("p", container("x", "c"), container("y", "c"))])


@pytest.mark.parametrize(
    ("init", "refused"),
    [
        ([container("i", "c"), container("j", "c")], False),
        ([container("i", "c"), container("s", "c", restartPolicy="Always")], True),
        ([container("s", restartPolicy="Always"), container("i", "c")], False),
    ],
)
def test_init_containers_may_share_with_what_runs_later(init: list[Json], refused: bool) -> None:
    """What ends before the next one starts has the limit for itself; a sidecar does not end."""
    made = claim("c", [result()])
    pods = [pod("p", container("x", "c"), init=init)]
    if refused:
        with pytest.raises(ClaimError, match=r"p/s and p/x|p/x and p/s|p/i and p/s"):
            planned(made, pods)
    else:
        assert planned(made, pods).uses[0].one_at_a_time


def test_a_sidecar_overlaps_a_later_init_container() -> None:
    """A sidecar before an init container runs beside it."""
    init = [container("s", "c", restartPolicy="Always"), container("i", "c")]
    with pytest.raises(ClaimError, match="p/s and p/i would both get"):
        planned(claim("c", [result()]), [pod("p", container("x"), init=init)])


def test_two_pods_with_one_claim_are_refused() -> None:
    """A claim reserved by two pods that run at the same time would give its limit twice."""
    pods = [pod("p", container("x", "c")), pod("q", container("x", "c"))]
    with pytest.raises(ClaimError, match="p/x and q/x would both get the whole limit"):
        planned(claim("c", [result()], pods=("p", "q")), pods)


def test_two_pods_with_a_request_each() -> None:
    """Two pods that use different requests of one claim share nothing."""
    pods = [pod("p", container("x", "c/a")), pod("q", container("x", "c/b"))]
    made = planned(claim("c", TWO, pods=("p", "q")), pods)
    assert [use.containers for use in made.uses] == [("p/x",), ("q/x",)]


def test_two_pods_that_share_by_consent() -> None:
    """With allowSharedContainers people accept the whole limit for each; every container has its own cache."""
    pods = [pod("p", container("x", "c")), pod("q", container("x", "c"))]
    made = planned(claim("c", [result()], pods=("p", "q"), configs=[ALLOW]), pods)
    assert (made.uses[0].containers, made.uses[0].concurrent, stored(made, "directory")) == (("p/x", "q/x"), True, {})


def test_a_claim_that_may_be_shared_has_private_caches_from_the_start() -> None:
    """Later pods come without a call of the kubelet, so a directory made for one container would end up in two."""
    made = planned(claim("c", [result()], configs=[ALLOW]), [pod("p", container("x", "c"))])
    assert made.uses[0].concurrent


def test_sharing_needs_every_requests_consent() -> None:
    """What one request allows says nothing about another in the same containers."""
    made = claim("c", TWO, configs=[config(requests=["a"], allowSharedContainers=True)])
    with pytest.raises(ClaimError, match="would both get"):
        planned(made, [pod("p", container("x", "c"), container("y", "c"))])


def test_different_views_of_one_share_are_refused() -> None:
    """One CDI device can't carry two numberings; the message names containers and request."""
    pods = [pod("p", container("x", "c"), container("y", "c/a"))]
    with pytest.raises(ClaimError, match=r"containers p/x and p/y both use request 'a', but not the same set of GPUs"):
        planned(claim("c", TWO, configs=[ALLOW]), pods)


def test_different_views_through_another_claim_are_refused() -> None:
    """An init container with one claim and the main container with two see different numberings."""
    one, two = claim("one", [result(0)]), claim("two", [result(1)])
    pods = [pod("p", container("x", "one", "two"), init=[container("i", "one")])]
    with pytest.raises(ClaimError, match=r"p/i and p/x both use request 'gpu'|p/x and p/i both use request 'gpu'"):
        planned(one, pods, two)


def test_a_neighbour_claim_that_serves_another_pod_is_refused() -> None:
    """That pod would see the numbering of this one."""
    one, two = claim("one", [result(0)]), claim("two", [result(1)], pods=("p", "other"))
    with pytest.raises(ClaimError, match=r"p/x uses claim default/two together .* but pod default/other holds it too"):
        planned(one, [pod("p", container("x", "one", "two"))], two)


def test_an_unused_claim_is_prepared_without_containers() -> None:
    """A pod may name a claim that no container uses; every share is its own use."""
    obj = pod("p", container("x"))
    obj["spec"]["resourceClaims"] = [{"name": "c", "resourceClaimName": "c"}]
    made = planned(claim("c", TWO), [obj])
    assert [use.containers for use in made.uses] == [(), ()]
    assert [limits(use) for use in made.uses] == [{UUID[0]: (1000, 10)}, {UUID[1]: (2000, 20)}]


def test_a_pod_that_does_not_name_the_claim_is_refused() -> None:
    """Who sees the GPU is unknown then, and a guess would be a wrong numbering."""
    with pytest.raises(ClaimError, match=r"claim default/c is reserved for pod default/p, which names it neither"):
        planned(claim("c", TWO), [pod("p", container("x", "other"))])


def node_of(count: int) -> Inventory:
    """A node of many GPUs."""
    return inventory(gpu(minor, minor + 1) for minor in range(count))


def test_sixteen_gpus_fit() -> None:
    """HAMi-core's tables have 16 places."""
    results = [result(i, request=f"r{i}") for i in range(16)]
    made = planned(claim("c", results), [pod("p", container("x", "c"))], gpus=node_of(17))
    assert len(made.uses[0].gpus) == 16


def test_seventeen_gpus_are_refused() -> None:
    """The 17th would be unlimited."""
    results = [result(i, request=f"r{i}") for i in range(17)]
    with pytest.raises(ClaimError, match=r"p/x uses 17 GPUs; HAMi-core limits at most 16"):
        planned(claim("c", results), [pod("p", container("x", "c"))], gpus=node_of(17))


def test_more_shares_than_gpus_fit() -> None:
    """The 16 count GPUs, not shares."""
    results = [result(0, "10Mi", "1", request=f"r{i}") for i in range(20)]
    made = planned(claim("c", results), [pod("p", container("x", "c"))])
    assert limits(made.uses[0]) == {UUID[0]: (200, 20)}


@pytest.mark.parametrize(
    ("field", "a", "b"), [("corePolicy", "force", "disable"), ("priority", "high", "low"), ("logLevel", 1, 4)]
)
def test_conflicting_configs_are_refused(field: str, a: Any, b: Any) -> None:
    """HAMi-core knows one value per container; the message names field, values and requests."""
    configs = [config(requests=["a"], **{field: a}), config(requests=["b"], **{field: b})]
    with pytest.raises(ClaimError, match=rf"p/x: GpuConfig {field} is {a!r} for request 'a' and {b!r} for request 'b'"):
        planned(claim("c", TWO, configs=configs), [pod("p", container("x", "c"))])
    made = planned(claim("c", TWO, configs=configs), [pod("p", container("x", "c/a"), container("y", "c/b"))])
    assert len(made.uses) == 2


def test_a_silent_request_goes_along() -> None:
    """A request without a config takes the value of the other one in its container."""
    made = planned(
        claim("c", TWO, configs=[config(requests=["a"], corePolicy="force")]), [pod("p", container("x", "c"))]
    )
    assert made.uses[0].policy.core_policy == "force"


ADMIN = result(0, None, None, request="adm", share=None, adminAccess=True)


def test_admin_and_limited_gpus_in_one_container_are_refused() -> None:
    """HAMi-core limits all GPUs of a container or none."""
    with pytest.raises(ClaimError, match="p/x uses GPUs with and without adminAccess"):
        planned(claim("c", [ADMIN, result(1)]), [pod("p", container("x", "c"))])


def test_admin_access_has_no_limit_and_no_cache() -> None:
    """Devices are visible, nothing else."""
    (use,) = planned(claim("c", [ADMIN]), [pod("p", container("x", "c"))]).uses
    assert (use.admin, use.enforced_by) == (True, "none")


def test_admin_access_may_be_shared_by_containers() -> None:
    """Nothing is limited, so nothing is given twice: a monitor with two containers needs no allowSharedContainers."""
    pods = [pod("p", container("x", "c"), container("y", "c"))]
    (use,) = planned(claim("c", [ADMIN]), pods).uses
    assert use.containers == ("p/x", "p/y")


def test_a_vanished_device_is_refused() -> None:
    """The message has the device, what is there instead, and what to do."""
    with pytest.raises(
        ClaimError, match=r"request 'gpu': device hami-gpu-9 is not on this node now \(there: hami-gpu-0, "
    ):
        planned(claim("c", [result(9)]), [pod("p", container("x", "c"))])


def test_a_vanished_device_beside_the_claim_is_refused() -> None:
    """A neighbour's GPU that is gone would shift the numbering."""
    with pytest.raises(ClaimError, match="device hami-gpu-9 is not on this node"):
        planned(claim("one", [result(0)]), [pod("p", container("x", "one", "two"))], claim("two", [result(9)]))


def test_the_plan_does_not_depend_on_order() -> None:
    """Order of results, containers and pods in the objects changes nothing but the order of answers."""
    results = [*TWO, result(2, "3Gi", "0", request="c")]
    one = planned(claim("c", results), [pod("p", container("x", "c/a", "c/b"), container("y", "c/c"))])
    other = planned(claim("c", results[::-1]), [pod("p", container("y", "c/c"), container("x", "c/b", "c/a"))])
    assert one.uses == other.uses
    assert one.shares == other.shares[::-1]
