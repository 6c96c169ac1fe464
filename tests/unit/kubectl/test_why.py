"""`why`: what is missing on each node and GPU, and what else keeps a pod from starting."""

import pytest

from hami_kubeletplugin.kubectl import why as module
from hami_kubeletplugin.kubectl import why_view
from hami_kubeletplugin.kubectl.cluster import Around, Seen
from hami_kubeletplugin.kubectl.why import why
from hami_kubeletplugin.webhook.conversion import cel
from tests.unit.kubectl.objects import CLASS, DRIVER, Json, a100s, around, claim, exactly, pod, seen, share, slice_

TWO = [slice_("n1", *a100s(2)), slice_("n2", *a100s(2))]
NODES: list[Json] = [{"metadata": {"name": name, "labels": {"zone": name}}, "spec": {}} for name in ("n1", "n2")]


def told(about: Around, there: Seen, *, wide: bool = False) -> str:
    """What is shown."""
    return why_view.text("team/p", why(about, there), wide=wide)


def test_each_gpu_of_each_node() -> None:
    """GPUs that lack the same are together; a node that has room is first, with the GPUs that it would give."""
    wanted = claim("c", exactly(memory="30Gi", cores="50"))
    used = [claim("a", on={"n1/hami-gpu-0": share("20Gi")}), claim("b", on={"n1/hami-gpu-1": share("20Gi", "60")})]
    text = told(around(pod("c"), wanted, nodes=NODES), seen(TWO, *used))
    assert text.splitlines()[0] == "pod team/p is not scheduled"
    assert "claim c is not allocated: gpu wants 1 GPU with memory 30Gi, cores 50" in text
    assert [line.split(None, 2) for line in text.split("\n\n")[1].splitlines()[1:]] == [
        ["n2", "hami-gpu-0", "nothing: it has room"],
        ["n1", "hami-gpu-0", "memory: 30Gi wanted, 20Gi of 40Gi available"],
        ["n1", "hami-gpu-1", "memory: 30Gi wanted, 20Gi of 40Gi available; cores: 50 wanted, 40 of 100 available"],
    ]
    assert "1 of 2 nodes with GPUs have room" in text


def test_several_gpus_and_alternatives() -> None:
    """Of `count: N` it is said how many have room; of a percentage the alternative that is meant for the GPU counts."""
    half = {
        "name": "gpu",
        "firstAvailable": [
            {
                "name": f"of-{mib}",
                **exactly(memory=f"{mib // 2}Mi", count=2, selectors=[cel.memory_is(DRIVER, mib)])["exactly"],
            }
            for mib in (81920, 40960)
        ],
    }
    used = claim("a", on={"n1/hami-gpu-0": share("30Gi")})
    text = told(around(pod("c"), claim("c", half)), seen([TWO[0]], used))
    assert (
        "gpu/of-81920 wants 2 GPUs, each with memory 40Gi or gpu/of-40960 wants 2 GPUs, each with memory 20Gi" in text
    )
    assert "request gpu wants 2 GPUs, 1 of 2 have room" in text
    assert "hami-gpu-0  memory: 20Gi wanted, 10Gi of 40Gi available" in text
    assert "not judged" not in text


def test_all_claims_together() -> None:
    """Claims of one pod take from each other: two whole GPUs and a share don't fit on two GPUs, though each alone does."""
    whole = claim("whole", exactly(shares="10k", count=2))
    text = told(around(pod("whole", "part"), whole, claim("part", exactly(memory="1Gi"))), seen([TWO[0]]))
    assert "all of them together, as they are constrained, seem to have none" in text
    fine = told(around(pod("part"), claim("part", exactly(memory="1Gi", count=2))), seen([TWO[0]]))
    assert "hami-gpu-0, hami-gpu-1  nothing: it has room" in fine


def test_all_gpus_are_all() -> None:
    """`allocationMode: All` wants every GPU that it selects and that could ever be enough: one that others use is in the way."""
    used = claim("a", on={"n1/hami-gpu-0": share("30Gi")})
    wanted = claim("c", exactly(memory="20Gi", allocationMode="All"))
    text = told(around(pod("c"), wanted), seen(TWO, used))
    assert "request gpu wants all 2 GPUs, 1 of 2 have room" in text
    assert "n1    hami-gpu-0              memory: 20Gi wanted, 10Gi of 40Gi available" in text
    assert "n2    hami-gpu-0, hami-gpu-1  nothing: it has room" in text
    # What could never be it is none of all.
    small = a100s(2)
    small[0]["capacity"]["memory"]["value"] = "10Gi"
    assert "hami-gpu-1  nothing: it has room" in told(around(pod("c"), wanted), seen([slice_("n1", *small)]))
    # A taint counts as well, and GPUs of which the scheduler gives out none.
    tainted = [slice_("n1", *a100s(1), *a100s(2, taints=[{"key": "k", "effect": "NoSchedule"}])[1:])]
    assert "has room" not in told(around(pod("c"), wanted), seen(tainted))


def test_admin_access_needs_room() -> None:
    """It takes nothing, but what it asks for has to be free, and who names no memory asks for all of it."""
    used = [claim("a", on={f"n1/hami-gpu-{number}": share("1Gi")}) for number in range(2)]
    asks_none = claim("c", exactly(adminAccess=True))
    assert "memory: 40Gi wanted, 39Gi of 40Gi available" in told(around(pod("c"), asks_none), seen([TWO[0]], *used))
    little = claim("c", exactly(adminAccess=True, memory="1Mi"))
    assert "nothing: it has room" in told(around(pod("c"), little), seen([TWO[0]], *used))


@pytest.mark.parametrize(("attribute", "room"), [("resource.kubernetes.io/numaNode", True), (f"{DRIVER}/uuid", False)])
def test_what_has_to_be_the_same(attribute: str, room: bool) -> None:
    """GPUs of a request with `matchAttribute` have one value of it in common; of requests with `distinctAttribute`, none."""
    gpus = [slice_("n1", *a100s(2))]
    same = claim("c", exactly(memory="1Gi", count=2), constraints=[{"matchAttribute": attribute}])
    assert ("it has room" in told(around(pod("c"), same), seen(gpus))) == room
    apart = [exactly(f"gpu-{number}", memory="1Gi") for number in range(2)]
    distinct = claim("c", *apart, constraints=[{"distinctAttribute": attribute}])
    assert ("it has room" in told(around(pod("c"), distinct), seen(gpus))) == (not room)
    lone = claim("c", *apart[:1], constraints=[{"distinctAttribute": f"{DRIVER}/nothing"}])
    assert "it has room" not in told(around(pod("c"), lone), seen(gpus)), "a GPU without the attribute is none"


def test_nodes() -> None:
    """Cordons, taints, selectors and an allocation elsewhere keep a pod from a node, whatever its GPUs have."""
    nodes: list[Json] = [
        {"metadata": {"name": "n1"}, "spec": {"unschedulable": True, "taints": [{"key": "k", "effect": "NoExecute"}]}},
        {"metadata": {"name": "n2", "labels": {"zone": "a"}}, "spec": {}},
    ]
    there = claim("there", on={"n1/hami-gpu-0": share()})
    term = {"matchExpressions": [{"key": "zone", "operator": "NotIn", "values": ["a"]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}
    waits = pod("c", "there", nodeSelector={"zone": "b"}, affinity=affinity)
    text = told(around(waits, claim("c", exactly(memory="1Gi")), there, nodes=nodes), seen(TWO, there))
    for line in (
        "n1    -    node is cordoned",
        "n1    -    node has the taint k:NoExecute",
        "n1    -    node has not the label zone=b of its nodeSelector",
        "n2    -    node is not what its nodeAffinity requires",
        "n2    -    claim there is allocated elsewhere",
        "claim there is allocated",
    ):
        assert line in text
    tolerant = pod("c", tolerations=[{"operator": "Exists"}])
    assert "n1    hami-gpu-0  nothing" in told(
        around(tolerant, claim("c", exactly(memory="1Gi")), nodes=nodes), seen(TWO)
    )


def test_an_allocation_by_labels() -> None:
    """Of a claim that is good on nodes of a label nothing is said while nodes can't be read."""
    there = claim("there", on={"n1/hami-gpu-0": share()})
    term = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["n2"]}]}
    there["status"]["allocation"]["nodeSelector"] = {"nodeSelectorTerms": [term]}
    about = (pod("c", "there"), claim("c", exactly(memory="1Gi")), there)
    assert "n1    -           claim there is allocated elsewhere" in told(around(*about, nodes=NODES), seen(TWO))
    assert "elsewhere" not in told(around(*about), seen(TWO))


@pytest.mark.parametrize(
    ("about", "words"),
    [
        (around(pod("c")), "there is no ResourceClaim c"),
        (around(pod("c"), claim("c", exactly()), classes={}), "claim c: there is no DeviceClass gpu.hami.io"),
        (
            around(pod(resourceClaims=[{"name": "gpu", "resourceClaimTemplateName": "t"}])),
            "claim gpu: there is no ResourceClaimTemplate t",
        ),
        (
            around(pod(resourceClaims=[{"name": "gpu", "resourceClaimTemplateName": "t"}]), templates=frozenset({"t"})),
            "claim gpu has not been created yet",
        ),
        (
            around(pod(schedulingGates=[{"name": "kueue.x-k8s.io/admission"}])),
            "not lifted yet: kueue.x-k8s.io/admission",
        ),
        (
            around(pod(schedulerName="hami-scheduler")),
            "schedulerName is hami-scheduler: kube-scheduler does not look at it",
        ),
        (
            around(pod(containers=[{"name": "m", "resources": {"limits": {"nvidia.com/gpumem": "1"}}}])),
            "container m asks for nvidia.com/gpumem, and no webhook has made a claim of it: hami-webhook was not there",
        ),
    ],
    ids=["claim", "class", "template", "not yet", "gates", "scheduler", "unconverted"],
)
def test_what_is_wrong_everywhere(about: Around, words: str) -> None:
    """What keeps a pod from being scheduled whatever GPUs there are is said first."""
    assert words in told(about, seen(TWO))


def test_a_pod_that_is_left_alone() -> None:
    """A label can have the webhook leave a pod alone; then that is why nobody converted it."""
    ignored = pod(containers=[{"name": "m", "resources": {"limits": {"nvidia.com/gpumem": "1"}}}])
    ignored["metadata"]["labels"] = {"hami.io/webhook": "ignore"}
    assert "its label hami.io/webhook=ignore says" in told(around(ignored), seen(TWO))


def test_claims_that_the_scheduler_makes() -> None:
    """`nvidia.com/gpu` needs no webhook where a DeviceClass has that extended resource; what it asks for is looked at then."""
    extended = {DRIVER: CLASS | {"spec": CLASS["spec"] | {"extendedResourceName": "nvidia.com/gpu"}}}
    waits = pod(containers=[{"name": "m", "resources": {"limits": {"nvidia.com/gpu": "3"}}}])
    text = told(around(waits, classes=extended), seen(TWO))
    assert "no webhook" not in text
    assert "request m wants 3 GPUs, 2 of 2 have room" in text
    # Init containers use the same GPUs as those that come later, and each other's.
    limits = [{"resources": {"limits": {"nvidia.com/gpu": str(count)}}} for count in (1, 2, 2, 1)]
    named = [{"name": name, **each} for name, each in zip("abcd", limits, strict=True)]
    waits = pod(initContainers=named[:3], containers=named[3:])
    text = told(around(waits, classes=extended), seen([TWO[0]]))
    assert "claim that the scheduler makes is not allocated: b wants 1 GPU; d wants 1 GPU\n" in text
    assert "n1    hami-gpu-0, hami-gpu-1  nothing: it has room" in text
    named[1]["restartPolicy"] = "Always"
    text = told(around(waits, classes=extended), seen([TWO[0]]))
    assert "b wants 2 GPUs; c wants 1 GPU; d wants 1 GPU" in text


def test_other_drivers_and_selectors_that_are_not_judged() -> None:
    """A request for another driver's devices is not looked at, nor a selector that isn't understood, and both are said."""
    other = {"metadata": {}, "spec": {"selectors": [{"cel": {"expression": 'device.driver == "nic.example"'}}]}}
    strange = f'device.attributes["{DRIVER}"].productName.matches("A.00")'
    nic = exactly("nic")
    nic["exactly"]["deviceClassName"] = "nic"
    text = told(
        around(
            pod("c"), claim("c", nic, exactly(memory="1Gi", selectors=[strange])), classes={DRIVER: CLASS, "nic": other}
        ),
        seen(TWO),
    )
    assert "note: request nic of class nic is for devices of another driver: not looked at" in text
    assert f"note: a selector was not judged, and taken for satisfied: {strange}" in text
    assert "note: nodes may not be listed with these rights" in text
    assert "hami-gpu-0  nothing: it has room" in text
    only = told(around(pod("c"), claim("c", nic), classes={DRIVER: CLASS, "nic": other}), seen(TWO))
    assert "has room" not in only


def test_what_others_say() -> None:
    """Of a pod that is on a node the kubelet's last words count, and no GPUs are looked at; so do the containers' states."""
    event = {
        "type": "Warning",
        "reason": "FailedPrepareDynamicResources",
        "message": "claim team/c: no",
        "reportingComponent": "kubelet",
        "lastTimestamp": "2026-01-01T00:00:02Z",
    }
    older = event | {"message": "older", "lastTimestamp": "2026-01-01T00:00:01Z"}
    on_node = pod("c", nodeName="n1")
    on_node["status"]["containerStatuses"] = [
        {"name": "m", "state": {"waiting": {"reason": "ErrImagePull", "message": "no"}}}
    ]
    there = claim("c", on={"n1/hami-gpu-0": share()})
    text = told(around(on_node, there, events=[event, older]), seen(TWO, there))
    assert text.splitlines() == [
        "pod team/p is scheduled to node n1 and has not started there",
        "  claim c is allocated",
        "  kubelet, FailedPrepareDynamicResources: claim team/c: no",
        "  container m waits, ErrImagePull: no",
    ]
    running = pod(nodeName="n1")
    running["status"] = {"phase": "Running"}
    assert told(around(running), seen(TWO)).splitlines()[0] == "pod team/p is Running on node n1"


def test_many_nodes() -> None:
    """Twenty nodes are shown, the best first; wide shows all."""
    slices = [slice_(f"n{number:02}", *a100s(1)) for number in range(30)]
    about, there = around(pod("c"), claim("c", exactly(memory="50Gi"))), seen(slices)
    assert "10 more nodes: -o wide shows all" in told(about, there)
    assert len(told(about, there, wide=True).split("\n\n")[1].splitlines()) == 31


def test_many_selectors_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A claim with thousands of selectors has only some nodes looked at, which is said."""
    monkeypatch.setattr(module, "_STEPS", 10_000)
    chosen = [f'device.driver == "gpu.hami.io" && true == {number}' for number in range(31)]
    requests = [exactly(f"g{number}", memory="1Gi", selectors=chosen) for number in range(40)]
    slices = [slice_(f"n{number}", *a100s(2)) for number in range(20)]
    found = why(around(pod("c"), claim("c", *requests)), seen(slices))
    assert 0 < len(found.nodes) < 20
    assert any("nodes were looked at" in note for note in found.notes)
    assert len(found.asked.waiting[0].requests) == 32
