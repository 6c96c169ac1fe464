"""A second DRA driver on the node, as one for network cards would be: publishes devices and injects a variable."""

import json
from concurrent import futures
from pathlib import Path
from typing import Any, Self

import grpc

from hami_kubeletplugin.kubelet.wire import dra_v1_pb2 as dra
from hami_kubeletplugin.kubelet.wire import pluginregistration_v1_pb2 as registration
from tests.e2e.cluster import NODE, Cluster
from tests.e2e.daemon import CDI_DIR, KUBELET_ROOT
from tests.waiting import wait_for

Context = grpc.ServicerContext
NAME = "nic.example.com"
VARIABLE = "NIC_CLAIM"


class OtherDriver:
    """Publishes the given devices (of a ResourceSlice) while it is entered, with a DeviceClass of its name."""

    def __init__(self, cluster: Cluster, devices: list[dict[str, Any]]) -> None:
        self._cluster, self._devices = cluster, devices
        self._socket = KUBELET_ROOT / "plugins" / NAME / "dra.sock"
        self._registered = False
        self._server = grpc.server(futures.ThreadPoolExecutor(4))
        self._server.add_generic_rpc_handlers(
            (
                _service(
                    "pluginregistration.Registration",
                    GetInfo=(registration.InfoRequest, registration.PluginInfo, self._get_info),
                    NotifyRegistrationStatus=(
                        registration.RegistrationStatus,
                        registration.RegistrationStatusResponse,
                        self._notify,
                    ),
                ),
                _service(
                    "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin",
                    NodePrepareResources=(
                        dra.NodePrepareResourcesRequest,
                        dra.NodePrepareResourcesResponse,
                        self._prepare,
                    ),
                    NodeUnprepareResources=(
                        dra.NodeUnprepareResourcesRequest,
                        dra.NodeUnprepareResourcesResponse,
                        self._unprepare,
                    ),
                ),
            )
        )

    def __enter__(self) -> Self:
        """Publish, and wait for the kubelet."""
        self._socket.parent.mkdir(parents=True, exist_ok=True)
        self._server.add_insecure_port(f"unix:{self._socket}")
        self._server.add_insecure_port(f"unix:{KUBELET_ROOT / 'plugins_registry' / NAME}-reg.sock")
        self._server.start()
        wait_for("the other driver to be registered", lambda: self._registered)
        api = "resource.k8s.io/v1"
        pool = {"name": NODE, "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": NAME, "nodeName": NODE, "pool": pool, "devices": self._devices}
        selector = {"cel": {"expression": f'device.driver == "{NAME}"'}}
        self._cluster.apply(
            {"apiVersion": api, "kind": "DeviceClass", "metadata": {"name": NAME}, "spec": {"selectors": [selector]}},
            {"apiVersion": api, "kind": "ResourceSlice", "metadata": {"name": f"{NODE}-{NAME}"}, "spec": spec},
        )
        return self

    def __exit__(self, *_: object) -> None:
        """Go, once the pods have."""
        self._cluster.purge("e2e", ["pods"])
        self._cluster.delete("resourceslice", f"{NODE}-{NAME}")
        self._cluster.delete("deviceclass", NAME)
        self._server.stop(grace=2).wait(10)
        for path in (self._socket, KUBELET_ROOT / "plugins_registry" / f"{NAME}-reg.sock"):
            path.unlink(missing_ok=True)

    def _get_info(self, _request: registration.InfoRequest, _: Context) -> registration.PluginInfo:
        versions = ["v1.DRAPlugin"]
        return registration.PluginInfo(
            type="DRAPlugin", name=NAME, endpoint=str(self._socket), supported_versions=versions
        )

    def _notify(self, status: registration.RegistrationStatus, _: Context) -> registration.RegistrationStatusResponse:
        self._registered = status.plugin_registered
        return registration.RegistrationStatusResponse()

    def _prepare(self, call: dra.NodePrepareResourcesRequest, _: Context) -> dra.NodePrepareResourcesResponse:
        answer = dra.NodePrepareResourcesResponse()
        for ref in call.claims:
            claim = self._cluster.get("resourceclaim", ref.name, ref.namespace)
            assert claim is not None, f"no claim {ref.name}"
            edits = {"env": [f"{VARIABLE}={ref.name}"]}
            spec = {
                "cdiVersion": "0.3.0",
                "kind": f"{NAME}/claim",
                "devices": [{"name": f"claim-{ref.uid}", "containerEdits": edits}],
            }
            _spec_file(ref.uid).write_text(json.dumps(spec))
            for result in claim["status"]["allocation"]["devices"]["results"]:
                if result["driver"] == NAME:
                    answer.claims[ref.uid].devices.add(
                        request_names=[result["request"]],
                        pool_name=result["pool"],
                        device_name=result["device"],
                        cdi_device_ids=[f"{NAME}/claim=claim-{ref.uid}"],
                    )
        return answer

    def _unprepare(self, call: dra.NodeUnprepareResourcesRequest, _: Context) -> dra.NodeUnprepareResourcesResponse:
        answer = dra.NodeUnprepareResourcesResponse()
        for ref in call.claims:
            _spec_file(ref.uid).unlink(missing_ok=True)
            answer.claims[ref.uid].error = ""
        return answer


def _spec_file(uid: str) -> Path:
    return CDI_DIR / f"{NAME}-{uid}.json"


def _service(name: str, **methods: tuple[Any, Any, Any]) -> grpc.GenericRpcHandler:
    return grpc.method_handlers_generic_handler(
        name,
        {
            method: grpc.unary_unary_rpc_method_handler(serve, request.FromString, answer.SerializeToString)
            for method, (request, answer, serve) in methods.items()
        },
    )
