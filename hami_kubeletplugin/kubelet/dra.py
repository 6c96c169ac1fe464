"""NodePrepareResources and NodeUnprepareResources, v1 and v1beta1, on top of a `ClaimService`.

Contract: k8s.io/kubelet pkg/apis/dra. Every claim of a request gets an answer, and one bad claim never fails the others; an
error of the call itself would block all claims of the pod.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeVar

import grpc

from hami_kubeletplugin.api.claim import ClaimRef, ClaimService
from hami_kubeletplugin.api.errors import HamiError, OwnFault
from hami_kubeletplugin.kubelet.wire import dra_v1_pb2 as wire
from hami_kubeletplugin.kubelet.wire import dra_v1beta1_pb2
from hami_kubeletplugin.observe.log import get_logger

log = get_logger()

V1: Final = "v1.DRAPlugin"
V1BETA1: Final = "v1beta1.DRAPlugin"
"""What supported_versions says; not the full names of the services."""

V1_SERVICE: Final = wire.DESCRIPTOR.services_by_name["DRAPlugin"].full_name
V1BETA1_SERVICE: Final = dra_v1beta1_pb2.DESCRIPTOR.services_by_name["DRAPlugin"].full_name

ERROR_MAX: Final = 4000
"""Characters of an error that go into an answer, and from there into the pod's event."""

Answer = TypeVar("Answer")


def handlers(claims: ClaimService) -> tuple[grpc.GenericRpcHandler, ...]:
    """What a gRPC server needs to serve both versions."""
    return (
        _DraService(claims, share_ids=True).handler(V1_SERVICE),
        _DraService(claims, share_ids=False).handler(V1BETA1_SERVICE),
    )


class _DraService:
    """One version of the service. Both speak with the messages of v1: those of v1beta1 are the same less `share_id`."""

    def __init__(self, claims: ClaimService, *, share_ids: bool) -> None:
        self._claims = claims
        self._share_ids = share_ids

    def handler(self, service: str) -> grpc.GenericRpcHandler:
        """What a gRPC server needs to serve it under its full name."""
        return grpc.method_handlers_generic_handler(
            service,
            {
                "NodePrepareResources": grpc.unary_unary_rpc_method_handler(
                    self._prepare,
                    wire.NodePrepareResourcesRequest.FromString,
                    wire.NodePrepareResourcesResponse.SerializeToString,
                ),
                "NodeUnprepareResources": grpc.unary_unary_rpc_method_handler(
                    self._unprepare,
                    wire.NodeUnprepareResourcesRequest.FromString,
                    wire.NodeUnprepareResourcesResponse.SerializeToString,
                ),
            },
        )

    def _prepare(
        self, request: wire.NodePrepareResourcesRequest, _: grpc.ServicerContext
    ) -> wire.NodePrepareResourcesResponse:
        response = wire.NodePrepareResourcesResponse()
        for uid, answer in self._answers("prepare", self._claims.prepare, request.claims):
            entry = response.claims[uid]
            if isinstance(answer, HamiError):
                entry.error = _text(answer)
                continue
            for device in answer:
                entry.devices.add(
                    request_names=device.requests,
                    pool_name=device.pool,
                    device_name=device.device,
                    cdi_device_ids=device.cdi_ids,
                    share_id=device.share_id if self._share_ids else None,
                )
        return response

    def _unprepare(
        self, request: wire.NodeUnprepareResourcesRequest, _: grpc.ServicerContext
    ) -> wire.NodeUnprepareResourcesResponse:
        response = wire.NodeUnprepareResourcesResponse()
        for uid, error in self._answers("unprepare", self._claims.unprepare, request.claims):
            entry = response.claims[uid]  # reading it is what makes the entry
            if error is not None:
                entry.error = _text(error)
        return response

    def _answers(
        self,
        action: str,
        call: Callable[[list[ClaimRef]], Mapping[str, Answer | HamiError]],
        claims: Iterable[wire.Claim],
    ) -> list[tuple[str, Answer | HamiError]]:
        """One answer for each claim, whatever happens in the service."""
        # By UID: one that is named twice must not get its devices twice.
        refs = [*{claim.uid: ClaimRef(claim.namespace, claim.name, claim.uid) for claim in claims}.values()]
        if not refs:
            return []
        try:
            answers = call(refs)
            missing = [ref for ref in refs if ref.uid not in answers]
            if missing:
                log.error("no answer for some claims", action=action, missing=_names(missing))
            return [
                (ref.uid, answers[ref.uid] if ref.uid in answers else _bug(ref, action, "no answer")) for ref in refs
            ]
        except HamiError as error:
            log.warning("failed for all claims of the request", action=action, claims=_names(refs), error=str(error))
            return [(ref.uid, error) for ref in refs]
        except Exception as error:  # the edge of the process: the kubelet needs its answers
            log.exception("failed unexpectedly", action=action, claims=_names(refs))
            return [(ref.uid, _bug(ref, action, type(error).__name__)) for ref in refs]


def _names(refs: Iterable[ClaimRef]) -> list[str]:
    return [ref.full_name for ref in refs]


def _bug(ref: ClaimRef, action: str, what: str) -> HamiError:
    return OwnFault(
        f"{ref}: {action} failed on an internal error ({what}); the log of the driver on this node has the details"
    )


def _text(error: HamiError) -> str:
    # An empty text would mean success. Names of files may hold what is no UTF-8, with which there would be no answer at all.
    text = (str(error) or type(error).__name__).encode(errors="backslashreplace").decode()
    return text if len(text) <= ERROR_MAX else f"{text[:ERROR_MAX]} … (the driver's log has all of it)"
