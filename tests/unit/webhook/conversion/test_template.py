"""webhook.template: the claim of one container, named by its content."""

import re
from dataclasses import replace
from typing import Any

import pytest

from hami_kubeletplugin.api.errors import AdmissionError
from hami_kubeletplugin.api.gpuconfig import decode
from hami_kubeletplugin.api.webhook_settings import Conversion
from hami_kubeletplugin.webhook.conversion.annotations import Selection
from hami_kubeletplugin.webhook.conversion.demand import Demand
from hami_kubeletplugin.webhook.conversion.template import GpuSize, Template, template

RULES = Conversion()
A100, H100 = GpuSize("NVIDIA A100-SXM4-40GB", 40960), GpuSize("NVIDIA H100 80GB HBM3", 81559)


def demand(**more: Any) -> Demand:
    """A fifth of a GPU, changed by `more`."""
    usual = {"gpus": 1, "memory_mib": 4000, "memory_percent": None, "cores": 30, "exclusive": False}
    return Demand(**(usual | more))


def percent(value: int, **more: Any) -> Demand:
    """A percentage of memory."""
    return demand(memory_mib=None, memory_percent=value, **more)


def made(wanted: Demand, chosen: Selection | None = None, *sizes: GpuSize, **rules: Any) -> Template:
    """The template for it."""
    return template(wanted, chosen or Selection(), Conversion(**rules), sizes)


def devices(*args: Any, **rules: Any) -> dict[str, Any]:
    """What the template asks for."""
    found: dict[str, Any] = made(*args, **rules).spec["devices"]
    return found


def test_one_gpu() -> None:
    """One request with everything written out, so that nothing is left to defaults of the cluster."""
    assert devices(demand()) == {
        "requests": [
            {
                "name": "gpu",
                "exactly": {
                    "deviceClassName": "gpu.hami.io",
                    "allocationMode": "ExactCount",
                    "count": 1,
                    "capacity": {"requests": {"memory": "4000Mi", "cores": "30", "shares": "1"}},
                },
            }
        ]
    }


@pytest.mark.parametrize(
    ("wanted", "chosen", "capacity"),
    [
        (demand(memory_mib=4096), Selection(), {"memory": "4Gi", "cores": "30", "shares": "1"}),
        (demand(exclusive=True, cores=100), Selection(), {"memory": "4000Mi", "cores": "100", "shares": "10k"}),
        (demand(), Selection(exclusive=True), {"memory": "4000Mi", "cores": "30", "shares": "10k"}),
        (percent(100, cores=0), Selection(), {"cores": "0", "shares": "1"}),
        (percent(100, cores=100, exclusive=True), Selection(), {"cores": "100", "shares": "10k"}),
    ],
)
def test_capacities(wanted: Demand, chosen: Selection, capacity: dict[str, str]) -> None:
    """Cores and shares always; all of the memory is what a request gets that names none; alone means all shares."""
    assert devices(wanted, chosen)["requests"][0]["exactly"]["capacity"]["requests"] == capacity


@pytest.mark.parametrize("count", [2, 16])
def test_several_gpus(count: int) -> None:
    """One request for all: the scheduler has each order of equal requests to try before it says no, and of one none."""
    for version in ("", "1.36", "1.37", "1.100"):
        found = devices(demand(gpus=count), kubernetes=version)
        (request,) = found["requests"]
        assert (request["name"], request["exactly"]["allocationMode"], request["exactly"]["count"]) == (
            "gpu",
            "ExactCount",
            count,
        )
        assert "constraints" not in found


def test_several_gpus_of_a_percentage() -> None:
    """All of them are of one alternative, so of one memory size."""
    (request,) = devices(percent(50, gpus=4), None, A100, H100)["requests"]
    assert [alternative["count"] for alternative in request["firstAvailable"]] == [4, 4]


@pytest.mark.parametrize("count", [2, 4])
def test_several_gpus_before_1_36(count: int) -> None:
    """One request each, all alike, and all on different GPUs: those of one request may be shares of one GPU there."""
    found = devices(demand(gpus=count), driver_name="other.example", kubernetes="1.35")
    assert [request.pop("name") for request in found["requests"]] == [f"gpu-{index}" for index in range(count)]
    assert all(request == found["requests"][0] for request in found["requests"])
    assert found["constraints"] == [{"distinctAttribute": "other.example/uuid"}]


def test_gpus_that_share_something() -> None:
    """Each wish is a constraint over all GPUs; one GPU shares everything with itself, and may lack the attribute."""
    chosen = Selection(same=("resource.kubernetes.io/numaNode", "resource.kubernetes.io/pcieRoot"))
    same = [
        {"matchAttribute": "resource.kubernetes.io/numaNode"},
        {"matchAttribute": "resource.kubernetes.io/pcieRoot"},
    ]
    assert devices(demand(gpus=2), chosen)["constraints"] == same
    assert devices(demand(gpus=2), chosen, kubernetes="1.35")["constraints"] == [
        {"distinctAttribute": "gpu.hami.io/uuid"},
        *same,
    ]
    assert "constraints" not in devices(demand(), chosen)


def test_a_percentage_of_each_size() -> None:
    """An alternative for each memory size, the smallest first, which only GPUs of that size match."""
    (request,) = devices(percent(50), None, H100, A100, A100)["requests"]
    assert request["name"] == "gpu"
    first, second = request["firstAvailable"]
    assert (first["name"], second["name"]) == ("of-40960", "of-81559")
    assert first["capacity"]["requests"] == {"memory": "20Gi", "cores": "30", "shares": "1"}
    assert second["capacity"]["requests"]["memory"] == "40779Mi"
    (selector,) = second["selectors"]
    assert 'compareTo(quantity("81559Mi")) == 0' in selector["cel"]["expression"]
    assert {first["deviceClassName"], second["deviceClassName"]} == {"gpu.hami.io"}


@pytest.mark.parametrize(
    ("of", "share", "memory"), [(40960, 1, "409Mi"), (99, 1, "1Mi"), (1, 50, "1Mi"), (199, 99, "197Mi")]
)
def test_percentages_are_rounded_down(of: int, share: int, memory: str) -> None:
    """As HAMi does, but never to nothing, which HAMi-core would take for no limit."""
    (request,) = devices(percent(share), None, GpuSize("x", of))["requests"]
    assert request["firstAvailable"][0]["capacity"]["requests"]["memory"] == memory


def test_percentages_of_chosen_models() -> None:
    """Only the sizes of models that the annotations admit; the size comes after what the annotations say."""
    (request,) = devices(percent(50), Selection(types=("h100",)), A100, H100)["requests"]
    (alternative,) = request["firstAvailable"]
    assert alternative["name"] == "of-81559"
    model, size = (selector["cel"]["expression"] for selector in alternative["selectors"])
    assert "h100" in model
    assert "81559Mi" in size


@pytest.mark.parametrize(
    ("chosen", "sizes", "message"),
    [
        (
            Selection(),
            (),
            r"^nvidia\.com/gpumem-percentage needs .* no GPU has been published yet: .* nvidia\.com/gpumem$",
        ),
        (Selection(types=("v100",)), (A100,), r"no GPU that the annotations allow has been published yet"),
        (Selection(not_types=("a100",)), (A100,), r"no GPU that the annotations allow has been published yet"),
        (
            Selection(),
            tuple(GpuSize("x", 1000 + n) for n in range(9)),
            r"more than the 8 .*1000, 1001.* nvidia\.com/use-gputype",
        ),
    ],
)
def test_percentages_of_nothing_and_of_too_much(chosen: Selection, sizes: tuple[GpuSize, ...], message: str) -> None:
    """Without a size, or with more of them than a claim can list, it is said what to do."""
    with pytest.raises(AdmissionError, match=message):
        made(percent(50), chosen, *sizes)


def test_eight_sizes_are_fine() -> None:
    """As many as the API takes."""
    (request,) = devices(percent(50), None, *(GpuSize("x", 1000 + n) for n in range(8)))["requests"]
    assert len(request["firstAvailable"]) == 8


@pytest.mark.parametrize(
    ("priority", "policy"), [("high", None), ("low", None), (None, "force"), ("high", "disable"), (None, "default")]
)
def test_priority_and_policy_are_the_claims_config(priority: Any, policy: Any) -> None:
    """A GpuConfig that the node daemon decodes, with only what was said."""
    (entry,) = devices(demand(priority=priority, core_policy=policy), driver_name="other.example")["config"]
    assert entry["opaque"]["driver"] == "other.example"
    config = decode(entry["opaque"]["parameters"], "parameters")
    assert (config.priority, config.core_policy) == (priority, policy)
    assert "requests" not in entry, "for all requests"


def test_the_class_can_be_set() -> None:
    """Its default is the driver's name."""
    assert (
        devices(demand(), driver_name="other.example")["requests"][0]["exactly"]["deviceClassName"] == "other.example"
    )
    assert devices(demand(), device_class="shared")["requests"][0]["exactly"]["deviceClassName"] == "shared"


def test_equal_needs_have_one_name_and_others_have_others() -> None:
    """The name is all of the content's: what differs in anything that the claim says is another template."""
    some = [
        (demand(), None),
        (demand(gpus=2), None),
        (demand(memory_mib=4001), None),
        (demand(cores=31), None),
        (demand(exclusive=True), None),
        (demand(priority="high"), None),
        (demand(core_policy="force"), None),
        (demand(), Selection(uuids=("GPU-1",))),
        (demand(), Selection(not_uuids=("GPU-1",))),
        (demand(), Selection(types=("GPU-1",))),
        (percent(50), None),
        (percent(51), None),
        (percent(100), None),
    ]
    names = {made(wanted, chosen, A100).name for wanted, chosen in some}
    assert len(names) == len(some)
    assert names == {made(wanted, chosen, A100).name for wanted, chosen in reversed(some)}
    assert all(re.fullmatch(r"hami-gpu-[0-9a-f]{20}", name) for name in names)
    assert made(percent(50), None, A100).name != made(percent(50), None, H100).name
    assert made(percent(50), None, A100, H100).name == made(percent(50), None, H100, A100).name
    assert made(demand(), None, A100).name == made(demand()).name, "sizes matter to percentages only"
    assert made(replace(demand(), notes=("said",))).name == made(demand()).name
    assert made(demand(), device_class="shared").name != made(demand()).name


def test_the_object() -> None:
    """It can be applied as it is."""
    one = made(demand())
    assert one.object() == {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": one.name},
        "spec": {"spec": one.spec},
    }
    assert one.object("ns", {"a": "b"})["metadata"] == {"name": one.name, "namespace": "ns", "labels": {"a": "b"}}


def test_a_size_of_an_unknown_model() -> None:
    """Sizes that people give by hand have no model: any annotation admits them."""
    (request,) = devices(percent(50), Selection(types=("h100",)), A100, GpuSize(None, 1000))["requests"]
    assert [alternative["name"] for alternative in request["firstAvailable"]] == ["of-1000"]
