"""read_claim: what an allocated ResourceClaim says, or why it can't be kept as a limit."""

from collections.abc import Callable
from typing import Any

import pytest

from hami_kubeletplugin.api.claim import ClaimRef
from hami_kubeletplugin.api.errors import ClaimError, ConfigError
from hami_kubeletplugin.api.gpuconfig import ClaimRights
from hami_kubeletplugin.api.names import DRIVER
from hami_kubeletplugin.claims.allocation import AllocatedClaim, PodRef, has_devices_of, read_claim
from tests.unit.claims.objects import NODE, Json, claim, config, ref, result


def read(obj: Json, asked: ClaimRef | None = None) -> AllocatedClaim:
    """Read a claim as this node would."""
    return read_claim(obj, asked or ref(obj), driver=DRIVER, node=NODE)


def edited(change: Callable[[Json], Any]) -> Json:
    """A good claim with one change."""
    obj = claim("c", [result()])
    change(obj)
    return obj


def allocation(obj: Json) -> Json:
    """Its status.allocation."""
    made: Json = obj["status"]["allocation"]
    return made


def test_a_claim_is_read() -> None:
    """Request, device, share ID, memory in MiB, cores and the pods come out as the scheduler wrote them."""
    read_back = read(claim("c", [result(2, "40Gi", "30", request="train")], pods=("a", "b")))
    share = read_back.shares[0]
    assert (share.request, share.subrequest, share.device, share.limit.memory_mib, share.limit.cores, share.admin) == (
        "train",
        None,
        "hami-gpu-2",
        40960,
        30,
        False,
    )
    assert share.share_id == result(2, request="train")["shareID"]
    assert [pod.name for pod in read_back.consumers] == ["a", "b"]
    assert isinstance(read_back.consumers[0], PodRef)


def test_a_subrequest_is_split_off() -> None:
    """`main/sub` of a prioritized list: the kubelet knows `main` alone."""
    share = read(claim("c", [result(request="gpu/big")])).shares[0]
    assert (share.request, share.subrequest) == ("gpu", "big")


@pytest.mark.parametrize(
    ("memory", "mib"),
    [("1Mi", 1), ("1048576", 1), ("80Gi", 81920), ("1000Gi", 1024000), ("4000Mi", 4000), ("85899345920", 81920)],
)
def test_memory_is_exact(memory: str, mib: int) -> None:
    """Memory in any form of a quantity, above the device's own too when it is scaled, becomes whole MiB exactly."""
    assert read(claim("c", [result(memory=memory)])).shares[0].limit.memory_mib == mib


def test_results_and_configs_of_other_drivers_are_ignored() -> None:
    """A claim may hold devices of other drivers; neither their results nor their configs concern us, wrong ones included."""
    nic = {"request": "nic", "driver": "net.example.com", "pool": "elsewhere", "device": "eth0"}
    foreign = config(driver="net.example.com", corePolicy="nonsense", source="FromMars")
    read_back = read(claim("c", [nic, result()], configs=[foreign, {"source": "FromClaim"}]))
    assert [share.device for share in read_back.shares] == ["hami-gpu-0"]


def test_admin_access_needs_no_amounts() -> None:
    """With adminAccess nothing is consumed: no share ID and no capacity is asked for, and what is there is no limit."""
    bare, full = read(
        claim("c", [result(0, None, None, share=None, adminAccess=True), result(1, "4Gi", "50", adminAccess=True)])
    ).shares
    assert (bare.admin, bare.share_id, bare.limit.memory_mib, bare.limit.cores) == (True, None, 0, 0)
    assert (full.admin, full.limit.memory_mib, full.limit.cores) == (True, 0, 0)
    assert full.share_id


@pytest.mark.parametrize(
    ("fields", "rights", "said"),
    [
        ({"allowSharedContainers": True}, ClaimRights(shared_containers=False), "allowSharedContainers: true"),
        ({"corePolicy": "disable"}, ClaimRights(core_policy_disable=False), "corePolicy: disable"),
    ],
)
def test_what_an_administrator_refuses_in_claims(fields: dict[str, Any], rights: ClaimRights, said: str) -> None:
    """A claim may not lift its own limits then, for none of its requests; a class, which administrators make, still may."""
    for requests in ((), ("gpu",)):
        obj = claim("c", [result()], configs=[config(**fields, requests=requests)])
        with pytest.raises(ConfigError) as caught:
            read_claim(obj, ref(obj), driver=DRIVER, node=NODE, rights=rights)
        assert str(caught.value) == (
            f"claim default/c: status.allocation.devices.config[0].opaque.parameters: {said} is refused in claims on this node, "
            "by its administrator; leave it out, or use a DeviceClass that says it"
        )
    others: dict[str, Any] = {"allowSharedContainers": False, "corePolicy": "force"}
    obj = claim(
        "c", [result()], configs=[config("FromClass", **fields), config(**others), config(driver="x", **fields)]
    )
    assert read_claim(obj, ref(obj), driver=DRIVER, node=NODE, rights=rights).shares
    allowed = claim("c", [result()], configs=[config(**fields)])
    assert read(allowed).shares


BAD: list[tuple[str, Callable[[Json], Any], str]] = [
    ("not allocated", lambda c: c["status"].pop("allocation"), r"is not allocated \(status.allocation is empty\)"),
    ("no status", lambda c: c.pop("status"), "is not allocated"),
    (
        "other node",
        lambda c: allocation(c).update(claim("x", [], node="node-2")["status"]["allocation"]),
        "is allocated to node node-2, this is node-1",
    ),
    ("other pool", lambda c: allocation(c)["devices"]["results"][0].update(pool="node-2"), "unknown pool 'node-2'"),
    ("no pool", lambda c: allocation(c)["devices"]["results"][0].pop("pool"), "unknown pool None"),
    (
        "no share ID",
        lambda c: allocation(c)["devices"]["results"][0].pop("shareID"),
        "no shareID.*DRAConsumableCapacity",
    ),
    (
        "no capacity",
        lambda c: allocation(c)["devices"]["results"][0].pop("consumedCapacity"),
        r"results\[0\].consumedCapacity.memory: missing.*DRAConsumableCapacity",
    ),
    (
        "no cores",
        lambda c: allocation(c)["devices"]["results"][0]["consumedCapacity"].pop("cores"),
        r"results\[0\].consumedCapacity.cores: missing",
    ),
    (
        "not ours",
        lambda c: allocation(c)["devices"]["results"][0].update(driver="x"),
        f"holds no device of driver {DRIVER}",
    ),
    ("no results", lambda c: allocation(c).update(devices=None, config=None), f"holds no device of driver {DRIVER}"),
    ("no consumer", lambda c: c["status"].pop("reservedFor"), "is reserved for no pod"),
    (
        "podgroup",
        lambda c: c["status"].update(
            reservedFor=[{"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": "g"}]
        ),
        r"status.reservedFor\[0\] is podgroups 'g', not a pod",
    ),
    (
        "twice",
        lambda c: allocation(c)["devices"]["results"].append(result()),
        "same share twice",
    ),
    (
        "source",
        lambda c: allocation(c)["devices"].update(config=[config("FromMars")]),
        r"config\[0\].source: 'FromMars'",
    ),
]


@pytest.mark.parametrize(("change", "message"), [bad[1:] for bad in BAD], ids=[bad[0] for bad in BAD])
def test_bad_claims_are_refused(change: Callable[[Json], Any], message: str) -> None:
    """What can't be kept as a limit refuses the claim, by name, with the field and the reason."""
    with pytest.raises(ClaimError, match=message) as refused:
        read(edited(change))
    assert "claim default/c" in str(refused.value)


@pytest.mark.parametrize("memory", ["0", "1", "1500k", "4000M", "4000.5Mi", "1048577", "-1Mi", "0.5", "999999"])
def test_memory_that_is_no_whole_mib_is_refused(memory: str) -> None:
    """HAMi-core's limit is in MiB here: anything else would be rounded to what nobody allocated."""
    with pytest.raises(ClaimError, match=r"consumedCapacity\.memory.*(not a whole|whole, non-negative)"):
        read(claim("c", [result(memory=memory)]))


@pytest.mark.parametrize(
    ("capacity", "text"), [("memory", "lots"), ("cores", "10 %"), ("cores", "0.5"), ("cores", "-1")]
)
def test_odd_quantities_are_refused(capacity: str, text: str) -> None:
    """What is no whole number is named with its field."""
    amounts = {"memory": "1Mi", "cores": "0", capacity: text}
    with pytest.raises(ClaimError, match=rf"results\[0\]\.consumedCapacity\.{capacity}.*{text}"):
        read(claim("c", [result(**amounts)]))


def test_a_replaced_claim_is_refused() -> None:
    """The kubelet names a UID; an object of the same name with another UID is somebody else's."""
    with pytest.raises(ClaimError, match="got replaced: the kubelet asks for UID old-uid, the API server has"):
        read(claim("c", [result()]), ClaimRef("default", "c", "old-uid"))


def test_configs_of_the_claim_win_over_the_class() -> None:
    """Class first, claim second, whatever their order in the object; fields that the claim leaves out stay the class's."""
    made = [
        config("FromClaim", corePolicy="disable"),
        config("FromClass", corePolicy="force", priority="high", logLevel=3),
    ]
    got = read(claim("c", [result()], configs=made)).shares[0].config
    assert (got.core_policy, got.priority, got.log_level, got.allow_shared_containers) == ("disable", "high", 3, None)


def test_later_configs_win_within_a_source() -> None:
    """Among configs of one source the order of the object decides."""
    made = [config(priority="low"), config(priority="high")]
    assert read(claim("c", [result()], configs=made)).shares[0].config.priority == "high"


def test_a_config_counts_for_its_requests_only() -> None:
    """`requests` selects by request, or by request/subrequest; without it a config is for all."""
    made = [
        config(logLevel=1),
        config(requests=["a"], priority="high"),
        config(requests=["b/small"], corePolicy="force"),
        config(requests=["b/large"], corePolicy="disable"),
    ]
    results = [result(0, request="a"), result(1, request="b/small"), result(2, request="c")]
    a, b, c = (share.config for share in read(claim("c", results, configs=made)).shares)
    assert (a.log_level, a.priority, a.core_policy) == (1, "high", None)
    assert (b.log_level, b.priority, b.core_policy) == (1, None, "force")
    assert (c.log_level, c.priority, c.core_policy) == (1, None, None)


def test_a_config_for_the_main_request_counts_for_its_subrequests() -> None:
    """Configs of the claim may name `main` and mean all its alternatives."""
    got = read(claim("c", [result(request="gpu/big")], configs=[config(requests=["gpu"], logLevel=4)])).shares[0]
    assert got.config.log_level == 4


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (config(corePolicy="forced"), r"config\[0\].opaque.parameters.corePolicy: .*got 'forced'"),
        (config(coreLimit=3), r"config\[0\].opaque.parameters.coreLimit: unknown field"),
        ({"source": "FromClaim", "opaque": {"driver": DRIVER}}, r"opaque.parameters: must be an object"),
        (
            {"source": "FromClaim", "opaque": {"driver": DRIVER, "parameters": {"kind": "GpuConfig"}}},
            r"opaque.parameters.apiVersion: must be 'gpu.hami.io/v1alpha1'",
        ),
    ],
)
def test_a_wrong_config_refuses_the_claim(entry: Json, message: str) -> None:
    """A typo that is ignored would be a limit that is not kept, so it refuses, with the field path."""
    with pytest.raises(ConfigError, match=message):
        read(claim("c", [result()], configs=[entry]))


def test_a_wrong_config_for_another_request_refuses_too() -> None:
    """Strict for the whole claim: who wrote it must hear of the mistake."""
    with pytest.raises(ConfigError):
        read(claim("c", [result()], configs=[config(requests=["other"], nope=1)]))


def test_has_devices_of() -> None:
    """A claim is ours while it is allocated and one result names our driver."""
    assert has_devices_of(claim("c", [result()]), DRIVER)
    assert not has_devices_of(claim("c", [result(driver="x")]), DRIVER)
    assert not has_devices_of(edited(lambda c: c.pop("status")), DRIVER)
    assert not has_devices_of({"status": {"allocation": None}}, DRIVER)
