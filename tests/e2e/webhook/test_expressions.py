"""What the webhook writes into claims, held against the real CEL engine, validation and scheduler."""

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import pytest

from hami_kubeletplugin.api.names import MAX_GPUS_PER_CONTAINER
from hami_kubeletplugin.api.webhook_settings import Conversion
from hami_kubeletplugin.webhook.conversion import cel
from hami_kubeletplugin.webhook.conversion.annotations import MOST_VALUES, Selection
from hami_kubeletplugin.webhook.conversion.demand import Demand
from hami_kubeletplugin.webhook.conversion.template import MOST_SIZES, GpuSize, Template, template
from tests.e2e.cluster import NAMESPACE, Cluster, KubectlFailed
from tests.e2e.daemon import DRIVER, Daemon
from tests.e2e.inside import look
from tests.e2e.manifests import API, container, pod
from tests.waiting import wait_for

HOSTILE = (
    *('"', "'", "`", '"""', "'''", "\\", '\\"', "\\\\", "\\u0022", "\\x22", "\\101", "\\0", 'r"', "R'", 'b"', 'rb"""'),
    *(
        "\n",
        "\r\n",
        "\t",
        "\x00",
        "\x01\x1b[31m\x7f",
        "\x80\x85\xa0",
        "\u2028\u2029",
        "\ufeff\u202e",
        "\ud7ff\ue000\uffff",
    ),
    *("é", "ß\u0130\u0131", "日本", "\U0001f600", "\U0010ffff", "${x}", "{{.x}}", "%s", "//", "/*", "?:", "", " x "),
    *(') || true || ("" == "', '"] || true || "" in ["', '" + "', "x" * 1024, '"\\' * 512),
)


@pytest.fixture
def compared(cluster: Cluster) -> Iterator[None]:
    """A policy that admits a ConfigMap only if its values are what our literals say."""
    kind = {"apiVersion": "admissionregistration.k8s.io/v1", "metadata": {"name": "webhook-literals"}}
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}
    validations = [
        {"expression": f'object.data["of-{index}"] == {cel.string(text)}', "message": f"of-{index} is another one"}
        for index, text in enumerate(HOSTILE)
    ]
    match = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": NAMESPACE}}}
    cluster.apply(
        {
            **kind,
            "kind": "ValidatingAdmissionPolicy",
            "spec": {"matchConstraints": {"resourceRules": [rule]}, "validations": validations},
        },
        {
            **kind,
            "kind": "ValidatingAdmissionPolicyBinding",
            "spec": {"policyName": "webhook-literals", "validationActions": ["Deny"], "matchResources": match},
        },
    )
    yield
    policies = "validatingadmissionpolicybindings,validatingadmissionpolicies"
    cluster.kubectl("delete", policies, "webhook-literals")


def test_literals_are_what_they_should_be(cluster: Cluster, compared: None) -> None:
    """The API server's CEL reads each of our string literals as the very string that it was made of."""

    def create(texts: Sequence[str]) -> None:
        data = {f"of-{index}": text for index, text in enumerate(texts)}
        metadata = {"name": "texts", "namespace": NAMESPACE}
        config_map = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}
        cluster.kubectl("create", "--dry-run=server", "-f", "-", stdin=json.dumps(config_map))

    def in_force() -> bool:
        with pytest.raises(KubectlFailed, match="of-0 is another one"):
            create(["another", *HOSTILE[1:]])
        return True

    wait_for("the policy to be in force", lambda: _quietly(in_force))
    create(HOSTILE)


def _quietly(probe: Any) -> bool:
    try:
        return bool(probe())
    except pytest.fail.Exception:
        return False


def demand(gpus: int = 1, memory: int | None = 1000, percent: int | None = None, **more: Any) -> Demand:
    """What a container asks for."""
    return Demand(gpus=gpus, memory_mib=memory, memory_percent=percent, **({"cores": 0, "exclusive": False} | more))


def values(count: int, length: int, letter: str = "A") -> tuple[str, ...]:
    """Different ones, all of one length."""
    return tuple(f"{index:03d}".ljust(length, letter) for index in range(count))


SIZES = [GpuSize("NVIDIA A100", 1000 * number) for number in range(1, MOST_SIZES + 1)]
EVERYTHING = {
    "plain": template(demand(), Selection(), Conversion(), ()),
    "whole": template(demand(memory=None, percent=100, cores=100, exclusive=True), Selection(), Conversion(), ()),
    "whole, of 1000 MiB at least": template(
        demand(percent=100, cores=100, exclusive=True), Selection(), Conversion(), ()
    ),
    "config": template(demand(priority="high", core_policy="force"), Selection(), Conversion(), ()),
    **{
        f"{mib} MiB": template(demand(memory=mib), Selection(), Conversion(), ())
        for mib in (1, 1023, 1024, 46068, 2**31 - 1)
    },
    **{
        f"as long as can be: {field}": template(demand(), longest, Conversion(), ())
        for field, longest in {
            "uuids": Selection(uuids=values(MOST_VALUES, 63)),
            "not_uuids": Selection(not_uuids=values(MOST_VALUES, 63)),
            "types": Selection(types=values(MOST_VALUES, 63)),
            "not_types": Selection(not_types=values(MOST_VALUES, 63)),
        }.items()
    },
    "16 GPUs of 8 sizes": template(
        demand(MAX_GPUS_PER_CONTAINER, None, 50, cores=30),
        Selection(
            uuids=values(9, 40),
            not_uuids=values(9, 40),
            types=("a100",),
            not_types=values(9, 40),
            same=("resource.kubernetes.io/numaNode", "resource.kubernetes.io/pcieRoot", f"{DRIVER}/nvlinkGroup"),
        ),
        Conversion(),
        SIZES,
    ),
    "hostile": template(demand(), Selection(uuids=HOSTILE[:40], types=HOSTILE[:40]), Conversion(), ()),
}


def test_templates_are_kept_as_they_are_sent(cluster: Cluster) -> None:
    """The API server's validation takes the longest lists and most requests, and adds nothing to what the webhook compares."""
    items = [made.object(NAMESPACE) for made in EVERYTHING.values()]
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
    words = ("create", "--dry-run=server", "-f", "-", "-o", 'jsonpath={.spec}{"\\n"}')
    kept = cluster.kubectl(*words, stdin=text).splitlines()
    for (what, made), line in zip(EVERYTHING.items(), kept, strict=True):
        assert json.loads(line)["spec"] == made.spec, what


@pytest.fixture
def bare_devices(cluster: Cluster) -> Iterator[None]:
    """Devices of our class, on every node, of which nothing is known."""
    bare = {"attributes": {"type": {"string": "hami-gpu"}}, "allowMultipleAllocations": True}
    cluster.apply(
        {
            "apiVersion": API,
            "kind": "ResourceSlice",
            "metadata": {"name": "webhook-bare"},
            "spec": {
                "driver": DRIVER,
                "pool": {"name": "bare", "generation": 1, "resourceSliceCount": 1},
                "allNodes": True,
                "devices": [{"name": "bare-0", **bare}],
            },
        }
    )
    yield
    cluster.kubectl("delete", "resourceslice", "webhook-bare")


def using(name: str, made: Template) -> Mapping[str, Any]:
    """A pod that uses a template."""
    return pod(name, container(claims=["gpu"]), templates={"gpu": made.name})


def test_devices_that_lack_everything_stop_nobody(daemon: Daemon, cluster: Cluster, bare_devices: None) -> None:
    """A device without model, UUID and memory is not chosen, and does not stop the scheduling of who asks for those."""
    nothing = {
        "uuid": Selection(uuids=("GPU-none",)),
        "no-model": Selection(not_types=("nvidia",)),
        "model": Selection(types=("h900", *HOSTILE[:30])),
        "hostile": Selection(uuids=HOSTILE[:40], not_uuids=HOSTILE[:40], not_types=HOSTILE[:40]),
    }
    impossible = {name: template(demand(), chosen, Conversion(), ()) for name, chosen in nothing.items()}
    impossible["memory"] = template(demand(memory=None, percent=50), Selection(), Conversion(), [GpuSize("x", 12345)])
    possible = {
        "t4": template(demand(), Selection(types=("t4",), not_uuids=HOSTILE[:40]), Conversion(), ()),
        "half": template(
            demand(memory=None, percent=50),
            Selection(not_types=("t4",)),
            Conversion(),
            [GpuSize("Tesla T4", 15360), GpuSize("NVIDIA L40S", 46068)],
        ),
    }
    made = {**impossible, **possible}
    cluster.apply(
        *(each.object(NAMESPACE) for each in made.values()), *(using(name, each) for name, each in made.items())
    )
    cluster.running(*possible)
    assert look(cluster, "t4").limits == [(1000, 0)]
    assert look(cluster, "half").limits == [(23034, 0)]
    for name in impossible:
        told = wait_for(f"the event of {name}", partial(cluster.events, name, "FailedScheduling"))
        assert all("cannot allocate all claims" in message for message in told), told
