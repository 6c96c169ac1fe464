"""How the kubelet learns of the driver: GetInfo and NotifyRegistrationStatus.

The kubelet asks at a socket when that appears in its directory. After some refusals it never asks there again (up to 1.35 after
all), and one that appeared while its watch was broken it overlooks. So a socket that came to nothing is shown anew.

Contract: k8s.io/kubelet pkg/apis/pluginregistration/v1.
"""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import grpc

from hami_kubeletplugin.kube.backoff import Backoff
from hami_kubeletplugin.kubelet import dra, health
from hami_kubeletplugin.kubelet.wire import pluginregistration_v1_pb2 as wire
from hami_kubeletplugin.observe.log import get_logger
from hami_kubeletplugin.observe.once import Once

log = get_logger()

SERVICE: Final = wire.DESCRIPTOR.services_by_name["Registration"].full_name
PLUGIN_TYPE: Final = "DRAPlugin"

SUPPORTED_VERSIONS: Final = (dra.V1, dra.V1BETA1, health.V1, health.V1ALPHA1)
"""The kubelet takes the first DRA version of this list that it knows, so the newest comes first."""


REFUSED: Final = (5.0, 300.0)
"""Seconds, first and longest, from when a socket is shown until the next one is, if the kubelet has refused the driver."""
UNASKED: Final = (30.0, 300.0)
"""The same if it has said nothing. It looks once a second, and asks when it has time: usually that is at once."""


class Registration:
    """The registration service, and what came of it.

    Attributes:
        registered: Set while the kubelet has the driver registered.
        registered_at: UNIX time at which the kubelet said so last; None: never yet.
        refusal: The kubelet's words if it last refused the driver, else None.
        refusals: How often it did.
    """

    def __init__(self, driver: str, endpoint: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.registered = threading.Event()
        self.registered_at: float | None = None
        self.refusal: str | None = None
        self.refusals = 0
        self._trouble: str | None = None
        self._clock, self._shown_at = clock, clock()
        self._changed: Callable[[], None] = lambda: None
        self._refused, self._unasked, self._told = Backoff(*REFUSED), Backoff(*UNASKED), Once[str]()
        self._info = wire.PluginInfo(
            type=PLUGIN_TYPE, name=driver, endpoint=str(endpoint), supported_versions=SUPPORTED_VERSIONS
        )

    def move(self, endpoint: Path) -> None:
        """DRA is served at another path."""
        self._info.endpoint = str(endpoint)

    @property
    def trouble(self) -> str | None:
        """What is wrong, and what to do; None while nothing is known to be."""
        return None if self.registered.is_set() else self._trouble

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

    def follow(self, changed: Callable[[], None]) -> None:
        """Have `changed` called, from any thread, when something that the attributes say has changed; it must not wait."""
        self._changed = changed

    def shown(self) -> None:
        """A socket is there for the kubelet to find."""
        self._shown_at = self._clock()

    def forget(self) -> None:
        """The socket is gone, and with it the registration."""
        self.registered.clear()
        self._changed()

    def overdue(self) -> bool:
        """Whether the socket has come to nothing for long enough, so that it has to be shown anew; longer the next time."""
        if self.registered.is_set():
            return False
        wait = self._unasked if self.refusal is None else self._refused
        if self._clock() - self._shown_at < wait.delay:
            return False
        if self.refusal is None:
            self._trouble = trouble = (
                f"the kubelet has not asked for the driver {self._info.name} within {wait.delay:g} s, so no pod with its claims "
                "can start here. Does the kubelet run, and is --registry-dir its folder plugins_registry?"
            )
            if self._told.is_new("unasked"):
                log.warning("the kubelet has not asked for the driver; its socket is made anew", reason=trouble)
            self._changed()
        wait.grow()
        return True

    def _get_info(self, _request: wire.InfoRequest, _: grpc.ServicerContext) -> wire.PluginInfo:
        return self._info

    def _notify(self, status: wire.RegistrationStatus, _: grpc.ServicerContext) -> wire.RegistrationStatusResponse:
        if status.plugin_registered:
            self.refusal = self._trouble = None
            self.registered_at = time.time()
            self.registered.set()
            for wait in (self._refused, self._unasked):
                wait.reset()
            self._told.keep(lambda _: False)
            log.info("registered with the kubelet", driver=self._info.name)
        else:
            self.refusal = status.error or "the kubelet gave no reason"
            self.refusals += 1
            self._trouble = f"the kubelet refused the driver {self._info.name}: {self.refusal}"
            self.registered.clear()
            if self._told.is_new("refused", self.refusal):
                log.error(
                    "THE KUBELET REFUSED THE DRIVER, no pod with its claims can start on this node; it is asked again",
                    driver=self._info.name,
                    error=self.refusal,
                )
        self._changed()
        return wire.RegistrationStatusResponse()
