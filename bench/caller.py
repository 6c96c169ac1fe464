"""A caller of a driver's DRA socket that costs as little as it can: blocking gRPC, no event loop in between."""

import itertools
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import grpc

from hami_kubeletplugin.api.claim import ClaimRef
from hami_kubeletplugin.fake.kubelet import CALL_TIMEOUT
from hami_kubeletplugin.kubelet import dra
from hami_kubeletplugin.kubelet.wire import dra_v1_pb2 as wire

# A connection of its own: channels to one address share one otherwise.
_OPTIONS: Final = (("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1))

Request = TypeVar("Request", wire.NodePrepareResourcesRequest, wire.NodeUnprepareResourcesRequest)


class Caller:
    """Stands for the kubelet, with one connection. Thread-safe.

    Times are milliseconds of the call alone. Any error ends the bench, since times would mean nothing then.
    """

    def __init__(self, socket: Path) -> None:
        self._channel = grpc.insecure_channel(f"unix:{socket}", options=_OPTIONS)
        self._prepare = self._channel.unary_unary(
            f"/{dra.V1_SERVICE}/NodePrepareResources",
            wire.NodePrepareResourcesRequest.SerializeToString,
            wire.NodePrepareResourcesResponse.FromString,
        )
        self._unprepare = self._channel.unary_unary(
            f"/{dra.V1_SERVICE}/NodeUnprepareResources",
            wire.NodeUnprepareResourcesRequest.SerializeToString,
            wire.NodeUnprepareResourcesResponse.FromString,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._channel.close()

    def prepare(self, refs: Sequence[ClaimRef]) -> float:
        """NodePrepareResources."""
        return _timed(self._prepare, wire.NodePrepareResourcesRequest(claims=_claims(refs)))

    def unprepare(self, refs: Sequence[ClaimRef]) -> float:
        """NodeUnprepareResources."""
        return _timed(self._unprepare, wire.NodeUnprepareResourcesRequest(claims=_claims(refs)))

    def prepare_by(self, callers: int, refs: Sequence[ClaimRef]) -> float:
        """Prepare each claim in a call of its own, by so many threads at a time; returns claims per second."""
        places, failures = itertools.count(), list[Exception]()

        def work() -> None:
            try:
                while (place := next(places)) < len(refs):
                    self.prepare([refs[place]])
            except (grpc.RpcError, RuntimeError) as error:
                failures.append(error)

        threads = [threading.Thread(target=work) for _ in range(callers)]
        started = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]
        return len(refs) / (time.perf_counter() - started)


def _timed(call: Callable[..., Any], request: Request) -> float:
    started = time.perf_counter()
    response = call(request, timeout=CALL_TIMEOUT)
    milliseconds = (time.perf_counter() - started) * 1000
    if {claim.uid for claim in request.claims} != set(response.claims):
        raise RuntimeError(f"answered for other claims than {request}")
    error = next((answer.error for answer in response.claims.values() if answer.error), None)
    if error:
        raise RuntimeError(error)
    return milliseconds


def _claims(refs: Iterable[ClaimRef]) -> list[wire.Claim]:
    return [wire.Claim(namespace=ref.namespace, name=ref.name, uid=ref.uid) for ref in refs]
