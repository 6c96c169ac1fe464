"""NodePrepareResources and NodeUnprepareResources as the kubelet sees them."""

import pytest
import structlog
from google.protobuf.descriptor import Descriptor

from hami_kubeletplugin.api.claim import PreparedDevice
from hami_kubeletplugin.api.errors import ApiUnavailable, ClaimError
from hami_kubeletplugin.api.names import DRIVER
from hami_kubeletplugin.api.settings import Settings
from hami_kubeletplugin.fake.kubelet import FakeKubelet
from hami_kubeletplugin.kubelet.wire import (
    dra_health_v1_pb2,
    dra_health_v1alpha1_pb2,
    dra_v1_pb2,
    dra_v1beta1_pb2,
    pluginregistration_v1_pb2,
)
from tests.unit.kubelet.fakes import Claims, Serve, device, ref


@pytest.mark.parametrize(("version", "share"), [("v1.DRAPlugin", "share-1"), ("v1beta1.DRAPlugin", None)])
async def test_prepare_answers_devices(serve: Serve, settings: Settings, version: str, share: str | None) -> None:
    """A kubelet gets requests, pool, device and CDI ids in both versions, the share only in v1."""
    async with FakeKubelet(settings.registry_dir, versions=[version]) as kubelet, serve(settings):
        plugin = await kubelet.plugin(DRIVER)
        assert plugin.version == version
        expected = PreparedDevice(("gpu",), "node-1", "hami-gpu-0", ("k8s.gpu.hami.io/claim=claim-uid-1",), share)
        assert await plugin.prepare([ref(1)]) == {"uid-1": (expected,)}
        assert await plugin.unprepare([ref(1)]) == {"uid-1": None}


async def test_one_bad_claim_does_not_fail_the_others(serve: Serve, settings: Settings, claims: Claims) -> None:
    """In a batch each claim has its own answer: the bad one its message, the others their devices."""
    claims.errors["uid-2"] = ClaimError("claim default/claim-2: not allocated to this node")
    async with FakeKubelet(settings.registry_dir) as kubelet, serve(settings):
        plugin = await kubelet.plugin(DRIVER)
        assert await plugin.prepare([ref(1), ref(2), ref(3)]) == {
            "uid-1": (device(ref(1)),),
            "uid-2": "claim default/claim-2: not allocated to this node",
            "uid-3": (device(ref(3)),),
        }
        assert await plugin.unprepare([ref(1), ref(2)]) == {"uid-1": None, "uid-2": str(claims.errors["uid-2"])}


async def test_an_error_of_the_whole_service_is_every_claims(serve: Serve, settings: Settings, claims: Claims) -> None:
    """When the API server is away for all, each claim of the batch gets that message and the call itself succeeds."""
    claims.raises = ApiUnavailable("the API server does not answer")
    async with FakeKubelet(settings.registry_dir) as kubelet, serve(settings):
        plugin = await kubelet.plugin(DRIVER)
        assert await plugin.prepare([ref(1), ref(2)]) == dict.fromkeys(
            ["uid-1", "uid-2"], "the API server does not answer"
        )


async def test_a_bug_is_answered_per_claim_and_logged_with_its_traceback(
    serve: Serve, settings: Settings, claims: Claims
) -> None:
    """An unexpected exception gives a generic answer for each claim, never its inner text, and a log entry to find it by."""
    claims.raises = ValueError("secret inner text")
    with structlog.testing.capture_logs() as logs:
        async with FakeKubelet(settings.registry_dir) as kubelet, serve(settings):
            plugin = await kubelet.plugin(DRIVER)
            prepared = await plugin.prepare([ref(1), ref(2)])
            unprepared = await plugin.unprepare([ref(1)])
    what = "prepare failed on an internal error (ValueError); the log of the driver on this node has the details"
    assert prepared == {"uid-1": f"claim default/claim-1: {what}", "uid-2": f"claim default/claim-2: {what}"}
    assert "unprepare failed on an internal error (ValueError)" in str(unprepared["uid-1"])
    assert [(entry["action"], entry["exc_info"]) for entry in logs if entry["log_level"] == "error"] == [
        ("prepare", True),
        ("unprepare", True),
    ]


async def test_a_claim_that_the_service_forgot_gets_an_answer(serve: Serve, settings: Settings, claims: Claims) -> None:
    """Every claim of a request is in the response, even if the service left one out; the others keep their devices."""
    claims.forgets = {"uid-2"}
    async with FakeKubelet(settings.registry_dir) as kubelet, serve(settings):
        plugin = await kubelet.plugin(DRIVER)
        prepared = await plugin.prepare([ref(1), ref(2)])
        assert prepared["uid-1"] == (device(ref(1)),)
        assert "internal error (no answer)" in str(prepared["uid-2"])
        assert "internal error (no answer)" in str((await plugin.unprepare([ref(2)]))["uid-2"])


async def test_an_error_without_text_is_still_an_error(serve: Serve, settings: Settings, claims: Claims) -> None:
    """An empty error would mean success to the kubelet; the kind of the error stands in."""
    claims.errors["uid-1"] = ClaimError()
    async with FakeKubelet(settings.registry_dir) as kubelet, serve(settings):
        plugin = await kubelet.plugin(DRIVER)
        assert await plugin.prepare([ref(1)]) == {"uid-1": "ClaimError"}
        assert await plugin.unprepare([ref(1)]) == {"uid-1": "ClaimError"}


async def test_any_text_of_an_error_arrives(serve: Serve, settings: Settings, claims: Claims) -> None:
    """A file name that is no UTF-8, as a container can leave it, and a text of any length still make an answer of the claim."""
    claims.errors = {"uid-1": ClaimError("can't remove /cache/\udcff\udcfe"), "uid-2": ClaimError("x" * 100_000)}
    async with FakeKubelet(settings.registry_dir) as kubelet, serve(settings):
        plugin = await kubelet.plugin(DRIVER)
        answers = await plugin.prepare([ref(1), ref(2), ref(3)])
        assert answers["uid-1"] == r"can't remove /cache/\udcff\udcfe"
        assert answers["uid-2"] == "x" * 4000 + " … (the driver's log has all of it)"
        assert answers["uid-3"] == (device(ref(3)),)
        assert (await plugin.unprepare([ref(1)]))["uid-1"] == answers["uid-1"]


async def test_a_claim_that_is_named_twice_is_answered_once(serve: Serve, settings: Settings) -> None:
    """Its devices are not listed twice, or the kubelet would inject them twice."""
    async with FakeKubelet(settings.registry_dir) as kubelet, serve(settings):
        plugin = await kubelet.plugin(DRIVER)
        assert await plugin.prepare([ref(1), ref(2), ref(1)]) == {
            "uid-1": (device(ref(1)),),
            "uid-2": (device(ref(2)),),
        }


async def test_an_empty_request_is_fine(serve: Serve, settings: Settings, claims: Claims) -> None:
    """No claims, no work, an empty answer."""
    async with FakeKubelet(settings.registry_dir) as kubelet, serve(settings):
        plugin = await kubelet.plugin(DRIVER)
        assert await plugin.prepare([]) == {}
        assert not claims.started.is_set()


def fields(message: Descriptor) -> dict[int, tuple[str, int, bool, bool]]:
    """By number: name, wire type, repeated, explicit presence."""
    return {f.number: (f.name, f.type, f.is_repeated, f.has_presence) for f in message.fields}


def test_messages_of_two_versions_are_interchangeable() -> None:
    """We speak v1beta1 with v1's messages, and v1alpha1 health with v1's: field by field the same, less the share."""
    for new, old in ((dra_v1_pb2, dra_v1beta1_pb2), (dra_health_v1_pb2, dra_health_v1alpha1_pb2)):
        assert new.DESCRIPTOR.message_types_by_name.keys() == old.DESCRIPTOR.message_types_by_name.keys()
        for name, message in new.DESCRIPTOR.message_types_by_name.items():
            ours = fields(message)
            if new is dra_v1_pb2 and name == "Device":
                assert ours.pop(5)[0] == "share_id"
            assert ours == fields(old.DESCRIPTOR.message_types_by_name[name])


def test_the_contract() -> None:
    """Service names and field numbers are the kubelet's, as in k8s.io/kubelet v0.37."""
    assert {
        module.DESCRIPTOR.package: {
            name: [m.name for m in s.methods] for name, s in module.DESCRIPTOR.services_by_name.items()
        }
        for module in (
            dra_v1_pb2,
            dra_v1beta1_pb2,
            dra_health_v1_pb2,
            dra_health_v1alpha1_pb2,
            pluginregistration_v1_pb2,
        )
    } == {
        "k8s.io.kubelet.pkg.apis.dra.v1": {"DRAPlugin": ["NodePrepareResources", "NodeUnprepareResources"]},
        "k8s.io.kubelet.pkg.apis.dra.v1beta1": {"DRAPlugin": ["NodePrepareResources", "NodeUnprepareResources"]},
        "v1": {"DRAResourceHealth": ["NodeWatchResources"]},
        "v1alpha1": {"DRAResourceHealth": ["NodeWatchResources"]},
        "pluginregistration": {"Registration": ["GetInfo", "NotifyRegistrationStatus"]},
    }
    # Bytes as Go writes them: claims[0] = {namespace 1, uid 2, name 3}.
    request = dra_v1_pb2.NodePrepareResourcesRequest.FromString(b"\x0a\x09\x0a\x01n\x12\x01u\x1a\x01m")
    assert [(claim.namespace, claim.uid, claim.name) for claim in request.claims] == [("n", "u", "m")]
    answer = dra_v1_pb2.NodePrepareResourcesResponse()
    answer.claims["u"].devices.add(
        request_names=["r"], pool_name="p", device_name="d", cdi_device_ids=["c"], share_id="s"
    )
    assert (
        answer.SerializeToString() == b"\x0a\x16\x0a\x01u\x12\x11\x0a\x0f\x0a\x01r\x12\x01p\x1a\x01d\x22\x01c\x2a\x01s"
    )
    info = pluginregistration_v1_pb2.PluginInfo(type="t", name="n", endpoint="e", supported_versions=["v"])
    assert info.SerializeToString() == b"\x0a\x01t\x12\x01n\x1a\x01e\x22\x01v"
    assert pluginregistration_v1_pb2.RegistrationStatus.FromString(b"\x08\x01\x12\x01e").plugin_registered
