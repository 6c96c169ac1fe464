"""How many GPU pods a second Kubernetes' own parts let through: three limits, as far as they can be seen. Pure."""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from hami_kubeletplugin.api import fields
from hami_kubeletplugin.findings import Finding, Level

Json = Mapping[str, Any]
_rates = partial(Finding, check="rates")
_PER_POD: Final = {"kube-controller-manager": 2, "kube-scheduler": 4, "kubelet": 8}
"""Requests for a GPU pod with one claim: docs/performance.md, counted with the audit log."""
_ENOUGH: Final = {"kube-controller-manager": 100, "kube-scheduler": 200, "kubelet": 50}
"""From here on nothing is said."""
_DEFAULT: Final = {"kube-controller-manager": 20, "kube-scheduler": 50, "kubelet": 50}
_MEND: Final = {
    "kube-controller-manager": "--kube-api-qps=200 --kube-api-burst=400   # options of kube-controller-manager",
    "kube-scheduler": "clientConnection: {qps: 200, burst: 400}   # in the file that --config of kube-scheduler names",
    "kubelet": "kubeAPIQPS: 200, kubeAPIBurst: 400   # in the kubelet's configuration",
}
_QPS: Final = re.compile(r"--kube-api-qps=(\d+)")


def control_plane(component: str, pods: Sequence[Json]) -> Iterator[Finding]:
    """What one part may send, by its static pod's arguments.

    Args:
        component: `kube-controller-manager` or `kube-scheduler`.
        pods: Of kube-system with that label `component`.
    """
    if not pods:
        yield _rates(
            level=Level.hint,
            what=f"how many requests {component} may send can't be seen: it is no pod here; by default {_said(component)}",
            mend=_MEND[component],
        )
        return
    words = " ".join(_words(pods[0]))
    if component == "kube-scheduler" and re.search(r"--config[= ]", words):
        yield _rates(
            level=Level.hint,
            what=f"how many requests {component} may send stands in a file on its node; by default {_said(component)}",
            mend=_MEND[component],
        )
        return
    given = _QPS.search(words)
    yield from _judged(component, int(given[1]) if given else _DEFAULT[component])


def kubelet(configuration: Json | None) -> Iterator[Finding]:
    """What kubelets may send, by the configuration of one of them; None: it can't be seen, and nothing is said."""
    given = fields.at(configuration, "kubeletconfig", "kubeAPIQPS")
    if isinstance(given, int):
        yield from _judged("kubelet", given)


def _judged(component: str, qps: int) -> Iterator[Finding]:
    if qps >= _ENOUGH[component]:
        yield _rates(level=Level.ok, what=f"{component} may send {qps} requests a second, {_pods(component, qps)}")
    else:
        yield _rates(
            level=Level.hint,
            what=f"{component} may send {qps} requests a second, {_pods(component, qps)}",
            why="where many are created at once, they wait for that: docs/performance.md",
            mend=_MEND[component],
        )


def _said(component: str) -> str:
    return f"{_DEFAULT[component]} a second, {_pods(component, _DEFAULT[component])}"


def _pods(component: str, qps: int) -> str:
    where = " on each node" if component == "kubelet" else ""
    return f"enough for {qps / _PER_POD[component]:g} GPU pods a second{where}"


def _words(pod: Json) -> Iterator[str]:
    for _, container in fields.mappings(fields.at(pod, "spec", "containers")):
        for part in ("command", "args"):
            yield from map(str, fields.sequence(container.get(part)))
