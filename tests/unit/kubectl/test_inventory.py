"""Pools and what is consumed of them, as the scheduler and KEP-5677 count."""

from collections.abc import Iterator
from typing import Any

import pytest

from hami_kubeletplugin.api.errors import ApiNotFound, ApiNotServed
from hami_kubeletplugin.kube.call import Call
from hami_kubeletplugin.kubectl import taints, usage_view
from hami_kubeletplugin.kubectl.cluster import look
from hami_kubeletplugin.kubectl.inventory import inventory
from tests.unit.kubectl.objects import DRIVER, Json, a100s, claim, share, slice_


def summary(slices: list[Json], *claims: Json, rules: Any = ()) -> Json:
    """The JSON of `usage`."""
    return usage_view.as_json(inventory(slices, claims, DRIVER, taints.rules(rules)))


def test_consumed_of_each_gpu_and_by_each_namespace() -> None:
    """Shares of all namespaces add up on their GPU; a pool says in KEP-5677's words how many GPUs have something left."""
    found = summary(
        [slice_("n1", *a100s(2))],
        claim("a", on={"n1/hami-gpu-0": share(cores="30")}),
        claim("b", namespace="other", on={"n1/hami-gpu-0": share("1Gi"), "n1/hami-gpu-1": share("40Gi", "100", "10k")}),
    )
    (pool,) = found["pools"]
    assert (pool["totalDevices"], pool["allocatedDevices"], pool["availableDevices"], pool["unavailableDevices"]) == (
        2,
        2,
        0,
        0,
    )
    assert pool["shareableSummary"] == found["shareableSummary"]
    assert pool["shareableSummary"]["capacity"] == [
        {"name": "cores", "total": "200", "consumed": "130", "available": "70"},
        {"name": "memory", "total": "80Gi", "consumed": "45984Mi", "available": "35936Mi"},
        {"name": "shares", "total": "20k", "consumed": "12k", "available": "8k"},
    ]
    assert [device["claims"] for device in pool["devices"]] == [
        [{"namespace": "team", "name": "a"}, {"namespace": "other", "name": "b"}],
        [{"namespace": "other", "name": "b"}],
    ]
    assert {each["namespace"]: (each["claims"], each["devices"]) for each in found["namespaces"]} == {
        "team": (1, 1),
        "other": (1, 2),
    }


def test_what_consumes_nothing() -> None:
    """Admin access, other drivers' results and claims without an allocation take nothing of a GPU."""
    admin, other = (claim(name, on={"n1/hami-gpu-0": share()}) for name in ("admin", "other"))
    admin["status"]["allocation"]["devices"]["results"][0]["adminAccess"] = True
    other["status"]["allocation"]["devices"]["results"][0]["driver"] = "gpu.nvidia.com"
    found = summary(
        [slice_("n1", *a100s(1)), slice_("n1", *a100s(8), driver="gpu.nvidia.com")], admin, other, claim("none")
    )
    assert found["shareableSummary"]["fullyAvailableDevices"] == 1
    assert found["namespaces"] == []


def test_pools_as_the_scheduler_sees_them() -> None:
    """Only the newest generation counts; of a pool with a slice missing, or one name twice, nothing is given out or counted."""
    old, new = slice_("n1", *a100s(8), name="a"), slice_("n1", *a100s(2), name="b", generation=2)
    part, twice = slice_("n2", *a100s(2), of=2), slice_("n3", *a100s(1), *a100s(1))
    pools = {pool["poolName"]: pool for pool in summary([new, old, part, twice])["pools"]}
    assert pools["n1"]["totalDevices"] == 2
    assert pools["n2"]["validationError"] == "pool is incomplete: 1 of 2 slices of generation 1"
    assert "hami-gpu-0" in pools["n3"]["validationError"]
    assert not {"totalDevices", "shareableSummary"} & (pools["n2"].keys() | pools["n3"].keys())
    table = usage_view.tables(inventory([new, part], [], DRIVER), "node", wide=True).splitlines()
    assert table[2].startswith("n2    -")
    assert table[3].split()[:4] == ["all", "2", "0", "80Gi"]


def test_gpus_that_are_gone() -> None:
    """A claim on a GPU that nobody publishes is named, and counts for its namespace."""
    made = inventory([slice_("n1", *a100s(1))], [claim("a", on={"n1/hami-gpu-7": share()})], DRIVER)
    assert usage_view.notes(made) == ["claims have GPUs that are not published now: n1/hami-gpu-7 (of team/a)"]
    assert "team       1       1     4000Mi" in usage_view.tables(made, "namespace", wide=False)
    assert usage_view.notes(inventory([], [], DRIVER)) == ["no node publishes GPUs as driver gpu.hami.io"]


RULE: Json = {
    "spec": {"deviceSelector": {"driver": DRIVER, "pool": "n1"}, "taint": {"key": "k", "effect": "NoSchedule"}}
}


@pytest.mark.parametrize(
    ("rule", "unavailable"),
    [
        (RULE, 1),
        ({"spec": RULE["spec"] | {"deviceSelector": {}}}, 1),
        ({"spec": RULE["spec"] | {"deviceSelector": {"pool": "n2"}}}, 0),
        ({"spec": RULE["spec"] | {"deviceSelector": {"driver": "other"}}}, 0),
        ({"spec": {"taint": RULE["spec"]["taint"]}}, 0),
        ({"spec": RULE["spec"] | {"taint": {"key": "k", "effect": "None"}}}, 0),
    ],
)
def test_taints_of_rules(rule: Json, unavailable: int) -> None:
    """A DeviceTaintRule taints what it selects, which is unavailable then, unless its effect only tells something."""
    (pool,) = summary([slice_("n1", *a100s(1))], rules=[rule])["pools"]
    assert pool["unavailableDevices"] == unavailable


class Serving:
    """A `Reader` of a cluster that serves a rule, and a GPU, in one version of the rules."""

    def __init__(self, version: str) -> None:
        self._version = version

    def get(self, call: Call) -> Json:
        """Nothing."""
        raise ApiNotFound(str(call))

    def all(self, call: Call) -> Iterator[Json]:
        """See `Reader`."""
        if "devicetaintrules" not in call.path:
            yield from [slice_("n1", *a100s(1))] if "slices" in call.path else []
        elif f"/{self._version}/" not in call.path:
            raise ApiNotServed("the server could not find the requested resource")
        else:
            yield RULE


@pytest.mark.parametrize(("version", "unavailable"), [("v1", 1), ("v1beta2", 1), ("v1alpha3", 0)])
def test_versions_of_rules(version: str, unavailable: int) -> None:
    """They are found in both versions in which the scheduler of a supported Kubernetes may know of them."""
    found = look(Serving(version), DRIVER)
    assert found.notes == ()
    assert usage_view.as_json(found.inventory)["pools"][0]["unavailableDevices"] == unavailable


def test_a_device_that_can_not_be_shared() -> None:
    """Who has it has all of it, whatever the claim says."""
    made = inventory(
        [slice_("n1", *a100s(1, allowMultipleAllocations=False))], [claim("a", on={"n1/hami-gpu-0": {}})], DRIVER
    )
    assert made.gpus[0].available("memory") == 0
