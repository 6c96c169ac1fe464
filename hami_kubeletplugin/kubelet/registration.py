"""How the kubelet learns of the driver: GetInfo and NotifyRegistrationStatus.

Contract: k8s.io/kubelet pkg/apis/pluginregistration/v1.
"""

import threading
from pathlib import Path
from typing import Final

import grpc

from hami_kubeletplugin.kubelet import dra, health
from hami_kubeletplugin.kubelet.wire import pluginregistration_v1_pb2 as wire
from hami_kubeletplugin.observe.log import get_logger

SERVICE: Final = wire.DESCRIPTOR.services_by_name["Registration"].full_name
PLUGIN_TYPE: Final = "DRAPlugin"

SUPPORTED_VERSIONS: Final = (dra.V1, dra.V1BETA1, health.V1, health.V1ALPHA1)
"""The kubelet takes the first DRA version of this list that it knows, so the newest comes first."""


class Registration:
    """The registration service, and what came of it.

    Attributes:
        registered: Set while the kubelet has the driver registered.
        refusal: The kubelet's words if it last refused the driver, else None.
    """

    def __init__(self, driver: str, endpoint: Path) -> None:
        self.registered = threading.Event()
        self.refusal: str | None = None
        self._info = wire.PluginInfo(
            type=PLUGIN_TYPE, name=driver, endpoint=str(endpoint), supported_versions=SUPPORTED_VERSIONS
        )

    def handlers(self) -> tuple[grpc.GenericRpcHandler, ...]:
        """What a gRPC server needs to serve it."""
        get_info = grpc.unary_unary_rpc_method_handler(
            self._get_info, wire.InfoRequest.FromString, wire.PluginInfo.SerializeToString
        )
        notify = grpc.unary_unary_rpc_method_handler(
            self._notify, wire.RegistrationStatus.FromString, wire.RegistrationStatusResponse.SerializeToString
        )
        return (
            grpc.method_handlers_generic_handler(SERVICE, {"GetInfo": get_info, "NotifyRegistrationStatus": notify}),
        )

    def forget(self) -> None:
        """The socket is gone, and with it the registration."""
        self.registered.clear()

    def _get_info(self, _request: wire.InfoRequest, _: grpc.ServicerContext) -> wire.PluginInfo:
        return self._info

    def _notify(self, status: wire.RegistrationStatus, _: grpc.ServicerContext) -> wire.RegistrationStatusResponse:
        log = get_logger().bind(driver=self._info.name)
        if status.plugin_registered:
            self.refusal = None
            self.registered.set()
            log.info("registered with the kubelet")
        else:
            self.refusal = status.error or "the kubelet gave no reason"
            self.registered.clear()
            log.error(
                "THE KUBELET REFUSED THE DRIVER, no pod with its claims can start on this node", error=self.refusal
            )
        return wire.RegistrationStatusResponse()
